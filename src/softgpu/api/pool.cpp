#include <algorithm>
#include <cstring>

#include "softgpu/api/api.h"
#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/graph.h"
#include "softgpu/runtime/memory_ops.h"

// Memory in stream order, and the pools it comes from.
namespace nvshare::softgpu {
namespace {

std::size_t at(int device) {
  return static_cast<std::size_t>(device);
}

void need_default_pool(Runtime& rt, int device) {
  auto& pool = rt.default_pool[at(device)];
  if (pool) return;
  pool = new_pool(rt, device);
  pool->standard = true;
  rt.current_pool[at(device)] = pool;
}

CUresult find(Call& call, CUmemoryPool handle, std::shared_ptr<Pool>& out) {
  SOFTGPU_TRY(call.ready());
  out = call.rt.pools.find(handle);
  return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Memory of a pool in a stream that is not captured, while another is.
CUresult not_beside_capture(Call& call, const std::shared_ptr<Stream>& stream) {
  return stream->capture ? CUDA_SUCCESS : call.no_unsafe_capture();
}

// In a capture, memory comes from a node of the graph.
CUresult capture_allocation(Call& call, const std::shared_ptr<Stream>& stream, std::size_t bytes,
                            int device, CUdeviceptr* address) {
  if (stream->capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  Runtime& rt = call.rt;
  AllocTask task;
  SOFTGPU_TRY(new_graph_piece(rt, bytes, device, task.piece));
  task.params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  task.params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  task.params.bytesize = bytes;
  task.params.dptr = task.piece->piece.address;
  *address = task.params.dptr;
  stream->capture->allocated.insert(task.params.dptr);
  return capture_task(call, stream, std::move(task));
}

CUresult allocate(Call& call, CUdeviceptr* address, std::size_t bytes,
                  const std::shared_ptr<Pool>& pool, CUstream stream) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (target->legacy) SOFTGPU_TRY(no_implicit_capture(*call.ctx));
  SOFTGPU_TRY(not_beside_capture(call, target));
  if (bytes == 0) {
    *address = 0;
    return CUDA_SUCCESS;
  }
  if (target->capture) return capture_allocation(call, target, bytes, pool->device, address);
  std::uint64_t base = 0;
  SOFTGPU_TRY(allocate_from_pool(call, pool, bytes, base));
  *address = base;
  return CUDA_SUCCESS;
}

}  // namespace

SOFTGPU_API(cuMemAllocAsync)(CUdeviceptr* address, size_t bytes, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  need_default_pool(call.rt, call.ctx->device);
  return allocate(call, address, bytes, call.rt.current_pool[at(call.ctx->device)], stream);
}

SOFTGPU_API(cuMemAllocFromPoolAsync)
(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  SOFTGPU_TRY(not_beside_capture(call, target));
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, pool, found));
  return allocate(call, address, bytes, found, stream);
}

