#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "softgpu/api/api.h"
#include "softgpu/runtime/graph.h"
#include "softgpu/runtime/memory_ops.h"

// Plain, pitched, managed and host memory; memory of other processes.
namespace nvshare::softgpu {
namespace {

constexpr std::size_t kPitch = 512;
constexpr std::size_t kPage = 4096;

// Pages of the host's that are known to the device.
CUresult allocate_host(Call& call, std::size_t bytes, unsigned flags, MemoryKind kind,
                       std::uint64_t& base) {
  const std::uint64_t size = round_up(bytes, kPage);
  if (size < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.base = reinterpret_cast<std::uint64_t>(memory);
  allocation.bytes = bytes;
  allocation.kind = kind;
  allocation.device = call.ctx->device;
  allocation.context = call.ctx;
  allocation.id = call.rt.new_id();
  allocation.host_flags = flags;
  allocation.piece = {allocation.base, size, 0};
  call.rt.addresses.allocations[allocation.base] = allocation;
  base = allocation.base;
  return CUDA_SUCCESS;
}

bool overlaps_known(Runtime& rt, std::uint64_t base, std::uint64_t bytes) {
  const auto after = rt.addresses.allocations.lower_bound(base);
  if (after != rt.addresses.allocations.end() && after->first - base < bytes) return true;
  return rt.addresses.known(base);
}

// Handles that other processes have to the memory lead nowhere from now on.
void close_export(Runtime& rt, std::uint64_t address) {
  rt.exports.erase(address);
}

}  // namespace

SOFTGPU_API(cuMemGetInfo)(unsigned*, unsigned*) {
  // The interface of before CUDA 3.2 does not see contexts of after it.
  Call call;
  SOFTGPU_TRY(call.ready());
  return CUDA_ERROR_INVALID_CONTEXT;
}

SOFTGPU_API(cuMemAlloc)(CUdeviceptr_v1*, unsigned) {
  Call call;
  SOFTGPU_TRY(call.ready());
  return CUDA_ERROR_INVALID_CONTEXT;
}

SOFTGPU_API(cuMemFree)(CUdeviceptr_v1) {
  Call call;
  SOFTGPU_TRY(call.ready());
  return CUDA_ERROR_INVALID_CONTEXT;
}

SOFTGPU_API(cuMemGetInfo_v2)(size_t* free, size_t* total) {
  Call call;
  SOFTGPU_TRY(call.context());
  Segment& segment = *call.rt.segment;
  Segment::Lock card_lock(segment);
  segment.reap();
  const std::uint64_t all = call.rt.device_config(call.ctx->device).memory;
  const std::uint64_t used = memory_used(segment.card(), segment.on_card(call.ctx->device), -1);
  if (free != nullptr) *free = all - std::min(all, used);
  if (total != nullptr) *total = all;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemAlloc_v2)(CUdeviceptr* address, size_t bytes) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.no_unsafe_capture());
  Allocation allocation;
  SOFTGPU_TRY(allocate_device(call, call.ctx->device, bytes, allocation));
  *address = allocation.base;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemAllocPitch_v2)
