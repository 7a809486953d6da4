// Before cuInit, around it, and after it without a context.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

void init(Run& run) {
  int number = 0;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  void* host = nullptr;
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  const char* text = nullptr;
  unsigned type = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

  run.heading("before cuInit");
  CALL(cuDriverGetVersion, &number);
  run.value("version is that of CUDA 11 or later", number >= 11000);
  CALL(cuDriverGetVersion, nullptr);
  CALL(cuGetErrorName, CUDA_ERROR_NOT_INITIALIZED, &text);
  CALL(cuDeviceGetCount, &number);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, 0);
  CALL(cuCtxGetCurrent, &context);
  CALL(cuCtxSetCurrent, nullptr);
  CALL(cuCtxCreate_v2, &context, 0, 0);
  CALL(cuCtxSynchronize);
  CALL(cuMemAlloc_v2, &address, 1024);
  CALL(cuMemFree_v2, 0);
  CALL(cuMemGetInfo_v2, &bytes, &bytes);
  CALL(cuMemHostAlloc, &host, 1024, 0);
  CALL(cuModuleLoadData, &module, kKernels);
  CALL(cuLibraryLoadData, &library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CALL(cuStreamCreate, &stream, 0);
  CALL(cuStreamSynchronize, nullptr);
  CALL(cuEventCreate, &event, 0);
  CALL(cuGraphCreate, &graph, 0);
  CALL(cuThreadExchangeStreamCaptureMode, &mode);
  CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096);
  CALL(cuMemAddressReserve, &address, 2 * kMiB, 0, 0, 0);

  run.heading("cuInit");
  CALL(cuInit, 1);
  CALL(cuDeviceGetCount, &number);
  CALL(cuInit, 0);
  CALL(cuInit, 0);
  CALL(cuInit, 7);
  CALL(cuDeviceGetCount, &number);
  run.value("there is a card", number > 0);
}

namespace {

void calls_that_need_a_context(Run& run) {
  CUdevice device = 0;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  size_t pitch = 0;
  void* host = nullptr;
  CUmodule module = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  unsigned flags = 0;
  int low = 0;
  int high = 0;
  static char bytes_of_host[64];
  CALL(cuMemAlloc_v2, &address, 1024);
  CALL(cuMemAlloc_v2, nullptr, 1024);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 64, 64, 4);
  CALL(cuMemAllocManaged, &address, 1024, CU_MEM_ATTACH_GLOBAL);
  CALL(cuMemAllocAsync, &address, 1024, nullptr);
  CALL(cuMemFree_v2, 0);
  CALL(cuMemFree_v2, 4096);
  CALL(cuMemGetInfo_v2, &bytes, &bytes);
  CALL(cuMemHostAlloc, &host, 1024, 0);
  CALL(cuMemAllocHost_v2, &host, 1024);
  CALL(cuMemFreeHost, bytes_of_host);
  CALL(cuMemHostRegister_v2, bytes_of_host, sizeof bytes_of_host, 0);
  CALL(cuMemcpyHtoD_v2, 4096, bytes_of_host, 4);
  CALL(cuMemcpy, 4096, 8192, 4);
  CALL(cuMemsetD8_v2, 4096, 0, 4);
  CALL(cuMemsetD32Async, 4096, 0, 4, nullptr);
  CALL(cuMemGetAddressRange_v2, &address, &bytes, 4096);
  CALL(cuModuleLoadData, &module, kKernels);
  CALL(cuStreamCreate, &stream, 0);
  CALL(cuStreamCreateWithPriority, &stream, 0, 0);
  CALL(cuStreamSynchronize, nullptr);
  CALL(cuStreamQuery, nullptr);
  CALL(cuEventCreate, &event, 0);
  CALL(cuEventRecord, nullptr, nullptr);
  CALL(cuLaunchKernel, nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  CALL(cuLaunchHostFunc, nullptr, nullptr, nullptr);
  CALL(cuCtxSynchronize);
  CALL(cuCtxGetDevice, &device);
  CALL(cuCtxGetFlags, &flags);
  CALL(cuCtxGetLimit, &bytes, CU_LIMIT_STACK_SIZE);
  CALL(cuCtxGetStreamPriorityRange, &low, &high);
}

void calls_that_do_not(Run& run) {
  CUcontext context = nullptr;
  CUgraph graph = nullptr;
  CUdeviceptr address = 0;
  unsigned flags = 0;
  unsigned version = 0;
  int active = 0;
  size_t bytes = 0;
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  CUmemoryPool pool = nullptr;
  CALL(cuCtxGetCurrent, &context);
  run.value("context is null", context == nullptr);
  CALL(cuCtxSetCurrent, nullptr);
  CALL(cuCtxPopCurrent_v2, &context);
  CALL(cuCtxGetApiVersion, nullptr, &version);
  CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  run.value("active", active);
  CALL(cuDeviceTotalMem_v2, &bytes, 0);
  CALL(cuGraphCreate, &graph, 0);
  CALL(cuGraphDestroy, graph);
  CALL(cuModuleGetLoadingMode, &mode);
  run.value("mode", static_cast<int>(mode));
  CALL(cuMemAddressReserve, &address, 2 * kMiB, 0, 0, 0);
  CALL(cuMemAddressFree, address, 2 * kMiB);
  CALL(cuDeviceGetDefaultMemPool, &pool, 0);
  run.value("pool is null", pool == nullptr);
}

}  // namespace

void no_context(Run& run) {
  SETUP(cuInit, 0);
  run.heading("calls that need a context");
  calls_that_need_a_context(run);
  run.heading("calls that do not");
  calls_that_do_not(run);
}

}  // namespace nvshare::conformance
