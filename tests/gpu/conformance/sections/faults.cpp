// Touching memory that is not there. Each case has a process of its own: a context that has seen
// a fault answers everything with it.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr size_t kChunk = 2 * kMiB;

// A range with one chunk mapped, not yet accessible, and one reserved behind it.
CUdeviceptr mapped_without_access(const Run& run, CUmemGenericAllocationHandle* handle) {
  CUdeviceptr address = 0;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  SETUP(cuMemAddressReserve, &address, 2 * kChunk, 0, 0, 0);
  SETUP(cuMemCreate, handle, kChunk, &properties, 0);
  SETUP(cuMemMap, address, kChunk, 0, *handle, 0);
  return address;
}

void allow(const Run& run, CUdeviceptr address, CUmemAccess_flags flags) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = flags;
  SETUP(cuMemSetAccess, address, kChunk, &access, 1);
}

// What a context answers after what has just been tried in it.
void aftermath(const Run& run) {
  CUdeviceptr address = 0;
  CALL(cuCtxSynchronize);
  CALL(cuMemAlloc_v2, &address, kMiB);
}

}  // namespace

void fault_set_without_access(Run& run, const Arguments&) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address = mapped_without_access(run, &handle);
  CALL(cuMemsetD32_v2, address, 1, 16);
  aftermath(run);
}

void fault_copy_without_access(Run& run, const Arguments&) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  uint32_t word = 0;
  const CUdeviceptr address = mapped_without_access(run, &handle);
  CALL(cuMemcpyDtoH_v2, &word, address, sizeof word);
  aftermath(run);
}

void fault_copy_from_reserved(Run& run, const Arguments&) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  uint32_t word = 0;
  const CUdeviceptr address = mapped_without_access(run, &handle);
  CALL(cuMemcpyDtoH_v2, &word, address + kChunk, sizeof word);
  CALL(cuMemcpyHtoD_v2, address + kChunk, &word, sizeof word);
  aftermath(run);
}

void fault_set_reserved(Run& run, const Arguments&) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  const CUdeviceptr address = mapped_without_access(run, &handle);
  CALL(cuMemsetD32_v2, address + kChunk, 1, 16);
  aftermath(run);
}

void fault_copy_after_unmap(Run& run, const Arguments&) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  uint32_t word = 0;
  const CUdeviceptr address = mapped_without_access(run, &handle);
  allow(run, address, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CALL(cuMemcpyDtoH_v2, &word, address, sizeof word);
  CALL(cuMemUnmap, address, kChunk);
  CALL(cuMemcpyDtoH_v2, &word, address, sizeof word);
  aftermath(run);
}

void fault_copy_over_the_end(Run& run, const Arguments&) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  static char bytes[8192];
  const CUdeviceptr address = mapped_without_access(run, &handle);
  allow(run, address, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CALL(cuMemcpyDtoH_v2, bytes, address + kChunk - 4096, sizeof bytes);
  aftermath(run);
}

void fault_write_to_read_only(Run& run, const Arguments&) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  uint32_t word = 0;
  const CUdeviceptr address = mapped_without_access(run, &handle);
  allow(run, address, CU_MEM_ACCESS_FLAGS_PROT_READ);
  CALL(cuMemcpyDtoH_v2, &word, address, sizeof word);
  CALL(cuMemcpyHtoD_v2, address, &word, sizeof word);
  aftermath(run);
}

void fault_kernel(Run& run, const Arguments&) {
  const Card card = use_card(run);
  const Kernels kernels = load_kernels(run);
  const CUstream stream = new_stream(run);
  const CUevent event = new_event(run);
  const CUdeviceptr good = device_memory(run, kMiB);
  FillParams params(0x10000, 1, 16);
  CUdeviceptr address = 0;
  CUmodule module = nullptr;
  CUstream another = nullptr;
  CUcontext current = nullptr;
  size_t bytes = 0;
  uint32_t word = 0;
  int count = 0;
  void* host = nullptr;
  CALL(cuLaunchKernel, kernels.fill32, 1, 1, 1, 32, 1, 1, 0, stream, params.pointers, nullptr);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamQuery, stream);
  CALL(cuCtxSynchronize);
  CALL(cuEventRecord, event, stream);
  CALL(cuEventQuery, event);
  CALL(cuMemAlloc_v2, &address, kMiB);
  CALL(cuMemGetInfo_v2, &bytes, &bytes);
  CALL(cuMemcpyDtoH_v2, &word, good, sizeof word);
  CALL(cuMemFree_v2, good);
  CALL(cuMemHostAlloc, &host, kMiB, 0);
  CALL(cuModuleLoadData, &module, kKernels);
  CALL(cuStreamCreate, &another, 0);
  CALL(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  CALL(cuCtxGetCurrent, &current);
  CALL(cuDeviceGetCount, &count);
  CALL(cuStreamDestroy_v2, stream);
  CALL(cuDevicePrimaryCtxReset_v2, card.device);
  CALL(cuMemAlloc_v2, &address, kMiB);
  CALL(cuDevicePrimaryCtxRelease_v2, card.device);
  CALL(cuDevicePrimaryCtxRetain, &current, card.device);
  CALL(cuCtxSetCurrent, current);
  CALL(cuMemAlloc_v2, &address, kMiB);
}

void fault_created_context(Run& run, const Arguments&) {
  SETUP(cuInit, 0);
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  SETUP(cuCtxCreate_v2, &context, 0, 0);
  const Kernels kernels = load_kernels(run);
  FillParams params(0x10000, 1, 16);
  CALL(cuLaunchKernel, kernels.fill32, 1, 1, 1, 32, 1, 1, 0, nullptr, params.pointers, nullptr);
  CALL(cuCtxSynchronize);
  CALL(cuCtxDestroy_v2, context);
  CALL(cuCtxCreate_v2, &context, 0, 0);
  CALL(cuMemAlloc_v2, &address, kMiB);
}

void faults(Run& run) {
  const char* const cases[] = {
      "set_without_access", "copy_without_access", "copy_from_reserved", "set_reserved",
      "copy_after_unmap",   "copy_over_the_end",   "write_to_read_only", "kernel",
      "created_context"};
  for (const char* name : cases) {
    run.heading(name);
    run.helper(name);
  }
}

}  // namespace nvshare::conformance
