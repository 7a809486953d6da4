// What things cost in device memory, and how addresses are given out.

#include <cstdio>
#include <string>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

// Prints how much less memory is free than before.
class Cost {
 public:
  explicit Cost(const Run& run) : run_(run), before_(free_memory(run)) {}
  void print(const char* what) {
    const size_t now = free_memory(run_);
    run_.value(what, static_cast<long long>(before_) - static_cast<long long>(now));
    before_ = now;
  }

 private:
  const Run& run_;
  size_t before_;
};

void allocations(Run& run) {
  const size_t sizes[] = {1,        512,          64 * kKiB,        512 * kKiB,   kMiB,
                          kMiB + 1, 2 * kMiB - 1, 2 * kMiB,         2 * kMiB + 1, 3 * kMiB,
                          4 * kMiB, 33 * kMiB,    64 * kMiB + 4096, 128 * kMiB};
  for (const size_t size : sizes) {
    CUdeviceptr one = 0;
    CUdeviceptr two = 0;
    Cost cost(run);
    const std::string what = "cuMemAlloc of " + std::to_string(size);
    SETUP(cuMemAlloc_v2, &one, size);
    cost.print((what + ", first").c_str());
    SETUP(cuMemAlloc_v2, &two, size);
    cost.print((what + ", second").c_str());
    run.value("distance of the two", static_cast<long long>(two) - static_cast<long long>(one));
    CUdeviceptr base = 0;
    size_t bytes = 0;
    SETUP(cuMemGetAddressRange_v2, &base, &bytes, one);
    run.value("address range", bytes);
    SETUP(cuMemFree_v2, one);
    SETUP(cuMemFree_v2, two);
    cost.print((what + ", both freed").c_str());
  }
}

void pitches(Run& run) {
  for (const size_t width : {1, 31, 64, 100, 256, 500, 512, 513, 1000, 4096, 5000}) {
    CUdeviceptr address = 0;
    size_t pitch = 0;
    SETUP(cuMemAllocPitch_v2, &address, &pitch, width, 16, 4);
    run.value(("pitch of width " + std::to_string(width)).c_str(), pitch);
    SETUP(cuMemFree_v2, address);
  }
}

void other_things(Run& run) {
  Cost cost(run);
  void* host = nullptr;
  SETUP(cuMemHostAlloc, &host, 64 * kMiB, 0);
  cost.print("cuMemHostAlloc of 64 MiB");
  CUdeviceptr managed = 0;
  SETUP(cuMemAllocManaged, &managed, 64 * kMiB, CU_MEM_ATTACH_GLOBAL);
  cost.print("cuMemAllocManaged of 64 MiB");
  SETUP(cuMemsetD8_v2, managed, 1, 64 * kMiB);
  SETUP(cuCtxSynchronize);
  cost.print("the same, touched on the device");
  SETUP(cuMemFree_v2, managed);
  cost.print("the same, freed");
  const Kernels kernels = load_kernels(run);
  cost.print("loading a module");
  launch_fill(run, kernels, nullptr, device_memory(run, kMiB), 1, 64);
  SETUP(cuCtxSynchronize);
  cost.print("a first launch, and 1 MiB");
  for (int i = 0; i < 8; ++i) new_stream(run);
  cost.print("8 streams");
  for (int i = 0; i < 100; ++i) new_event(run);
  cost.print("100 events");
  const CUstream stream = new_stream(run);
  CUdeviceptr from_pool = 0;
  SETUP(cuMemAllocAsync, &from_pool, 1, stream);
  SETUP(cuStreamSynchronize, stream);
  cost.print("cuMemAllocAsync of 1");
  CUmemoryPool pool = nullptr;
  uint64_t bytes = 0;
  SETUP(cuDeviceGetDefaultMemPool, &pool, 0);
  SETUP(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
  run.value("pool used", bytes);
  SETUP(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  run.value("pool reserved", bytes);
  SETUP(cuMemAllocAsync, &from_pool, 100 * kMiB, stream);
  SETUP(cuStreamSynchronize, stream);
  SETUP(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
  run.value("pool used after 100 MiB more", bytes);
  SETUP(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  run.value("pool reserved after 100 MiB more", bytes);
}

}  // namespace

void probe_memory(Run& run) {
  use_card(run);
  allocations(run);
  pitches(run);
  other_things(run);
}

void probe_context_memory(Run& run) {
  use_card(run);
  size_t available = 0;
  size_t total = 0;
  SETUP(cuMemGetInfo_v2, &available, &total);
  run.value("taken with one context", total - available);
  CUcontext context = nullptr;
  Cost cost(run);
  SETUP(cuCtxCreate_v2, &context, 0, 0);
  cost.print("a second context");
  device_memory(run, 64 * kMiB);
  cost.print("64 MiB in it");
  SETUP(cuCtxDestroy_v2, context);
  size_t after = 0;
  SETUP(cuMemGetInfo_v2, &after, &total);
  run.value("not given back with it",
            static_cast<long long>(available) - static_cast<long long>(after));
}

}  // namespace nvshare::conformance
