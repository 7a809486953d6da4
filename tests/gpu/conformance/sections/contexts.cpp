// Primary contexts, created contexts and the stack of them.

#include <thread>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

void primary_context(Run& run) {
  SETUP(cuInit, 0);
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  CUcontext current = nullptr;
  unsigned flags = 99;
  int active = 99;
  CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  run.value("flags", flags);
  run.value("active", active);
  CALL(cuDevicePrimaryCtxGetState, 0, nullptr, nullptr);
  CALL(cuDevicePrimaryCtxGetState, 99, &flags, &active);
  CALL(cuDevicePrimaryCtxRelease_v2, 0);
  CALL(cuDevicePrimaryCtxSetFlags_v2, 0, CU_CTX_SCHED_BLOCKING_SYNC);
  CALL(cuDevicePrimaryCtxSetFlags_v2, 0, 0x1000);
  CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  run.value("flags", flags);
  CALL(cuDevicePrimaryCtxRetain, &first, 0);
  CALL(cuDevicePrimaryCtxRetain, &second, 0);
  run.value("the same context", first == second);
  CALL(cuDevicePrimaryCtxRetain, nullptr, 0);
  CALL(cuDevicePrimaryCtxRetain, &second, 99);
  CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  run.value("active", active);
  CALL(cuCtxGetCurrent, &current);
  run.value("retaining makes it current", current == first);
  CALL(cuDevicePrimaryCtxSetFlags_v2, 0, CU_CTX_SCHED_YIELD);
  CALL(cuCtxSetCurrent, first);
  CALL(cuCtxGetFlags, &flags);
  run.value("flags", flags);
  CALL(cuCtxDestroy_v2, first);
  CALL(cuDevicePrimaryCtxRelease_v2, 0);
  CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  run.value("active after one release of two", active);
  CALL(cuDevicePrimaryCtxRelease_v2, 0);
  CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  run.value("active after two releases of two", active);
  CALL(cuDevicePrimaryCtxRelease_v2, 0);
  CALL(cuCtxGetCurrent, &current);
  run.value("still current", current == first);
  CUdeviceptr address = 0;
  CALL(cuMemAlloc_v2, &address, 1024);
  CALL(cuDevicePrimaryCtxRetain, &second, 0);
  run.value("retained again, the same handle", second == first);
  CALL(cuCtxSetCurrent, second);
  CALL(cuMemAlloc_v2, &address, 1024);
  CALL(cuDevicePrimaryCtxReset_v2, 0);
  CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  run.value("active after reset", active);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAlloc_v2, &address, 1024);
}

