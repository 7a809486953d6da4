// Smaller areas: user objects, linking, checkpoints, multicast, green contexts, what is rarely
// used.

#include <unistd.h>

#include <atomic>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void count_call(void* count) {
  ++*static_cast<std::atomic<int>*>(count);
}

void user_objects(Run& run) {
  CUuserObject object = nullptr;
  CUgraph graph = nullptr;
  std::atomic<int> destroyed{0};
  CALL(cuUserObjectCreate, &object, &destroyed, count_call, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  CALL(cuUserObjectRetain, object, 1);
  CALL(cuUserObjectRelease, object, 1);
  SETUP(cuGraphCreate, &graph, 0);
  CALL(cuGraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  CALL(cuGraphReleaseUserObject, graph, object, 1);
  for (int i = 0; i < 200 && destroyed.load() == 0; ++i) ::usleep(1000);
  run.value("destroyed", destroyed.load());
  CALL(cuUserObjectCreate, &object, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  CALL(cuUserObjectCreate, &object, &destroyed, count_call, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  CALL(cuUserObjectCreate, &object, &destroyed, count_call, 1, 0);
  CALL(cuGraphDestroy, graph);
}

void linking(Run& run) {
  CUlinkState state = nullptr;
  void* image = nullptr;
  size_t bytes = 0;
  CUmodule module = nullptr;
  char text[] = "kernels";
  auto* ptx = const_cast<char*>(kKernels);
  CALL(cuLinkCreate_v2, 0, nullptr, nullptr, &state);
  CALL(cuLinkAddData_v2, state, CU_JIT_INPUT_PTX, ptx, sizeof kKernels, text, 0, nullptr, nullptr);
  CALL(cuLinkComplete, state, &image, &bytes);
  run.value("has an image", image != nullptr && bytes > 0);
  CALL(cuModuleLoadData, &module, image);
  CALL(cuLinkDestroy, state);
}

void checkpoints(Run& run) {
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  int thread = 0;
  const int self = ::getpid();
  CALL(cuCheckpointProcessGetState, self, &state);
  run.value("state", static_cast<int>(state));
  CALL(cuCheckpointProcessGetState, 0x7ffffff0, &state);
  CALL(cuCheckpointProcessGetState, self, nullptr);
  CALL(cuCheckpointProcessGetRestoreThreadId, 0x7ffffff0, &thread);
  CALL(cuCheckpointProcessLock, 0x7ffffff0, nullptr);
  CALL(cuCheckpointProcessUnlock, 0x7ffffff0, nullptr);
}

void green_contexts(Run& run) {
  CUdevResource resource = {};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CALL(cuDeviceGetDevResource, 0, &resource, CU_DEV_RESOURCE_TYPE_SM);
  run.value("type", static_cast<int>(resource.type));
  CALL(cuDevResourceGenerateDesc, &description, &resource, 1);
  CALL(cuGreenCtxCreate, &green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
  CALL(cuCtxFromGreenCtx, &context, green);
  CALL(cuGreenCtxStreamCreate, &stream, green, CU_STREAM_NON_BLOCKING, 0);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamDestroy_v2, stream);
  CALL(cuGreenCtxDestroy, green);
  CALL(cuDeviceGetDevResource, 0, &resource, CU_DEV_RESOURCE_TYPE_INVALID);
}

void rarely_used(Run& run) {
  CUmulticastObjectProp object = {};
  object.numDevices = 2;
  object.size = 2 * kMiB;
  object.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  const void* table = nullptr;
  const CUuuid unknown = {};
  int fd = -1;
  const CUdeviceptr address = device_memory(run, 2 * kMiB);
  CALL(cuMulticastCreate, nullptr, &object);
  CALL(cuMulticastCreate, &handle, nullptr);
  object.numDevices = 0;
  CALL_WHERE("numDevices = 0", cuMulticastGetGranularity, &bytes, &object,
             CU_MULTICAST_GRANULARITY_MINIMUM);
  CALL(cuGetExportTable, &table, &unknown);
  CALL(cuGetExportTable, nullptr, &unknown);
  CALL(cuGetExportTable, &table, nullptr);
  CALL(cuMemGetHandleForAddressRange, &fd, 0, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  CALL(cuMemGetHandleForAddressRange, nullptr, address, 2 * kMiB,
       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  CALL(cuProfilerStart);
  CALL(cuProfilerStop);
  CALL(cuFlushGPUDirectRDMAWrites, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
  CALL(cuCtxAttach, nullptr, 0);
  CALL(cuCtxDetach, nullptr);
  CUexternalMemory external = nullptr;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {};
  CALL(cuImportExternalMemory, &external, &description);
  CALL(cuImportExternalMemory, &external, nullptr);
}

}  // namespace

void others(Run& run) {
  use_card(run);
  run.heading("user objects");
  user_objects(run);
  run.heading("linking");
  linking(run);
  run.heading("checkpoints");
  checkpoints(run);
  run.heading("green contexts");
  green_contexts(run);
  run.heading("rarely used");
  rarely_used(run);
}

}  // namespace nvshare::conformance