SOFTGPU_API(cuMemFreeAsync)(CUdeviceptr address, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (target->legacy) SOFTGPU_TRY(no_implicit_capture(*call.ctx));
  if (target->capture) {
    if (target->capture->allocated.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
    return capture_task(call, target, FreeTask{address});
  }
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (address == 0) return CUDA_SUCCESS;
  const auto found = call.rt.addresses.allocations.find(address);
  if (found == call.rt.addresses.allocations.end() || found->second.global ||
      (found->second.graph && call.rt.graph_live.count(address) == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MemoryKind kind = found->second.kind;
  if (kind != MemoryKind::kPool && kind != MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  // An empty task in the stream; what it frees, it frees when it is done.
  SOFTGPU_TRY(enqueue(call, target, EmptyTask{}));
  Op op;
  op.device = call.ctx->device;
  op.context = call.ctx;
  op.done = [&rt = call.rt, address](Nanos) {
    if (free_graph_memory(rt, address)) return;
    const auto still = rt.addresses.allocations.find(address);
    if (still == rt.addresses.allocations.end()) return;
    if (still->second.kind == MemoryKind::kPool) {
      return_to_pool(rt, address);
    } else {
      free_allocation(rt, address);
    }
  };
  target->last = call.rt.submit(call.lock, target->last.lane(), std::move(op), {});
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolCreate)(CUmemoryPool* pool, const CUmemPoolProps* pool_props) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (pool == nullptr || pool_props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (pool_props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const auto type = pool_props->location.type;
  int device = 0;
  if (type == CU_MEM_LOCATION_TYPE_DEVICE) {
    device = pool_props->location.id;
    if (call.device(device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  } else if (type != CU_MEM_LOCATION_TYPE_HOST && type != CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const unsigned types = pool_props->handleTypes;
  if ((types & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC}) !=
      0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SOFTGPU_TRY(call.no_unsafe_capture());
  auto made = new_pool(call.rt, device);
  made->props = *pool_props;
  made->on_device = type == CU_MEM_LOCATION_TYPE_DEVICE;
  made->exportable = types != 0;
  *pool = made->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolDestroy)(CUmemoryPool pool) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.no_unsafe_capture());
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, pool, found));
  if (found->standard) return CUDA_ERROR_INVALID_VALUE;
  call.rt.pump(call.lock);
  for (auto& current : call.rt.current_pool) {
    if (current == found) current = call.rt.default_pool[at(found->device)];
  }
  call.rt.pools.remove(pool);
  trim_pool(call.rt, *found, 0);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolTrimTo)(CUmemoryPool pool, size_t min_bytes_to_keep) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.no_unsafe_capture());
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, pool, found));
  call.rt.pump(call.lock);
  trim_pool(call.rt, *found, min_bytes_to_keep);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolGetAttribute)(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  Call call;
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, pool, found));
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  call.rt.pump(call.lock);
  auto* wide = static_cast<std::uint64_t*>(value);
  switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = found->reuse[attr - 1];
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *wide = found->threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *wide = found->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *wide = found->reserved_high;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *wide = found->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *wide = found->used_high;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API(cuMemPoolSetAttribute)(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  Call call;
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, pool, found));
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* wide = static_cast<const std::uint64_t*>(value);
  switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      found->reuse[attr - 1] = *static_cast<const int*>(value) != 0 ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      found->threshold = *wide;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (*wide != 0) return CUDA_ERROR_INVALID_VALUE;
      found->reserved_high = found->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*wide != 0) return CUDA_ERROR_INVALID_VALUE;
      found->used_high = found->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SOFTGPU_API(cuMemPoolSetAccess)(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  Call call;
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, pool, found));
  if (map == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    SOFTGPU_TRY(call.device(map[i].location.id));
    // The device that the memory is on cannot be shut out.
    if (map[i].location.id == found->device && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  for (size_t i = 0; i < count; ++i) found->access[map[i].location.id] = map[i].flags;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolGetAccess)
(CUmemAccess_flags* flags, CUmemoryPool mem_pool, CUmemLocation* location) {
  Call call;
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, mem_pool, found));
  if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SOFTGPU_TRY(call.device(location->id));
  const auto entry = found->access.find(location->id);
  *flags = entry == found->access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : entry->second;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetDefaultMemPool)(CUmemoryPool* pool_out, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  need_default_pool(call.rt, device);
  *pool_out = call.rt.default_pool[at(device)]->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetMemPool)(CUmemoryPool* pool, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  need_default_pool(call.rt, device);
  *pool = call.rt.current_pool[at(device)]->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceSetMemPool)(CUdevice device, CUmemoryPool pool) {
  Call call;
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  SOFTGPU_TRY(find(call, pool, found));
  if (found->device != device || !found->on_device) return CUDA_ERROR_INVALID_VALUE;
  call.rt.current_pool[at(device)] = found;
  return CUDA_SUCCESS;
}

namespace {

CUresult pool_device(Call& call, const CUmemLocation* location, CUmemAllocationType type) {
  SOFTGPU_TRY(call.ready());
  if (location == nullptr || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return call.device(location->id);
}

}  // namespace

SOFTGPU_API(cuMemGetDefaultMemPool)
(CUmemoryPool* pool_out, CUmemLocation* location, CUmemAllocationType type) {
  Call call;
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(pool_device(call, location, type));
  need_default_pool(call.rt, location->id);
  *pool_out = call.rt.default_pool[at(location->id)]->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemGetMemPool)
(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  Call call;
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(pool_device(call, location, type));
  need_default_pool(call.rt, location->id);
  *pool = call.rt.current_pool[at(location->id)]->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemSetMemPool)
(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  Call call;
  SOFTGPU_TRY(pool_device(call, location, type));
  std::shared_ptr<Pool> found;
  SOFTGPU_TRY(find(call, pool, found));
  if (found->device != location->id || !found->on_device) return CUDA_ERROR_INVALID_VALUE;
  call.rt.current_pool[at(location->id)] = found;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