namespace {

void create_in_every_version(Run& run) {
  CUcontext context = nullptr;
  CUcontext current = nullptr;
  CUexecAffinityParam affinity = {};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  affinity.param.smCount.val = 2;
  CUctxCreateParams params = {};
  unsigned version = 0;
  CALL(cuCtxCreate_v2, &context, CU_CTX_SCHED_SPIN, 0);
  CALL(cuCtxGetApiVersion, context, &version);
  run.value("api version", version);
  CALL(cuCtxDestroy_v2, context);
  CALL(cuCtxCreate_v3, &context, nullptr, 0, CU_CTX_SCHED_AUTO, 0);
  CALL(cuCtxGetApiVersion, context, &version);
  run.value("api version", version);
  CALL(cuCtxDestroy_v2, context);
  CALL(cuCtxCreate_v3, &context, &affinity, 1, CU_CTX_SCHED_AUTO, 0);
  CALL(cuCtxCreate_v4, &context, nullptr, CU_CTX_SCHED_AUTO, 0);
  CALL(cuCtxGetApiVersion, context, &version);
  run.value("api version", version);
  CALL(cuCtxDestroy_v2, context);
  CALL(cuCtxCreate_v4, &context, &params, CU_CTX_SCHED_AUTO, 0);
  CALL(cuCtxDestroy_v2, context);
  CALL(cuCtxCreate, &context, 0, 0);
  CALL(cuCtxGetApiVersion, context, &version);
  run.value("api version", version);
  CALL(cuCtxDestroy, context);
  CALL(cuCtxGetCurrent, &current);
  run.value("nothing is current", current == nullptr);
  CALL(cuCtxCreate_v2, &context, 0x4000, 0);
  CALL(cuCtxCreate_v2, &context, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD, 0);
  CALL(cuCtxCreate_v2, &context, 0, 99);
  CALL(cuCtxCreate_v2, nullptr, 0, 0);
}

void stack(Run& run) {
  CUcontext one = nullptr;
  CUcontext two = nullptr;
  CUcontext got = nullptr;
  CALL(cuCtxCreate_v2, &one, 0, 0);
  CALL(cuCtxCreate_v2, &two, 0, 0);
  CALL(cuCtxGetCurrent, &got);
  run.value("the second is current", got == two);
  CALL(cuCtxPopCurrent_v2, &got);
  run.value("popped the second", got == two);
  CALL(cuCtxGetCurrent, &got);
  run.value("the first is current", got == one);
  CALL(cuCtxPushCurrent_v2, two);
  CALL(cuCtxPushCurrent_v2, two);
  CALL(cuCtxPushCurrent_v2, nullptr);
  CALL(cuCtxPopCurrent_v2, nullptr);
  CALL(cuCtxSetCurrent, one);
  CALL(cuCtxPopCurrent_v2, &got);
  run.value("popped the first, set in place of the second", got == one);
  CALL(cuCtxGetCurrent, &got);
  run.value("the first is below it", got == one);
  CALL(cuCtxSetCurrent, nullptr);
  CALL(cuCtxGetCurrent, &got);
  run.value("current is null", got == nullptr);
  CALL(cuCtxPopCurrent_v2, &got);
  CALL(cuCtxPopCurrent_v2, &got);
  CALL(cuCtxGetCurrent, nullptr);
  CALL(cuCtxDestroy_v2, one);
  CALL(cuCtxDestroy_v2, two);
  CALL(cuCtxDestroy_v2, nullptr);
}

void destroyed_while_below(Run& run) {
  CUcontext one = nullptr;
  CUcontext two = nullptr;
  CUcontext got = nullptr;
  SETUP(cuCtxCreate_v2, &one, 0, 0);
  SETUP(cuCtxCreate_v2, &two, 0, 0);
  CALL(cuCtxDestroy_v2, one);
  CALL(cuCtxPopCurrent_v2, &got);
  run.value("popped the second", got == two);
  CALL(cuCtxGetCurrent, &got);
  run.value("null is current, or the destroyed one", got == nullptr ? "null" : "the destroyed one");
  CALL(cuCtxSynchronize);
  CALL(cuCtxPopCurrent_v2, &got);
  CALL(cuCtxDestroy_v2, two);
}

void questions(Run& run) {
  CUcontext context = nullptr;
  unsigned flags = 0;
  CUdevice device = -1;
  int low = 99;
  int high = 99;
  unsigned long long id = 0;
  unsigned version = 0;
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_SHARED;
  CUsharedconfig banks = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  CUexecAffinityParam affinity = {};
  SETUP(cuCtxCreate_v2, &context, CU_CTX_MAP_HOST | CU_CTX_SCHED_BLOCKING_SYNC, 0);
  CALL(cuCtxGetFlags, &flags);
  run.value("flags", flags);
  CALL(cuCtxSetFlags, CU_CTX_SCHED_SPIN);
  CALL(cuCtxGetFlags, &flags);
  run.value("flags", flags);
  CALL(cuCtxSetFlags, 0x4000);
  CALL(cuCtxGetFlags, nullptr);
  CALL(cuCtxGetDevice, &device);
  run.value("device", device);
  CALL(cuCtxGetDevice, nullptr);
  CALL(cuCtxGetStreamPriorityRange, &low, &high);
  run.value("lowest", low);
  run.value("highest", high);
  CALL(cuCtxGetStreamPriorityRange, nullptr, nullptr);
  CALL(cuCtxGetId, context, &id);
  CALL(cuCtxGetId, nullptr, &id);
  CALL(cuCtxGetApiVersion, nullptr, &version);
  CALL(cuCtxGetApiVersion, context, nullptr);
  CALL(cuCtxGetCacheConfig, &cache);
  run.value("cache", static_cast<int>(cache));
  CALL(cuCtxSetCacheConfig, CU_FUNC_CACHE_PREFER_L1);
  CALL(cuCtxGetSharedMemConfig, &banks);
  run.value("banks", static_cast<int>(banks));
  CALL(cuCtxGetExecAffinity, &affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT);
  CALL(cuCtxResetPersistingL2Cache);
  CALL(cuCtxSynchronize);
  CALL(cuCtxEnablePeerAccess, context, 0);
  CALL(cuCtxDisablePeerAccess, context);
  CALL(cuCtxDestroy_v2, context);
}

void limits(Run& run) {
  CUcontext context = nullptr;
  SETUP(cuCtxCreate_v2, &context, 0, 0);
  size_t value = 0;
  const auto no_such_limit = static_cast<CUlimit>(99);
  CALL(cuCtxGetLimit, &value, CU_LIMIT_STACK_SIZE);
  run.value("stack", value);
  CALL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 4096);
  CALL(cuCtxGetLimit, &value, CU_LIMIT_STACK_SIZE);
  run.value("stack", value);
  CALL(cuCtxGetLimit, &value, CU_LIMIT_PRINTF_FIFO_SIZE);
  run.value("printf fifo", value);
  CALL(cuCtxGetLimit, &value, CU_LIMIT_MALLOC_HEAP_SIZE);
  run.value("malloc heap", value);
  CALL(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, 16 * kMiB);
  CALL(cuCtxGetLimit, &value, CU_LIMIT_MALLOC_HEAP_SIZE);
  run.value("malloc heap", value);
  CALL(cuCtxGetLimit, &value, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT);
  run.value("pending launches", value);
  CALL(cuCtxGetLimit, &value, CU_LIMIT_MAX_L2_FETCH_GRANULARITY);
  run.value("L2 fetch granularity", value);
  CALL(cuCtxGetLimit, &value, no_such_limit);
  CALL(cuCtxSetLimit, no_such_limit, 1);
  CALL(cuCtxGetLimit, nullptr, CU_LIMIT_STACK_SIZE);
  CALL(cuCtxDestroy_v2, context);
}