(CUdeviceptr* address, size_t* pitch, size_t width_bytes, size_t height,
 unsigned element_size_bytes) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (address == nullptr || pitch == nullptr || width_bytes == 0 || height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (element_size_bytes != 4 && element_size_bytes != 8 && element_size_bytes != 16) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SOFTGPU_TRY(call.no_unsafe_capture());
  const std::size_t row = round_up(width_bytes, kPitch);
  if (row < width_bytes || row > SIZE_MAX / height) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  SOFTGPU_TRY(allocate_device(call, call.ctx->device, row * height, allocation));
  *address = allocation.base;
  *pitch = row;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemFree_v2)(CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.ready());
  // Freeing needs no context; a broken one forbids it.
  const CUresult current = call.context();
  if (current != CUDA_SUCCESS && current != CUDA_ERROR_INVALID_CONTEXT) return current;
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (address == 0) return CUDA_SUCCESS;
  const auto found = call.rt.addresses.allocations.find(address);
  if (found == call.rt.addresses.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  // A module's variable stays with the module, whatever the driver answers.
  if (found->second.global) return CUDA_SUCCESS;
  const MemoryKind kind = found->second.kind;
  if (kind != MemoryKind::kDevice && kind != MemoryKind::kManaged && kind != MemoryKind::kPool) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found->second.graph && !call.rt.graph_live.count(address)) return CUDA_ERROR_INVALID_VALUE;
  // Work that may use it comes first.
  call.rt.wait_all(call.lock, nullptr);
  call.rt.wait_for_effects(call.lock);
  if (call.rt.addresses.allocations.count(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (free_graph_memory(call.rt, address)) return CUDA_SUCCESS;
  if (kind == MemoryKind::kPool) {
    return_to_pool(call.rt, address);
    trim_pools(call.rt);
  } else {
    close_export(call.rt, address);
    free_allocation(call.rt, address);
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemGetAddressRange_v2)(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (const Allocation* allocation = call.rt.addresses.find(address)) {
    if (base != nullptr) *base = allocation->base;
    if (size != nullptr) *size = allocation->bytes;
    return CUDA_SUCCESS;
  }
  if (const Mapping* mapping = call.rt.addresses.find_mapping(address)) {
    const Reservation* reservation = call.rt.addresses.find_reservation(mapping->base);
    if (base != nullptr) *base = reservation->base;
    if (size != nullptr) *size = reservation->bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

SOFTGPU_API(cuMemHostAlloc)(void** host, size_t bytes, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (host == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (bytes == 0) {
    *host = nullptr;
    return CUDA_SUCCESS;
  }
  std::uint64_t base = 0;
  SOFTGPU_TRY(
      allocate_host(call, bytes, flags | CU_MEMHOSTALLOC_DEVICEMAP, MemoryKind::kHostPinned, base));
  *host = reinterpret_cast<void*>(base);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemAllocHost_v2)(void** host, size_t bytes) {
  return impl_cuMemHostAlloc(host, bytes, 0);
}

SOFTGPU_API(cuMemFreeHost)(void* host) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (host == nullptr) return CUDA_SUCCESS;
  const auto base = reinterpret_cast<std::uint64_t>(host);
  const auto found = call.rt.addresses.allocations.find(base);
  if (found == call.rt.addresses.allocations.end() ||
      found->second.kind != MemoryKind::kHostPinned) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  call.rt.wait_all(call.lock, nullptr);
  call.rt.wait_for_effects(call.lock);
  free_allocation(call.rt, base);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemHostGetDevicePointer_v2)(CUdeviceptr* address, void* host, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (address == nullptr || host == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* allocation = call.rt.addresses.find(reinterpret_cast<std::uint64_t>(host));
  if (allocation == nullptr || (allocation->kind != MemoryKind::kHostPinned &&
                                allocation->kind != MemoryKind::kHostRegistered)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = reinterpret_cast<std::uint64_t>(host);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemHostGetFlags)(unsigned* flags, void* host) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* allocation = call.rt.addresses.find(reinterpret_cast<std::uint64_t>(host));
  if (allocation == nullptr || (allocation->kind != MemoryKind::kHostPinned &&
                                allocation->kind != MemoryKind::kHostRegistered)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = allocation->host_flags;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemHostRegister_v2)(void* host, size_t bytes, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  const auto base = reinterpret_cast<std::uint64_t>(host);
  if (host == nullptr || bytes == 0 || (flags & ~kKnown) != 0 || bytes > UINT64_MAX - base) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (overlaps_known(call.rt, base, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  // Every page has to be there.
  char byte = 0;
  for (std::uint64_t at = base; at < base + bytes; at += kPage) {
    if (!safe_read(&byte, reinterpret_cast<const void*>(at), 1)) return CUDA_ERROR_INVALID_VALUE;
  }
  if (!safe_read(&byte, reinterpret_cast<const void*>(base + bytes - 1), 1)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Allocation allocation;
  allocation.base = base;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kHostRegistered;
  allocation.device = call.ctx->device;
  allocation.context = call.ctx;
  allocation.id = call.rt.new_id();
  allocation.host_flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP;
  call.rt.addresses.allocations[base] = allocation;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemHostUnregister)(void* host) {
  Call call;
  SOFTGPU_TRY(call.context());
  const auto base = reinterpret_cast<std::uint64_t>(host);
  const auto found = call.rt.addresses.allocations.find(base);
  if (host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (found == call.rt.addresses.allocations.end() ||
      found->second.kind != MemoryKind::kHostRegistered) {
    // Known, but not the beginning of something registered; or not known at all.
    return call.rt.addresses.known(base) ? CUDA_ERROR_INVALID_VALUE
                                         : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  call.rt.wait_all(call.lock, nullptr);
  call.rt.wait_for_effects(call.lock);
  call.rt.addresses.allocations.erase(base);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemAllocManaged)(CUdeviceptr* address, size_t bytes, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (call.rt.fault_due(call.rt.config.fail_allocation, call.rt.allocations)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Takes room on a device only where the device uses it, so there may be more of it than room.
  std::uint64_t base = 0;
  SOFTGPU_TRY(allocate_host(call, bytes, flags, MemoryKind::kManaged, base));
  *address = base;
  return CUDA_SUCCESS;
}

// --- Memory of other processes ---

namespace {

struct IpcMemoryName {
  std::uint64_t magic;
  std::int32_t pid;
  std::int32_t file;
  std::uint64_t identity;
  std::uint64_t offset;  // of the piece in the file
  std::uint64_t piece;   // its bytes
  std::uint64_t inside;  // where in the piece the allocation begins
  std::uint64_t bytes;
  std::int16_t device;
  std::uint16_t token;  // a descriptor that its owner closes with the memory
};
static_assert(sizeof(IpcMemoryName) <= sizeof(CUipcMemHandle));
constexpr std::uint64_t kIpcMemoryMagic = 0x4d454d4547545300;

std::string descriptor_path(int pid, int file) {
  return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
}

// Memory that was handed out before, under its one address.
Allocation* find_imported(Runtime& rt, const IpcMemoryName& name) {
  for (auto& [base, allocation] : rt.addresses.allocations) {
    if (allocation.kind == MemoryKind::kImported && allocation.origin == name.identity &&
        allocation.piece.offset == name.offset && base - allocation.piece.address == name.inside) {
      return &allocation;
    }
  }
  return nullptr;
}

}  // namespace

SOFTGPU_API(cuIpcGetMemHandle)(CUipcMemHandle* handle, CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* allocation = call.rt.addresses.find(address);
  if (allocation == nullptr || allocation->kind != MemoryKind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  UniqueFd& token = call.rt.exports[allocation->base];
  if (!token) token.reset(::memfd_create("nvshare-softgpu-export", MFD_CLOEXEC));
  if (!token || token.get() > UINT16_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t mark =
      allocation->piece.offset + allocation->base - allocation->piece.address;
  if (::pwrite(token.get(), &mark, sizeof mark, 0) != static_cast<ssize_t>(sizeof mark)) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const IpcMemoryName name{kIpcMemoryMagic,
                           getpid(),
                           call.rt.pages.file(),
                           call.rt.pages.identity(),
                           allocation->piece.offset,
                           allocation->piece.bytes,
                           allocation->base - allocation->piece.address,
                           allocation->bytes,
                           static_cast<std::int16_t>(allocation->device),
                           static_cast<std::uint16_t>(token.get())};
  *handle = CUipcMemHandle{};
  std::memcpy(handle->reserved, &name, sizeof name);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuIpcOpenMemHandle_v2)(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (address == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  IpcMemoryName name{};
  std::memcpy(&name, handle.reserved, sizeof name);
  if (name.magic != kIpcMemoryMagic) return CUDA_ERROR_INVALID_VALUE;
  if (name.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const UniqueFd token(::open(descriptor_path(name.pid, name.token).c_str(), O_RDWR | O_CLOEXEC));
  std::uint64_t mark = 0;
  if (!token || ::pread(token.get(), &mark, sizeof mark, 0) != static_cast<ssize_t>(sizeof mark) ||
      mark != name.offset + name.inside) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (Allocation* known = find_imported(call.rt, name)) {
    ++known->opened;
    *address = known->base;
    return CUDA_SUCCESS;
  }
  const UniqueFd file(::open(descriptor_path(name.pid, name.file).c_str(), O_RDWR | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || info.st_ino != name.identity ||
      name.offset + name.piece > static_cast<std::uint64_t>(info.st_size)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  void* memory = ::mmap(nullptr, name.piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        file.get(), static_cast<off_t>(name.offset));
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  ::madvise(memory, name.piece, MADV_DONTFORK);
  Allocation allocation;
  allocation.piece = {reinterpret_cast<std::uint64_t>(memory), name.piece, name.offset};
  allocation.base = allocation.piece.address + name.inside;
  allocation.bytes = name.bytes;
  allocation.kind = MemoryKind::kImported;
  allocation.origin = name.identity;
  allocation.opened = 1;
  allocation.device = name.device;
  allocation.context = call.ctx;
  allocation.id = call.rt.new_id();
  call.rt.addresses.allocations[allocation.base] = allocation;
  *address = allocation.base;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuIpcCloseMemHandle)(CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.context());
  const auto found = call.rt.addresses.allocations.find(address);
  if (found == call.rt.addresses.allocations.end() || found->second.kind != MemoryKind::kImported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--found->second.opened > 0) return CUDA_SUCCESS;
  call.rt.wait_all(call.lock, nullptr);
  call.rt.wait_for_effects(call.lock);
  free_allocation(call.rt, address);
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
