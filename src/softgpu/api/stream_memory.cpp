#include "softgpu/api/stream_memory.h"

#include "softgpu/api/api.h"

// Streams that wait for and write values in memory.
namespace nvshare::softgpu {

CUresult check_memory_ops(Call& call, const CUstreamBatchMemOpParams* params, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    const auto& wait = params[i].waitValue;  // the same layout as writeValue
    switch (params[i].operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        if ((wait.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) != 0) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        if ((wait.flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) != 0) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        continue;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool wide = params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                      params[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    const unsigned size = wide ? 8 : 4;
    if (wait.address % size != 0 || !call.rt.addresses.covers(wait.address, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamBatchMemOp_v2)
(CUstream stream, unsigned count, CUstreamBatchMemOpParams* param_array, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (count > 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  if (param_array == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  SOFTGPU_TRY(check_memory_ops(call, param_array, count));
  MemOpTask task;
  task.operations.assign(param_array, param_array + count);
  task.context = call.ctx->handle;
  return enqueue(call, target, std::move(task));
}

namespace {

template <typename Value>
CUresult one(CUstreamBatchMemOpType operation, CUstream stream, CUdeviceptr address, Value value,
             unsigned flags) {
  CUstreamBatchMemOpParams params{};
  params.operation = operation;
  params.waitValue.address = address;
  params.waitValue.flags = flags;
  if constexpr (sizeof(Value) == 8) {
    params.waitValue.value64 = value;
  } else {
    params.waitValue.value = value;
  }
  return impl_cuStreamBatchMemOp_v2(stream, 1, &params, 0);
}

}  // namespace

SOFTGPU_API(cuStreamWaitValue32_v2)
(CUstream stream, CUdeviceptr addr, uint32_t value, unsigned flags) {
  return one(CU_STREAM_MEM_OP_WAIT_VALUE_32, stream, addr, value, flags);
}
SOFTGPU_API(cuStreamWaitValue64_v2)
(CUstream stream, CUdeviceptr addr, uint64_t value, unsigned flags) {
  return one(CU_STREAM_MEM_OP_WAIT_VALUE_64, stream, addr, value, flags);
}
SOFTGPU_API(cuStreamWriteValue32_v2)
(CUstream stream, CUdeviceptr addr, uint32_t value, unsigned flags) {
  return one(CU_STREAM_MEM_OP_WRITE_VALUE_32, stream, addr, value, flags);
}
SOFTGPU_API(cuStreamWriteValue64_v2)
(CUstream stream, CUdeviceptr addr, uint64_t value, unsigned flags) {
  return one(CU_STREAM_MEM_OP_WRITE_VALUE_64, stream, addr, value, flags);
}

}  // namespace nvshare::softgpu
