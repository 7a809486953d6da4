#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "softgpu/api/api.h"

// Virtual memory: addresses, physical memory, mappings of one on the other, sharing.
namespace nvshare::softgpu {
namespace {

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);
}

// Takes addresses without memory behind them. `bytes` and `alignment` are multiples of kBlock.
std::uint64_t take_addresses(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (wanted != 0) {
    void* place = ::mmap(pointer(wanted), bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (place == pointer(wanted)) return wanted;
    if (place != MAP_FAILED) ::munmap(place, bytes);
  }
  const std::uint64_t room = bytes + alignment;
  if (room < bytes) return 0;
  void* raw = ::mmap(nullptr, room, PROT_NONE, kFlags, -1, 0);
  if (raw == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<std::uint64_t>(raw);
  const std::uint64_t base = round_up(start, alignment);
  if (base > start) ::munmap(raw, base - start);
  if (start + room > base + bytes) ::munmap(pointer(base + bytes), start + room - base - bytes);
  return base;
}

bool good_location(Runtime& rt, const CUmemAllocationProp& prop, CUresult& wrong) {
  wrong = CUDA_ERROR_INVALID_VALUE;
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return false;
  switch (prop.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      wrong = CUDA_ERROR_INVALID_DEVICE;
      return prop.location.id >= 0 && prop.location.id < rt.device_count();
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return true;
    default:
      return false;
  }
}

bool good_handle_types(unsigned types) {
  return (types &
          ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC}) == 0;
}

struct SharedHeader {
  std::uint64_t magic;
  std::uint64_t bytes;
  CUmemAllocationProp prop;  // with the device's number on the card
};
constexpr std::uint64_t kSharedMagic = 0x5448435350475453;
constexpr std::uint64_t kHeaderRoom = 4096;  // behind the memory, in the same file

std::shared_ptr<Physical> new_physical(std::uint64_t bytes, const CUmemAllocationProp& prop,
                                       UniqueFd file) {
  auto physical = std::make_shared<Physical>();
  physical->bytes = bytes;
  physical->prop = prop;
  physical->on_device = prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  struct stat info {};
  ::fstat(file.get(), &info);
  physical->identity = info.st_ino;
  physical->file = std::move(file);
  return physical;
}

CUmemGenericAllocationHandle add_handle(Runtime& rt, const std::shared_ptr<Physical>& physical) {
  const std::uint64_t handle = rt.new_handle();
  physical->handles[handle] = 1;
  rt.physicals.add(handle, physical);
  return handle;
}

bool is_mapped(Runtime& rt, const Physical& physical) {
  return std::any_of(rt.addresses.mappings.begin(), rt.addresses.mappings.end(),
                     [&](const auto& one) { return one.second.physical.get() == &physical; });
}

// Memory goes when neither a handle nor a mapping is left.
void drop_if_unused(Runtime& rt, const std::shared_ptr<Physical>& physical) {
  if (!physical->handles.empty() || is_mapped(rt, *physical)) return;
  if (physical->on_device) drop_shared(*rt.segment, physical->identity);
}

std::shared_ptr<Physical> find_physical(Runtime& rt, CUmemGenericAllocationHandle handle) {
  return rt.physicals.find(pointer(handle));
}

// The same memory, when it is here already, under another handle or mapped without one; null when
// it is not. A second record of it would be taken off the card with the first that goes.
std::shared_ptr<Physical> find_identity(Runtime& rt, std::uint64_t identity) {
  for (const auto& [handle, one] : rt.physicals.all()) {
    if (one->identity == identity) return one;
  }
  for (const auto& [base, mapping] : rt.addresses.mappings) {
    if (mapping.physical->identity == identity) return mapping.physical;
  }
  return nullptr;
}

void apply_protection(const Mapping& mapping) {
  // The bytes must be there for effects whatever the device may do; what the device may do is
  // checked by AddressMap.
  ::mprotect(pointer(mapping.base), mapping.bytes, PROT_READ | PROT_WRITE);
}

}  // namespace

