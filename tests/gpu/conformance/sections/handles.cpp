// Handles that are null, or of things that are gone. Some drivers end the process on some of these;
// the line then says so, and the section goes on without that call.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

void null_handles(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;
  CUmodule module = nullptr;
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUmemAllocationProp properties = {};
  CUarray array = nullptr;
  size_t count = 0;
  unsigned number = 0;
  int value = 0;
  const char* name = nullptr;
  CALL(cuModuleGetFunction, &function, nullptr, "fill32");
  CALL(cuModuleGetGlobal_v2, &address, &count, nullptr, "table");
  CALL(cuModuleGetFunctionCount, &number, nullptr);
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr);
  CALL(cuFuncSetAttribute, nullptr, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024);
  CALL(cuFuncSetCacheConfig, nullptr, CU_FUNC_CACHE_PREFER_L1);
  CALL(cuFuncGetModule, &module, nullptr);
  CALL(cuFuncGetName, &name, nullptr);
  CALL(cuFuncGetParamInfo, nullptr, 0, &count, &count);
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &value, nullptr, 32, 0);
  CALL(cuLibraryGetKernel, &kernel, nullptr, "fill32");
  CALL(cuLibraryGetModule, &module, nullptr);
  CALL(cuKernelGetFunction, &function, nullptr);
  CALL(cuKernelGetName, &name, nullptr);
  CALL(cuGraphGetNodes, nullptr, nullptr, &count);
  CALL(cuGraphClone, &graph, nullptr);
  CALL(cuGraphNodeGetType, nullptr, &type);
  CALL(cuGraphDestroyNode, nullptr);
  CALL(cuGraphAddDependencies, nullptr, &node, &node, 1);
  CALL(cuGraphExecUpdate_v2, nullptr, nullptr, nullptr);
  CALL(cuGraphUpload, nullptr, nullptr);
  CALL(cuStreamWaitEvent, nullptr, nullptr, 0);
  CALL(cuMemGetAllocationPropertiesFromHandle, &properties, 0);
  CALL(cuMemMap, 0, 2 * kMiB, 0, 0, 0);
  CALL(cuMipmappedArrayGetLevel, &array, nullptr, 0);
  CALL(cuMipmappedArrayDestroy, nullptr);
  CALL(cuMemcpyHtoA_v2, nullptr, 0, &value, 4);
  CALL(cuCtxGetDevice_v2, &value, nullptr);
  CALL(cuCtxSynchronize_v2, nullptr);
  CALL(cuUserObjectRetain, nullptr, 1);
  CALL(cuUserObjectRelease, nullptr, 1);
  CALL(cuDestroyExternalMemory, nullptr);
  CALL(cuLinkDestroy, nullptr);
  CALL(cuCtxSynchronize);
  run.value("the kernels are still there", kernels.noop != nullptr);
}

void gone_streams(Run& run) {
  use_card(run);
  const CUdeviceptr address = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  SETUP(cuStreamDestroy_v2, stream);
  unsigned flags = 0;
  CALL(cuStreamQuery, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamGetFlags, stream, &flags);
  CALL(cuMemsetD32Async, address, 1, 16, stream);
  CALL(cuStreamDestroy_v2, stream);
}

void gone_events(Run& run) {
  use_card(run);
  const CUevent event = new_event(run);
  SETUP(cuEventDestroy_v2, event);
  CALL(cuEventQuery, event);
  CALL(cuEventSynchronize, event);
  CALL(cuEventRecord, event, nullptr);
  CALL(cuStreamWaitEvent, nullptr, event, 0);
  CALL(cuEventDestroy_v2, event);
}

void gone_modules(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  CUfunction function = nullptr;
  int value = 0;
  SETUP(cuModuleUnload, kernels.module);
  CALL(cuModuleGetFunction, &function, kernels.module, "fill32");
  CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernels.noop);
  CALL(cuModuleUnload, kernels.module);
}

void gone_contexts(Run& run) {
  SETUP(cuInit, 0);
  CUcontext context = nullptr;
  unsigned version = 0;
  SETUP(cuCtxCreate_v2, &context, 0, 0);
  SETUP(cuCtxDestroy_v2, context);
  // Making it current is left out: a real driver takes it, and whether it dies of it later is
  // chance.
  CALL(cuCtxGetApiVersion, context, &version);
  CALL(cuCtxDestroy_v2, context);
}

void gone_graphs(Run& run) {
  use_card(run);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  size_t count = 0;
  SETUP(cuGraphCreate, &graph, 0);
  SETUP(cuGraphAddEmptyNode, &node, graph, nullptr, 0);
  SETUP(cuGraphInstantiateWithFlags, &executable, graph, 0);
  SETUP(cuGraphExecDestroy, executable);
  SETUP(cuGraphDestroy, graph);
  CALL(cuGraphLaunch, executable, nullptr);
  CALL(cuGraphGetNodes, graph, nullptr, &count);
  CALL(cuGraphExecDestroy, executable);
  CALL(cuGraphDestroy, graph);
}

void gone_pools_and_arrays(Run& run) {
  use_card(run);
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUarray array = nullptr;
  CUDA_ARRAY_DESCRIPTOR description = {16, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  SETUP(cuMemPoolCreate, &pool, &properties);
  SETUP(cuMemPoolDestroy, pool);
  SETUP(cuArrayCreate_v2, &array, &description);
  SETUP(cuArrayDestroy, array);
  CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
  CALL(cuMemAllocFromPoolAsync, &address, kMiB, pool, nullptr);
  CALL(cuMemPoolDestroy, pool);
  CALL(cuArrayGetDescriptor_v2, &description, array);
  CALL(cuArrayDestroy, array);
}

}  // namespace nvshare::conformance
