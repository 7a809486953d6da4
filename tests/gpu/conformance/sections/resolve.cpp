// cuGetProcAddress: versions, flavours, flags, what is not there.

#include <string>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr uint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
constexpr uint64_t kLegacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;

const char* status_name(CUdriverProcAddressQueryResult status) {
  switch (status) {
    case CU_GET_PROC_ADDRESS_SUCCESS:
      return "found";
    case CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND:
      return "not found";
    case CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT:
      return "version not sufficient";
  }
  return "something else";
}

// The symbol that this address is, as dlsym knows it.
std::string symbol_at(const Run& run, void* address) {
  if (address == nullptr) return "null";
  for (const Function& row : kFunctions) {
    if (run.driver().address(row.id) == address) return row.symbol;
  }
  return "something without an exported symbol";
}

void ask(const Run& run, const char* name, int version, uint64_t flags) {
  void* address = &address;
  auto status = static_cast<CUdriverProcAddressQueryResult>(77);
  const CUresult result = QUIET(cuGetProcAddress_v2, name, &address, version, flags, &status);
  const std::string question = std::string("cuGetProcAddress_v2(\"") + name + "\", " +
                               std::to_string(version) + ", flags " + std::to_string(flags) + ")";
  run.call(question.c_str(), result);
  run.value("symbol", address == &address ? "untouched" : symbol_at(run, address));
  run.value("status", status_name(status));
}

void by_version(Run& run) {
  ask(run, "cuMemAlloc", 1000, 0);
  ask(run, "cuMemAlloc", 2000, 0);
  ask(run, "cuMemAlloc", 3019, 0);
  ask(run, "cuMemAlloc", 3020, 0);
  ask(run, "cuMemAlloc", 12000, 0);
  ask(run, "cuMemAlloc", 0, 0);
  ask(run, "cuMemAlloc", -1, 0);
  ask(run, "cuCtxCreate", 2000, 0);
  ask(run, "cuCtxCreate", 11000, 0);
  ask(run, "cuCtxCreate", 11040, 0);
  ask(run, "cuCtxCreate", 12050, 0);
  ask(run, "cuGetProcAddress", 11030, 0);
  ask(run, "cuGetProcAddress", 12000, 0);
  ask(run, "cuGraphInstantiate", 10000, 0);
  ask(run, "cuGraphInstantiate", 11000, 0);
  ask(run, "cuGraphInstantiate", 12000, 0);
  ask(run, "cuGraphInstantiateWithFlags", 11040, 0);
  ask(run, "cuEventElapsedTime", 12000, 0);
  ask(run, "cuEventElapsedTime", 12080, 0);
  ask(run, "cuStreamGetCaptureInfo", 10010, 0);
  ask(run, "cuStreamGetCaptureInfo", 11030, 0);
  ask(run, "cuStreamGetCaptureInfo", 12030, 0);
  ask(run, "cuMemPrefetchAsync", 8000, 0);
  ask(run, "cuMemPrefetchAsync", 12020, 0);
  ask(run, "cuLaunchKernelEx", 11000, 0);
  ask(run, "cuLaunchKernelEx", 11060, 0);
}

void by_flavour(Run& run) {
  ask(run, "cuMemcpyHtoD", 12000, 0);
  ask(run, "cuMemcpyHtoD", 12000, kLegacy);
  ask(run, "cuMemcpyHtoD", 12000, kPerThread);
  ask(run, "cuMemcpyHtoD", 6050, kPerThread);
  ask(run, "cuMemcpyHtoD", 3020, kPerThread);
  ask(run, "cuMemcpyHtoD", 2000, kPerThread);
  ask(run, "cuLaunchKernel", 12000, kPerThread);
  ask(run, "cuMemcpyHtoDAsync", 12000, kPerThread);
  ask(run, "cuMemAlloc", 12000, kPerThread);
  ask(run, "cuStreamSynchronize", 12000, kPerThread | kLegacy);
  ask(run, "cuStreamSynchronize", 12000, 4);
}

void what_is_not_there(Run& run) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  ask(run, "cuNoSuchThing", 12000, 0);
  ask(run, "", 12000, 0);
  ask(run, "cuMemAlloc_v2", 12000, 0);
  ask(run, "cuStreamSynchronize_ptsz", 12000, 0);
  ask(run, "cudaMalloc", 12000, 0);
  ask(run, "cuMemAlloc", 999000, 0);
  CALL(cuGetProcAddress_v2, nullptr, &address, 12000, 0, &status);
  CALL(cuGetProcAddress_v2, "cuMemAlloc", nullptr, 12000, 0, &status);
  CALL(cuGetProcAddress_v2, "cuMemAlloc", &address, 12000, 0, nullptr);
  run.value("symbol", symbol_at(run, address));
  CALL(cuGetProcAddress_v2, "cuNoSuchThing", &address, 12000, 0, nullptr);
  run.value("symbol", symbol_at(run, address));
  CALL(cuGetProcAddress, "cuMemAlloc", &address, 11040, 0);
  run.value("symbol", symbol_at(run, address));
  CALL(cuGetProcAddress, "cuNoSuchThing", &address, 11040, 0);
  run.value("symbol", symbol_at(run, address));
  CALL(cuGetProcAddress, "cuLaunchKernelEx", &address, 11000, 0);
  run.value("symbol", symbol_at(run, address));
}

// Every row of the table must be what the driver answers at the row's version.
void the_whole_table(Run& run) {
  int version = 0;
  SETUP(cuDriverGetVersion, &version);
  int right = 0;
  for (const Function& row : kFunctions) {
    if (run.driver().address(row.id) == nullptr) {
      run.value("not exported", row.symbol);
      continue;
    }
    const bool twin = row.flavour == Flavour::Ptds || row.flavour == Flavour::Ptsz;
    void* address = nullptr;
    QUIET(cuGetProcAddress_v2, row.name, &address, row.since, twin ? kPerThread : 0, nullptr);
    if (address == run.driver().address(row.id)) {
      ++right;
    } else {
      const std::string what = std::string(row.name) + " at " + std::to_string(row.since);
      run.value(what.c_str(), symbol_at(run, address));
    }
  }
  run.value("rows answered as the table says", right);
}

}  // namespace

void resolve(Run& run) {
  SETUP(cuInit, 0);
  by_version(run);
  run.heading("per-thread default streams");
  by_flavour(run);
  run.heading("what is not there");
  what_is_not_there(run);
  run.heading("the whole table");
  the_whole_table(run);
}

}  // namespace nvshare::conformance
