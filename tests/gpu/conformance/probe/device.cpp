// What this card and driver are: attributes, limits, and from which version each name answers.

#include <cstdio>
#include <string>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

struct NamedAttribute {
  CUdevice_attribute attribute;
  const char* name;
};

constexpr NamedAttribute kAttributes[] = {
#define NVSHARE_CUDA_ENUM_BEGIN(enumeration, type)
#define NVSHARE_CUDA_VALUE(enumerator, value) {enumerator, #enumerator},
#define NVSHARE_CUDA_ENUM_END(enumeration)
#include "cuda/enums/device_attribute.def"
#undef NVSHARE_CUDA_ENUM_BEGIN
#undef NVSHARE_CUDA_VALUE
#undef NVSHARE_CUDA_ENUM_END
};

}  // namespace

void probe_device(Run& run) {
  use_card(run);
  char name[256] = {};
  char bus_id[64] = {};
  int version = 0;
  size_t bytes = 0;
  size_t free_bytes = 0;
  SETUP(cuDeviceGetName, name, sizeof name, 0);
  SETUP(cuDeviceGetPCIBusId, bus_id, sizeof bus_id, 0);
  SETUP(cuDriverGetVersion, &version);
  SETUP(cuDeviceTotalMem_v2, &bytes, 0);
  run.value("name", name);
  run.value("PCI bus id", bus_id);
  run.value("driver version", version);
  run.value("total memory of the device", bytes);
  SETUP(cuMemGetInfo_v2, &free_bytes, &bytes);
  run.value("total memory by cuMemGetInfo", bytes);
  run.value("free memory by cuMemGetInfo", free_bytes);
  for (const NamedAttribute& each : kAttributes) {
    int value = 0;
    const CUresult result = QUIET(cuDeviceGetAttribute, &value, each.attribute, 0);
    if (result == CUDA_SUCCESS) {
      run.value(each.name, value);
    } else {
      run.value(each.name, result);
    }
  }
  for (unsigned limit = 0; limit <= CU_LIMIT_MAX; ++limit) {
    const CUresult result = QUIET(cuCtxGetLimit, &bytes, static_cast<CUlimit>(limit));
    const std::string what = "limit " + std::to_string(limit);
    if (result == CUDA_SUCCESS) {
      run.value(what.c_str(), bytes);
    } else {
      run.value(what.c_str(), result);
    }
  }
}

namespace {

std::string symbol_at(const Run& run, void* address) {
  if (address == nullptr) return "null";
  for (const Function& row : kFunctions) {
    if (run.driver().address(row.id) == address) return row.symbol;
  }
  return "no exported symbol";
}

// Where the answer to a name changes with the version, and differs from what the table says.
bool differs_from_table(const Run& run, const char* name, uint64_t flags, int newest) {
  bool differs = false;
  std::string last;
  for (int version = 1000; version <= newest; version += 10) {
    void* address = nullptr;
    QUIET(cuGetProcAddress_v2, name, &address, version, flags, nullptr);
    const Function* expected = find(name, version, flags).function;
    void* wanted = expected == nullptr ? nullptr : run.driver().address(expected->id);
    const std::string answer = symbol_at(run, address);
    const std::string both = answer + (expected == nullptr ? "" : expected->symbol);
    if (address != wanted && both != last) {
      differs = true;
      const std::string what = std::string(name) + " at " + std::to_string(version) + ", flags " +
                               std::to_string(flags) + ": table says " +
                               (expected == nullptr ? "null" : expected->symbol) + ", driver";
      run.value(what.c_str(), answer);
    }
    last = both;
  }
  return differs;
}

}  // namespace

void probe_versions(Run& run) {
  SETUP(cuInit, 0);
  int newest = 0;
  SETUP(cuDriverGetVersion, &newest);
  int asked = 0;
  int differing = 0;
  const char* last = "";
  for (const Function& row : kFunctions) {
    if (std::string(last) == row.name) continue;
    last = row.name;
    for (const uint64_t flags : {uint64_t{CU_GET_PROC_ADDRESS_DEFAULT},
                                 uint64_t{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}}) {
      ++asked;
      differing += differs_from_table(run, row.name, flags, newest) ? 1 : 0;
    }
  }
  run.value("names and flavours asked for", asked);
  run.value("that differ from the table", differing);
}

}  // namespace nvshare::conformance