// What belongs to one context, used while another is current.
void foreign(Run& run) {
  CUcontext one = nullptr;
  CUcontext two = nullptr;
  SETUP(cuCtxCreate_v2, &one, 0, 0);
  const CUdeviceptr address = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  const CUevent event = new_event(run);
  const Kernels kernels = load_kernels(run);
  SETUP(cuCtxCreate_v2, &two, 0, 0);
  const CUstream own = new_stream(run);
  CUcontext got = nullptr;
  CUfunction function = nullptr;
  char bytes[16] = {};
  run.heading("another context's memory, stream, event and module");
  CALL(cuMemcpyHtoD_v2, address, bytes, sizeof bytes);
  CALL(cuMemsetD32_v2, address, 7, 4);
  CALL(cuStreamQuery, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamGetCtx, stream, &got);
  run.value("is the first context", got == one);
  CALL(cuMemsetD32Async, address, 7, 4, stream);
  CALL(cuEventRecord, event, stream);
  CALL(cuEventRecord, event, own);
  SETUP(cuStreamSynchronize, stream);
  CALL(cuEventQuery, event);
  CALL(cuEventSynchronize, event);
  CALL(cuStreamWaitEvent, own, event, 0);
  CALL(cuModuleGetFunction, &function, kernels.module, "noop");
  CALL(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, own, nullptr, nullptr);
  CALL(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  CALL(cuModuleUnload, kernels.module);
  CALL(cuMemFree_v2, address);
  CALL(cuEventDestroy_v2, event);
  CALL(cuStreamDestroy_v2, stream);
  CALL(cuCtxDestroy_v2, one);
  CALL(cuCtxDestroy_v2, two);
}

}  // namespace

void contexts(Run& run) {
  SETUP(cuInit, 0);
  create_in_every_version(run);
  run.heading("stack");
  stack(run);
  run.heading("destroyed while another is above it");
  destroyed_while_below(run);
  run.heading("questions");
  questions(run);
  run.heading("limits");
  limits(run);
  foreign(run);
}

void threads(Run& run) {
  const Card card = use_card(run);
  const CUdeviceptr address = device_memory(run, kMiB);
  std::thread([&] {
    CUcontext current = card.context;
    run.heading("on a new thread");
    CALL(cuCtxGetCurrent, &current);
    run.value("current is null", current == nullptr);
    CALL(cuMemFree_v2, address);
    CALL(cuStreamSynchronize, nullptr);
    CALL(cuCtxPushCurrent_v2, card.context);
    CALL(cuMemsetD32_v2, address, 1, 4);
    CALL(cuMemFree_v2, address);
    CALL(cuCtxPopCurrent_v2, &current);
    run.value("is the context", current == card.context);
  }).join();
  CUcontext current = nullptr;
  run.heading("on the first thread");
  CALL(cuCtxGetCurrent, &current);
  run.value("is the context", current == card.context);
  CALL(cuMemFree_v2, address);
}

}  // namespace nvshare::conformance