SOFTGPU_API(cuMemGetAllocationGranularity)
(size_t* granularity, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags option) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (granularity == nullptr || prop == nullptr || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *granularity = kBlock;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemAddressReserve)
(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (address == nullptr || size == 0 || size % kBlock != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t base = take_addresses(size, std::max<std::uint64_t>(alignment, kBlock),
                                            addr % kBlock == 0 ? addr : 0);
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  call.rt.addresses.reservations[base] = {base, size};
  *address = base;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemAddressFree)(CUdeviceptr address, size_t size) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.addresses.reservations.find(address);
  if (found == call.rt.addresses.reservations.end() || found->second.bytes != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto mapped = call.rt.addresses.mappings.lower_bound(address);
  if (mapped != call.rt.addresses.mappings.end() && mapped->first - address < size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(pointer(address), size);
  call.rt.addresses.reservations.erase(found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemCreate)
(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
 unsigned long long flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (handle == nullptr || prop == nullptr || flags != 0 || size == 0 || size % kBlock != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult wrong = CUDA_SUCCESS;
  if (!good_location(call.rt, *prop, wrong)) return wrong;
  if (!good_handle_types(prop->requestedHandleTypes)) return CUDA_ERROR_INVALID_VALUE;
  if (call.rt.fault_due(call.rt.config.fail_allocation, call.rt.allocations)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_device && size > call.rt.device_config(prop->location.id).memory) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  UniqueFd file(::memfd_create("nvshare-softgpu-physical", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(size + kHeaderRoom)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto physical = new_physical(size, *prop, std::move(file));
  if (on_device && !hold_shared(*call.rt.segment, prop->location.id, physical->identity, size)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = add_handle(call.rt, physical);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemRelease)(CUmemGenericAllocationHandle handle) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto physical = find_physical(call.rt, handle);
  if (!physical) return CUDA_ERROR_INVALID_VALUE;
  if (--physical->handles[handle] > 0) return CUDA_SUCCESS;
  physical->handles.erase(handle);
  call.rt.physicals.remove(pointer(handle));
  drop_if_unused(call.rt, physical);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemMap)
(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
 unsigned long long flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (address == 0 || address % kBlock != 0 || size == 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto physical = find_physical(call.rt, handle);
  const Reservation* reservation = call.rt.addresses.find_reservation(address);
  if (!physical || reservation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0 || size != physical->bytes) return CUDA_ERROR_NOT_SUPPORTED;
  if (address - reservation->base > reservation->bytes - std::min(size, reservation->bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto after = call.rt.addresses.mappings.lower_bound(address);
  const bool overlaps =
      call.rt.addresses.find_mapping(address) != nullptr ||
      (after != call.rt.addresses.mappings.end() && after->first - address < size);
  if (overlaps) return CUDA_ERROR_INVALID_VALUE;
  call.rt.wait_for_effects(call.lock);
  if (::mmap(pointer(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             physical->file.get(), 0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ::madvise(pointer(address), size, MADV_DONTFORK);
  call.rt.addresses.mappings[address] = {
      address, size, offset, physical, handle, {}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemUnmap)(CUdeviceptr address, size_t size) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  auto& mappings = call.rt.addresses.mappings;
  if (call.rt.addresses.find_reservation(address) == nullptr || size > UINT64_MAX - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Whole mappings only; where nothing is mapped there is nothing to do.
  const Mapping* first = call.rt.addresses.find_mapping(address);
  if (first != nullptr && first->base != address) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::uint64_t> bases;
  for (auto at = mappings.lower_bound(address); at != mappings.end() && at->first - address < size;
       ++at) {
    if (at->first + at->second.bytes > address + size) return CUDA_ERROR_INVALID_VALUE;
    bases.push_back(at->first);
  }
  call.rt.wait_for_effects(call.lock);
  for (const std::uint64_t base : bases) {
    const auto physical = mappings[base].physical;
    const std::uint64_t bytes = mappings[base].bytes;
    mappings.erase(base);
    ::mmap(pointer(base), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0);
    drop_if_unused(call.rt, physical);
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemSetAccess)
(CUdeviceptr address, size_t size, const CUmemAccessDesc* desc, size_t count) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (desc == nullptr || count == 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
  auto& mappings = call.rt.addresses.mappings;
  std::vector<Mapping*> concerned;
  std::uint64_t at = address;
  while (at < address + size) {
    const auto found = mappings.find(at);
    if (found == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    concerned.push_back(&found->second);
    at += found->second.bytes;
  }
  if (at != address + size) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const bool device = desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    const bool host = desc[i].location.type == CU_MEM_LOCATION_TYPE_HOST ||
                      desc[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!device && !host) return CUDA_ERROR_INVALID_VALUE;
    if (device && call.device(desc[i].location.id) != CUDA_SUCCESS) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto flags = desc[i].flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (Mapping* mapping : concerned) {
    for (size_t i = 0; i < count; ++i) {
      if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        mapping->device_access[desc[i].location.id] = desc[i].flags;
      } else {
        mapping->host_access = desc[i].flags;
      }
    }
    apply_protection(*mapping);
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemGetAccess)
(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Mapping* mapping = call.rt.addresses.find_mapping(address);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    *flags = mapping->host_access;
    return CUDA_SUCCESS;
  }
  const auto found = mapping->device_access.find(location->id);
  *flags = found == mapping->device_access.end() ? 0u : unsigned{found->second};
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemGetAllocationPropertiesFromHandle)
(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto physical = find_physical(call.rt, handle);
  if (prop == nullptr || !physical) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->prop;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle* handle, void* addr) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const Mapping* mapping = call.rt.addresses.find_mapping(reinterpret_cast<std::uint64_t>(addr));
  if (handle == nullptr || mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // The very handle it was mapped by, even if that one had been released.
  if (++mapping->physical->handles[mapping->handle] == 1) {
    call.rt.physicals.add(mapping->handle, mapping->physical);
  }
  *handle = mapping->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemExportToShareableHandle)
(void* shareable_handle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handle_type,
 unsigned long long flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto physical = find_physical(call.rt, handle);
  if (shareable_handle == nullptr || !physical || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (physical->prop.requestedHandleTypes & handle_type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SharedHeader header{kSharedMagic, physical->bytes, physical->prop};
  if (physical->on_device) {
    header.prop.location.id = call.rt.segment->on_card(header.prop.location.id);
  }
  const int copy = ::fcntl(physical->file.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (::pwrite(copy, &header, sizeof header, static_cast<off_t>(physical->bytes)) !=
      static_cast<ssize_t>(sizeof header)) {
    ::close(copy);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  std::memcpy(shareable_handle, &copy, sizeof copy);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemImportFromShareableHandle)
(CUmemGenericAllocationHandle* handle, void* os_handle, CUmemAllocationHandleType sh_handle_type) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (sh_handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int given = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
  UniqueFd file(::fcntl(given, F_DUPFD_CLOEXEC, 0));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return CUDA_ERROR_UNKNOWN;
  SharedHeader header{};
  const auto at = static_cast<off_t>(info.st_size) - static_cast<off_t>(kHeaderRoom);
  if (at <= 0 ||
      ::pread(file.get(), &header, sizeof header, at) != static_cast<ssize_t>(sizeof header) ||
      header.magic != kSharedMagic || header.bytes != static_cast<std::uint64_t>(at)) {
    return CUDA_ERROR_UNKNOWN;
  }
  std::shared_ptr<Physical> physical = find_identity(call.rt, info.st_ino);
  if (!physical) {
    if (header.prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      header.prop.location.id = call.rt.segment->seen_as(header.prop.location.id);
      if (header.prop.location.id < 0) return CUDA_ERROR_INVALID_DEVICE;
    }
    physical = new_physical(header.bytes, header.prop, std::move(file));
    if (physical->on_device &&
        !hold_shared(*call.rt.segment, header.prop.location.id, physical->identity, header.bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  *handle = add_handle(call.rt, physical);
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
