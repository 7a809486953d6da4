#include "softgpu/api/copy_task.h"

// Setting memory: 8, 16 and 32 bits, rows of them.
namespace nvshare::softgpu {
namespace {

struct Set {
  CUdeviceptr dst;
  std::size_t pitch;
  unsigned value;
  unsigned size;
  std::size_t width;
  std::size_t height;
};

CUresult start(Call& call, const Set& set, CUstream stream) {
  SOFTGPU_TRY(call.context());
  const CUDA_MEMSET_NODE_PARAMS params{set.dst,  set.pitch, set.value,
                                       set.size, set.width, set.height};
  SOFTGPU_TRY(check_memset(call, params));
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (set.width == 0 || set.height == 0) return CUDA_SUCCESS;
  return enqueue(call, target, MemsetTask{params});
}

CUresult set_async(const Set& set, CUstream stream) {
  Call call;
  return start(call, set, stream);
}

// The host does not wait for device memory to be set; for its own memory it does.
CUresult set_sync(const Set& set) {
  Call call;
  SOFTGPU_TRY(call.context());
  SOFTGPU_TRY(start(call, set, nullptr));
  const Allocation* allocation = call.rt.addresses.find(set.dst);
  const bool host = allocation != nullptr && (allocation->kind == MemoryKind::kHostPinned ||
                                              allocation->kind == MemoryKind::kHostRegistered);
  if (!host) return CUDA_SUCCESS;
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(nullptr, target));
  return finish_stream(call, target);
}

}  // namespace

SOFTGPU_API(cuMemsetD8_v2)(CUdeviceptr dst, unsigned char value, size_t count) {
  return set_sync({dst, 0, value, 1, count, 1});
}
SOFTGPU_API(cuMemsetD16_v2)(CUdeviceptr dst, unsigned short value, size_t count) {
  return set_sync({dst, 0, value, 2, count, 1});
}
SOFTGPU_API(cuMemsetD32_v2)(CUdeviceptr dst, unsigned value, size_t count) {
  return set_sync({dst, 0, value, 4, count, 1});
}
SOFTGPU_API(cuMemsetD2D8_v2)
(CUdeviceptr dst, size_t dst_pitch, unsigned char value, size_t width, size_t height) {
  return set_sync({dst, dst_pitch, value, 1, width, height});
}
SOFTGPU_API(cuMemsetD2D16_v2)
(CUdeviceptr dst, size_t dst_pitch, unsigned short value, size_t width, size_t height) {
  return set_sync({dst, dst_pitch, value, 2, width, height});
}
SOFTGPU_API(cuMemsetD2D32_v2)
(CUdeviceptr dst, size_t dst_pitch, unsigned value, size_t width, size_t height) {
  return set_sync({dst, dst_pitch, value, 4, width, height});
}
SOFTGPU_API(cuMemsetD8Async)
(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
  return set_async({dst, 0, value, 1, count, 1}, stream);
}
SOFTGPU_API(cuMemsetD16Async)
(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream) {
  return set_async({dst, 0, value, 2, count, 1}, stream);
}
SOFTGPU_API(cuMemsetD32Async)(CUdeviceptr dst, unsigned value, size_t count, CUstream stream) {
  return set_async({dst, 0, value, 4, count, 1}, stream);
}
SOFTGPU_API(cuMemsetD2D8Async)
(CUdeviceptr dst, size_t dst_pitch, unsigned char value, size_t width, size_t height,
 CUstream stream) {
  return set_async({dst, dst_pitch, value, 1, width, height}, stream);
}
SOFTGPU_API(cuMemsetD2D16Async)
(CUdeviceptr dst, size_t dst_pitch, unsigned short value, size_t width, size_t height,
 CUstream stream) {
  return set_async({dst, dst_pitch, value, 2, width, height}, stream);
}
SOFTGPU_API(cuMemsetD2D32Async)
(CUdeviceptr dst, size_t dst_pitch, unsigned value, size_t width, size_t height, CUstream stream) {
  return set_async({dst, dst_pitch, value, 4, width, height}, stream);
}

}  // namespace nvshare::softgpu
