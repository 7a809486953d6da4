// Which calls a capture in global mode forbids to the capturing thread: each in a capture of its
// own.

#include <cstdlib>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

// Makes the call between the beginning and the end of a capture; prints what became of that.
template <typename Call>
void while_capturing(const Run& run, CUstream stream, Call call) {
  SETUP(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  call();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  SETUP(cuStreamIsCapturing, stream, &status);
  run.value("still capturing", status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  QUIET(cuStreamEndCapture, stream, &graph);
  if (graph != nullptr) SETUP(cuGraphDestroy, graph);
}

void plain_memory(Run& run, CUstream stream) {
  CUdeviceptr address = 0;
  CUdeviceptr made = 0;
  size_t pitch = 0;
  void* host = nullptr;
  void* registered = std::aligned_alloc(4096, kMiB);
  CUarray array = nullptr;
  unsigned type = 0;
  CUDA_ARRAY_DESCRIPTOR description = {16, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  while_capturing(run, stream, [&] { CALL(cuMemAlloc_v2, &made, kMiB); });
  address = device_memory(run, kMiB);
  while_capturing(run, stream, [&] { CALL(cuMemFree_v2, address); });
  while_capturing(run, stream, [&] { CALL(cuMemFree_v2, 0); });
  while_capturing(run, stream, [&] { CALL(cuMemAllocPitch_v2, &made, &pitch, 64, 64, 4); });
  while_capturing(run, stream, [&] { CALL(cuMemAllocManaged, &made, kMiB, CU_MEM_ATTACH_GLOBAL); });
  while_capturing(run, stream, [&] { CALL(cuMemHostAlloc, &host, kMiB, 0); });
  while_capturing(run, stream, [&] { CALL(cuMemFreeHost, host); });
  while_capturing(run, stream, [&] { CALL(cuMemHostRegister_v2, registered, kMiB, 0); });
  while_capturing(run, stream, [&] { CALL(cuMemHostUnregister, registered); });
  while_capturing(run, stream, [&] { CALL(cuArrayCreate_v2, &array, &description); });
  while_capturing(run, stream, [&] { CALL(cuArrayDestroy, array); });
  address = device_memory(run, kMiB);
  while_capturing(run, stream, [&] {
    CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  });
  while_capturing(run, stream, [&] { CALL(cuMemGetAddressRange_v2, &made, &pitch, address); });
  std::free(registered);
}

void virtual_memory_and_pools(Run& run, CUstream stream) {
  constexpr size_t chunk = 2 * kMiB;
  const CUstream other = new_stream(run);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps pool_properties = {};
  pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool_properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  while_capturing(run, stream, [&] { CALL(cuMemAddressReserve, &address, chunk, 0, 0, 0); });
  while_capturing(run, stream, [&] { CALL(cuMemCreate, &handle, chunk, &properties, 0); });
  while_capturing(run, stream, [&] { CALL(cuMemMap, address, chunk, 0, handle, 0); });
  while_capturing(run, stream, [&] { CALL(cuMemSetAccess, address, chunk, &access, 1); });
  while_capturing(run, stream, [&] { CALL(cuMemUnmap, address, chunk); });
  while_capturing(run, stream, [&] { CALL(cuMemRelease, handle); });
  while_capturing(run, stream, [&] { CALL(cuMemAddressFree, address, chunk); });
  while_capturing(run, stream, [&] { CALL(cuMemPoolCreate, &pool, &pool_properties); });
  while_capturing(run, stream, [&] { CALL(cuMemAllocFromPoolAsync, &address, kMiB, pool, other); });
  while_capturing(run, stream, [&] { CALL(cuMemFreeAsync, address, other); });
  while_capturing(run, stream, [&] { CALL(cuMemPoolTrimTo, pool, 0); });
  while_capturing(run, stream, [&] { CALL(cuMemPoolDestroy, pool); });
  while_capturing(run, stream, [&] { CALL(cuDeviceGraphMemTrim, 0); });
}

void work(Run& run, CUstream stream, const Kernels& kernels) {
  const CUstream other = new_stream(run);
  const CUdeviceptr address = device_memory(run, kMiB);
  static uint32_t words[16];
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  SETUP(cuGraphCreate, &graph, 0);
  while_capturing(run, stream, [&] { CALL(cuMemcpyHtoD_v2, address, words, sizeof words); });
  while_capturing(run, stream, [&] { CALL(cuMemcpyDtoH_v2, words, address, sizeof words); });
  while_capturing(run, stream, [&] { CALL(cuMemcpyDtoD_v2, address, address + 4096, 64); });
  while_capturing(run, stream, [&] { CALL(cuMemsetD32_v2, address, 1, 16); });
  while_capturing(run, stream,
                  [&] { CALL(cuMemcpyHtoDAsync_v2, address, words, sizeof words, other); });
  while_capturing(run, stream,
                  [&] { CALL(cuMemcpyHtoDAsync_v2, address, words, sizeof words, stream); });
  while_capturing(run, stream,
                  [&] { CALL(cuMemcpyDtoHAsync_v2, words, address, sizeof words, stream); });
  while_capturing(run, stream, [&] { CALL(cuMemsetD32Async, address, 1, 16, other); });
  while_capturing(run, stream, [&] {
    CALL(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, other, nullptr, nullptr);
  });
  while_capturing(run, stream, [&] {
    CALL(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  });
  while_capturing(run, stream, [&] { CALL(cuGraphInstantiateWithFlags, &executable, graph, 0); });
  while_capturing(run, stream, [&] { CALL(cuGraphLaunch, executable, other); });
  while_capturing(run, stream, [&] { CALL(cuGraphLaunch, executable, stream); });
  while_capturing(run, stream, [&] { CALL(cuGraphUpload, executable, other); });
  while_capturing(run, stream, [&] { CALL(cuGraphExecDestroy, executable); });
  while_capturing(run, stream, [&] { CALL(cuStreamWriteValue32_v2, stream, address, 1, 0); });
}

void everything_else(Run& run, CUstream stream, const Kernels& kernels) {
  const CUstream other = new_stream(run);
  const CUevent event = new_event(run);
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUstream made_stream = nullptr;
  CUevent made_event = nullptr;
  CUcontext context = nullptr;
  size_t bytes = 0;
  while_capturing(run, stream, [&] { CALL(cuModuleLoadData, &module, kKernels); });
  while_capturing(run, stream, [&] { CALL(cuModuleUnload, module); });
  while_capturing(run, stream, [&] {
    CALL(cuLibraryLoadData, &library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0);
  });
  while_capturing(run, stream, [&] { CALL(cuLibraryUnload, library); });
  while_capturing(run, stream, [&] { CALL(cuStreamCreate, &made_stream, 0); });
  while_capturing(run, stream, [&] { CALL(cuStreamDestroy_v2, made_stream); });
  while_capturing(run, stream, [&] { CALL(cuEventCreate, &made_event, 0); });
  while_capturing(run, stream, [&] { CALL(cuEventDestroy_v2, made_event); });
  while_capturing(run, stream, [&] { CALL(cuEventRecord, event, other); });
  SETUP(cuStreamSynchronize, other);
  while_capturing(run, stream, [&] { CALL(cuEventQuery, event); });
  while_capturing(run, stream, [&] { CALL(cuEventSynchronize, event); });
  while_capturing(run, stream, [&] { CALL(cuStreamQuery, other); });
  while_capturing(run, stream, [&] { CALL(cuStreamSynchronize, other); });
  while_capturing(run, stream, [&] { CALL(cuStreamSynchronize, nullptr); });
  while_capturing(run, stream, [&] { CALL(cuCtxSynchronize); });
  while_capturing(run, stream, [&] { CALL(cuMemGetInfo_v2, &bytes, &bytes); });
  while_capturing(run, stream, [&] {
    CALL(cuFuncSetAttribute, kernels.noop, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50);
  });
  while_capturing(run, stream, [&] { CALL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 2048); });
  while_capturing(run, stream, [&] { CALL(cuCtxCreate_v2, &context, 0, 0); });
  SETUP(cuCtxPopCurrent_v2, &context);
  while_capturing(run, stream, [&] { CALL(cuCtxDestroy_v2, context); });
}

}  // namespace

void capture_safety(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  const CUstream stream = new_stream(run);
  plain_memory(run, stream);
  virtual_memory_and_pools(run, stream);
  work(run, stream, kernels);
  everything_else(run, stream, kernels);
}

}  // namespace nvshare::conformance
