#include <cstring>

#include "softgpu/api/copy_task.h"

// Copies: consecutive, boxes, arrays, peers, batches.
namespace nvshare::softgpu {
namespace {

// Bytes of ordinary host memory up to this size are taken at the call, as the driver stages them.
constexpr double kStagedUpTo = 64 * 1024;

std::uint64_t number(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

bool ordinary_host(const CopySide& side) {
  return side.type == CU_MEMORYTYPE_HOST && !side.pinned;
}

// Takes the source's bytes now, so that the caller may change them as soon as the call returns.
bool stage(CopyTask& task) {
  if (task.height != 1 || task.depth != 1) return false;
  task.staged = std::make_shared<std::vector<unsigned char>>(task.width);
  return safe_read(task.staged->data(), reinterpret_cast<const void*>(task.from.base), task.width);
}

// A copy in a stream. Ordinary host memory makes it wait, as it does on a real device.
CUresult copy_async(Call& call, CUstream stream, CopyTask task) {
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (task.bytes() == 0) return CUDA_SUCCESS;
  if (target->capture) return enqueue(call, target, std::move(task));
  const bool small = task.bytes() <= kStagedUpTo;
  bool wait = ordinary_host(task.to) && task.from.type != CU_MEMORYTYPE_HOST;
  if (ordinary_host(task.from) && task.to.type != CU_MEMORYTYPE_HOST) {
    if (!small || !stage(task)) {
      task.staged = nullptr;
      wait = true;
    }
  }
  SOFTGPU_TRY(enqueue(call, target, std::move(task)));
  return wait ? finish_stream(call, target) : CUDA_SUCCESS;
}

CUresult copy_sync(Call& call, CopyTask task) {
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(nullptr, target));
  if (task.bytes() == 0) return CUDA_SUCCESS;
  for (const CopySide* side : {&task.from, &task.to}) {
    // Memory of a graph is there while a launch of it has it allocated.
    const Allocation* allocation = call.rt.addresses.find(side->base);
    if (allocation != nullptr && allocation->graph &&
        call.rt.graph_live.count(allocation->base) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const bool device_only =
      task.from.type != CU_MEMORYTYPE_HOST && task.to.type != CU_MEMORYTYPE_HOST;
  SOFTGPU_TRY(enqueue(call, target, std::move(task)));
  // Within the device the host goes on at once.
  return device_only ? CUDA_SUCCESS : finish_stream(call, target);
}

struct Linear {
  std::uint64_t to;
  Expect to_kind;
  std::uint64_t from;
  Expect from_kind;
  std::size_t bytes;
};

CUresult linear_sync(const Linear& copy) {
  Call call;
  SOFTGPU_TRY(call.context());
  CopyTask task;
  SOFTGPU_TRY(
      make_linear_copy(call, copy.to, copy.to_kind, copy.from, copy.from_kind, copy.bytes, task));
  return copy_sync(call, std::move(task));
}

CUresult linear_async(const Linear& copy, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  CopyTask task;
  SOFTGPU_TRY(
      make_linear_copy(call, copy.to, copy.to_kind, copy.from, copy.from_kind, copy.bytes, task));
  return copy_async(call, stream, std::move(task));
}

CUresult box_sync(const CUDA_MEMCPY3D& copy) {
  Call call;
  SOFTGPU_TRY(call.context());
  CopyTask task;
  SOFTGPU_TRY(make_box_copy(call, copy, task));
  return copy_sync(call, std::move(task));
}

CUresult box_async(const CUDA_MEMCPY3D& copy, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  CopyTask task;
  SOFTGPU_TRY(make_box_copy(call, copy, task));
  return copy_async(call, stream, std::move(task));
}

// One side of a copy from or to a one-dimensional array.
CUDA_MEMCPY3D array_row(std::size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

void from_array(CUDA_MEMCPY3D& copy, CUarray array, std::size_t offset) {
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.srcXInBytes = offset;
}
void to_array(CUDA_MEMCPY3D& copy, CUarray array, std::size_t offset) {
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.dstXInBytes = offset;
}
void from_host(CUDA_MEMCPY3D& copy, const void* host) {
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
}
void to_host(CUDA_MEMCPY3D& copy, void* host) {
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host;
}
void from_device(CUDA_MEMCPY3D& copy, CUdeviceptr address) {
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = address;
}
void to_device(CUDA_MEMCPY3D& copy, CUdeviceptr address) {
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = address;
}

CUresult check_contexts(CUcontext one, CUcontext other) {
  Call call;
  SOFTGPU_TRY(call.ready());
  // Null means the current one.
  const auto good = [&](CUcontext handle) {
    return handle == nullptr || find_context(call.rt, handle) != nullptr;
  };
  return good(one) && good(other) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

SOFTGPU_API(cuMemcpy)(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return linear_sync({dst, Expect::kAny, src, Expect::kAny, bytes});
}
SOFTGPU_API(cuMemcpyAsync)(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return linear_async({dst, Expect::kAny, src, Expect::kAny, bytes}, stream);
}
SOFTGPU_API(cuMemcpyHtoD_v2)(CUdeviceptr dst, const void* src, size_t bytes) {
  return linear_sync({dst, Expect::kDevice, number(src), Expect::kHost, bytes});
}
SOFTGPU_API(cuMemcpyHtoDAsync_v2)
(CUdeviceptr dst, const void* src, size_t bytes, CUstream stream) {
  return linear_async({dst, Expect::kDevice, number(src), Expect::kHost, bytes}, stream);
}
SOFTGPU_API(cuMemcpyDtoH_v2)(void* dst, CUdeviceptr src, size_t bytes) {
  return linear_sync({number(dst), Expect::kHost, src, Expect::kDevice, bytes});
}
SOFTGPU_API(cuMemcpyDtoHAsync_v2)(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return linear_async({number(dst), Expect::kHost, src, Expect::kDevice, bytes}, stream);
}
SOFTGPU_API(cuMemcpyDtoD_v2)(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return linear_sync({dst, Expect::kDevice, src, Expect::kDevice, bytes});
}
SOFTGPU_API(cuMemcpyDtoDAsync_v2)
(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return linear_async({dst, Expect::kDevice, src, Expect::kDevice, bytes}, stream);
}

SOFTGPU_API(cuMemcpyPeer)
(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes) {
  SOFTGPU_TRY(check_contexts(dst_context, src_context));
  return linear_sync({dst, Expect::kDevice, src, Expect::kDevice, bytes});
}
SOFTGPU_API(cuMemcpyPeerAsync)
(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes,
 CUstream stream) {
  SOFTGPU_TRY(check_contexts(dst_context, src_context));
  return linear_async({dst, Expect::kDevice, src, Expect::kDevice, bytes}, stream);
}

SOFTGPU_API(cuMemcpyDtoA_v2)
(CUarray dst_array, size_t dst_offset, CUdeviceptr src, size_t bytes) {
  CUDA_MEMCPY3D copy = array_row(bytes);
  to_array(copy, dst_array, dst_offset);
  from_device(copy, src);
  return box_sync(copy);
}
SOFTGPU_API(cuMemcpyAtoD_v2)
(CUdeviceptr dst, CUarray src_array, size_t src_offset, size_t bytes) {
  CUDA_MEMCPY3D copy = array_row(bytes);
  to_device(copy, dst);
  from_array(copy, src_array, src_offset);
  return box_sync(copy);
}
SOFTGPU_API(cuMemcpyHtoA_v2)
(CUarray dst_array, size_t dst_offset, const void* src, size_t bytes) {
  CUDA_MEMCPY3D copy = array_row(bytes);
  to_array(copy, dst_array, dst_offset);
  from_host(copy, src);
  return box_sync(copy);
}
SOFTGPU_API(cuMemcpyHtoAAsync_v2)
(CUarray dst_array, size_t dst_offset, const void* src, size_t bytes, CUstream stream) {
  CUDA_MEMCPY3D copy = array_row(bytes);
  to_array(copy, dst_array, dst_offset);
  from_host(copy, src);
  return box_async(copy, stream);
}
SOFTGPU_API(cuMemcpyAtoH_v2)(void* dst, CUarray src_array, size_t src_offset, size_t bytes) {
  CUDA_MEMCPY3D copy = array_row(bytes);
  to_host(copy, dst);
  from_array(copy, src_array, src_offset);
  return box_sync(copy);
}
SOFTGPU_API(cuMemcpyAtoHAsync_v2)
(void* dst, CUarray src_array, size_t src_offset, size_t bytes, CUstream stream) {
  CUDA_MEMCPY3D copy = array_row(bytes);
  to_host(copy, dst);
  from_array(copy, src_array, src_offset);
  return box_async(copy, stream);
}
SOFTGPU_API(cuMemcpyAtoA_v2)
(CUarray dst_array, size_t dst_offset, CUarray src_array, size_t src_offset, size_t bytes) {
  CUDA_MEMCPY3D copy = array_row(bytes);
  to_array(copy, dst_array, dst_offset);
  from_array(copy, src_array, src_offset);
  return box_sync(copy);
}

SOFTGPU_API(cuMemcpy2D_v2)(const CUDA_MEMCPY2D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : box_sync(widen(*copy));
}
SOFTGPU_API(cuMemcpy2DUnaligned_v2)(const CUDA_MEMCPY2D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : box_sync(widen(*copy));
}
SOFTGPU_API(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : box_async(widen(*copy), stream);
}
SOFTGPU_API(cuMemcpy3D_v2)(const CUDA_MEMCPY3D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : box_sync(*copy);
}
SOFTGPU_API(cuMemcpy3DAsync_v2)(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : box_async(*copy, stream);
}
SOFTGPU_API(cuMemcpy3DPeer)(const CUDA_MEMCPY3D_PEER* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : box_sync(without_contexts(*copy));
}
SOFTGPU_API(cuMemcpy3DPeerAsync)(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : box_async(without_contexts(*copy), stream);
}

SOFTGPU_API(cuMemcpyBatchAsync_v2)
(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
 size_t* attrs_idxs, size_t num_attrs, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (attrs == nullptr || attrs_idxs == nullptr || num_attrs == 0 || num_attrs > count ||
      attrs_idxs[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; i < num_attrs; ++i) {
    const auto order = attrs[i].srcAccessOrder;
    const bool known =
        order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    if (!known || (i > 0 && attrs_idxs[i] <= attrs_idxs[i - 1])) return CUDA_ERROR_INVALID_VALUE;
  }
  // Not in the legacy default stream: a batch has no place in its implicit order.
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (target->legacy) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CopyTask> tasks(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    SOFTGPU_TRY(
        make_linear_copy(call, dsts[i], Expect::kAny, srcs[i], Expect::kAny, sizes[i], tasks[i]));
  }
  for (CopyTask& task : tasks) SOFTGPU_TRY(copy_async(call, stream, std::move(task)));
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemcpyBatchAsync)
(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
 size_t* attrs_idxs, size_t num_attrs, size_t* fail_idx, CUstream stream) {
  const CUresult result =
      impl_cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs, stream);
  if (result != CUDA_SUCCESS && fail_idx != nullptr) *fail_idx = SIZE_MAX;  // the call as a whole
  return result;
}

namespace {

CUresult operand(const CUmemcpy3DOperand& operand, CUDA_MEMCPY3D& copy, bool source) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const auto& array = operand.op.array;
    (source ? copy.srcMemoryType : copy.dstMemoryType) = CU_MEMORYTYPE_ARRAY;
    (source ? copy.srcArray : copy.dstArray) = array.array;
    (source ? copy.srcXInBytes : copy.dstXInBytes) = array.offset.x;
    (source ? copy.srcY : copy.dstY) = array.offset.y;
    (source ? copy.srcZ : copy.dstZ) = array.offset.z;
    return CUDA_SUCCESS;
  }
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
  const auto& pointer = operand.op.ptr;
  (source ? copy.srcMemoryType : copy.dstMemoryType) = CU_MEMORYTYPE_UNIFIED;
  (source ? copy.srcDevice : copy.dstDevice) = pointer.ptr;
  (source ? copy.srcPitch : copy.dstPitch) = pointer.rowLength;
  (source ? copy.srcHeight : copy.dstHeight) = pointer.layerHeight;
  return CUDA_SUCCESS;
}

}  // namespace

SOFTGPU_API(cuMemcpy3DBatchAsync_v2)
(size_t num_ops, CUDA_MEMCPY3D_BATCH_OP* op_list, unsigned long long flags, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (num_ops == 0 || op_list == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (target->legacy) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CopyTask> tasks(num_ops);
  for (std::size_t i = 0; i < num_ops; ++i) {
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = op_list[i].extent.width;
    copy.Height = op_list[i].extent.height;
    copy.Depth = op_list[i].extent.depth;
    SOFTGPU_TRY(operand(op_list[i].src, copy, true));
    SOFTGPU_TRY(operand(op_list[i].dst, copy, false));
    SOFTGPU_TRY(make_box_copy(call, copy, tasks[i]));
  }
  for (CopyTask& task : tasks) SOFTGPU_TRY(copy_async(call, stream, std::move(task)));
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemcpy3DBatchAsync)
(size_t num_ops, CUDA_MEMCPY3D_BATCH_OP* op_list, size_t* fail_idx, unsigned long long flags,
 CUstream stream) {
  const CUresult result = impl_cuMemcpy3DBatchAsync_v2(num_ops, op_list, flags, stream);
  if (result != CUDA_SUCCESS && fail_idx != nullptr) *fail_idx = SIZE_MAX;
  return result;
}

}  // namespace nvshare::softgpu
