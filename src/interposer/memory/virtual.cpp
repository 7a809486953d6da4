#include "interposer/moving/swap/virtual.h"

#include "interposer/catch/bodies.h"
#include "interposer/memory/count.h"
#include "interposer/memory/movable.h"

// Physical memory of the virtual memory API. It is there as long as a handle of it is held or a
// mapping of it stands, whichever goes first; addresses by themselves cost nothing. Handles that
// were imported, and those of multicast objects, are not known here and count nothing.
//
// With the backend `swap` it can move (swap_virtual.h). Otherwise, and when it could not be made
// again as it was, it is counted here.
namespace nvshare::interposer::memory {
namespace {

constexpr uint32_t kPlainTag = 0;

// What of a physical goes away, to be told to the gate when the lock is gone.
struct Freed {
  gate::Gate* gate = nullptr;
  uint64_t bytes = 0;
};

void tell(const Freed& freed) {
  if (freed.gate != nullptr) link::pinned_memory_freed(*freed.gate, freed.bytes);
}

// These need the lock.
Freed drop_if_unused(uint64_t id, const Physical& physical) REQUIRES(g_books.mutex) {
  if (physical.handles != 0 || physical.mappings != 0) return {};
  const Freed freed{physical.gate, physical.bytes};
  g_books.physicals.remove(id, kPlainTag);
  return freed;
}

Freed drop_handles(uint64_t id, uint64_t references) REQUIRES(g_books.mutex) {
  Physical* physical = g_books.physicals.find(id, kPlainTag);
  if (physical == nullptr) return {};
  physical->handles -= references;
  return drop_if_unused(id, *physical);
}

Freed drop_mapping(uint64_t id) REQUIRES(g_books.mutex) {
  Physical* physical = g_books.physicals.find(id, kPlainTag);
  if (physical == nullptr) return {};
  physical->mappings -= 1;
  return drop_if_unused(id, *physical);
}

// The physical that is mapped at an address; 0 when none is known.
uint64_t physical_at(uint64_t address) REQUIRES(g_books.mutex) {
  uint64_t id = 0;
  g_books.mappings.for_each([&](uint64_t base, uint32_t, const Mapping& mapping) {
    if (address - base < mapping.bytes) id = mapping.physical;
  });
  return id;
}

bool hold_for_create() {
  const Lock lock(g_books.mutex);
  if (!g_books.physicals.hold()) return false;
  if (g_books.handles.hold()) return true;
  g_books.physicals.unhold();
  return false;
}

void unhold_for_create() {
  const Lock lock(g_books.mutex);
  g_books.physicals.unhold();
  g_books.handles.unhold();
}

void note_created(CUmemGenericAllocationHandle handle, gate::Gate* gate, uint64_t bytes) {
  Freed freed;
  {
    const Lock lock(g_books.mutex);
    const uint64_t id = ++g_books.last_serial;
    Physical unused{};
    Handle replaced{};
    g_books.physicals.put(id, kPlainTag, {bytes, gate, 1, 0}, unused);
    if (g_books.handles.put(handle, kPlainTag, {id, 1, id}, replaced)) {
      freed = drop_handles(replaced.physical, replaced.references);
    }
  }
  tell(freed);
}

// The physical of a handle, kept from going by a mapping that is about to be; 0 when not known.
uint64_t hold_for_map(CUmemGenericAllocationHandle handle, bool& refused) {
  const Lock lock(g_books.mutex);
  const Handle* known = g_books.handles.find(handle, kPlainTag);
  if (known == nullptr) return 0;
  refused = !g_books.mappings.hold();
  if (refused) return 0;
  g_books.physicals.find(known->physical, kPlainTag)->mappings += 1;
  return known->physical;
}

void note_mapped(CUdeviceptr address, uint64_t bytes, uint64_t physical) {
  Freed freed;
  {
    const Lock lock(g_books.mutex);
    Mapping replaced{};
    const Mapping mapping{physical, bytes, ++g_books.last_serial};
    if (g_books.mappings.put(address, kPlainTag, mapping, replaced)) {
      freed = drop_mapping(replaced.physical);
    }
  }
  tell(freed);
}

void give_up_mapping(uint64_t physical) {
  Freed freed;
  {
    const Lock lock(g_books.mutex);
    g_books.mappings.unhold();
    freed = drop_mapping(physical);
  }
  tell(freed);
}

// Removes one mapping that begins in the range and is as old as the mark; false when there is none.
bool remove_one_mapping(uint64_t& address, uint64_t end, Serial before) {
  Freed freed;
  {
    const Lock lock(g_books.mutex);
    const Mapping* found = g_books.mappings.find(address, kPlainTag);
    if (found == nullptr || found->serial > before) {
      // A hole: the next mapping behind it.
      uint64_t next = end;
      g_books.mappings.for_each([&](uint64_t base, uint32_t, const Mapping& mapping) {
        if (base > address && base < next && mapping.serial <= before) next = base;
      });
      if (next == end) return false;
      address = next;
      found = g_books.mappings.find(address, kPlainTag);
    }
    const Mapping mapping = *found;
    g_books.mappings.remove(address, kPlainTag);
    freed = drop_mapping(mapping.physical);
    address += mapping.bytes;
  }
  tell(freed);
  return true;
}

// The gate of the device that memory which can move is to be made on; null when it is to be the
// driver's own.
gate::Gate* gate_for_swap(uint64_t bytes, const CUmemAllocationProp& kind,
                          unsigned long long flags) {
  if (kind.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return nullptr;
  gate::Gate* gate = link::gate_of_device(kind.location.id);
  const bool swaps = gate != nullptr && link::memory_backend(*gate) == wire::Backend::Swap &&
                     bytes < kMostBytes && moving::swap::swap_can_follow(*gate, bytes, kind, flags);
  return swaps ? gate : nullptr;
}

// The memory needs some context to be moved in, and this one may be from before there was a
// scheduler.
void note_current_context(gate::Gate& gate) {
  CUcontext context = nullptr;
  if (link::gate_of_current_device() != &gate) return;
  if (real<FunctionId::cuCtxGetCurrent>(&context) != CUDA_SUCCESS) return;
  moving::swap::swap_context_made(gate, context);
}

CUresult create_swappable(gate::Gate& gate, CUmemGenericAllocationHandle* handle, uint64_t bytes,
                          const CUmemAllocationProp& kind) {
  note_current_context(gate);
  if (!can_be_swappable(gate, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  return allocate_movable(gate, bytes, [&](bool room) {
    return moving::swap::swap_create(gate, bytes, kind, room, handle);
  });
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  const bool sound = handle != nullptr && prop != nullptr;
  if (gate::Gate* gate = sound ? gate_for_swap(size, *prop, flags) : nullptr) {
    return create_swappable(*gate, handle, size, *prop);
  }
  const bool counted = handle != nullptr && prop != nullptr && size != 0 &&
                       prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  gate::Gate* gate = counted ? link::gate_of_device(prop->location.id) : nullptr;
  if (gate == nullptr) return real<FunctionId::cuMemCreate>(handle, size, prop, flags);
  return link::allocate_with_scheduler(gate, [&](link::Again& again) {
    Charge charge(gate, size);
    if (charge.refused() || !hold_for_create()) return again.refused();
    const CUresult result = real<FunctionId::cuMemCreate>(handle, size, prop, flags);
    if (result != CUDA_SUCCESS) {
      unhold_for_create();
      return result;
    }
    charge.keep_unrecorded();
    note_created(*handle, gate, size);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (moving::swap::swap_is_handle(handle)) return moving::swap::swap_release(handle, tell_freed);
  const Serial before = mark();
  const CUresult result = real<FunctionId::cuMemRelease>(handle);
  if (result != CUDA_SUCCESS) return result;
  Freed freed;
  {
    const Lock lock(g_books.mutex);
    Handle* known = g_books.handles.find(handle, kPlainTag);
    if (known == nullptr || known->serial > before) return result;
    const uint64_t physical = known->physical;
    known->references -= 1;
    if (known->references == 0) g_books.handles.remove(handle, kPlainTag);
    freed = drop_handles(physical, 1);
  }
  tell(freed);
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  // Memory of cuMemAlloc has none; that ours has some is our own affair.
  const auto address = reinterpret_cast<CUdeviceptr>(addr);
  if (movable_range_of(address).ours) return CUDA_ERROR_INVALID_VALUE;
  if (moving::swap::swap_is_mapped(address, 1)) return moving::swap::swap_retain(address, handle);
  {
    const Lock lock(g_books.mutex);
    if (!g_books.handles.hold()) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = real<FunctionId::cuMemRetainAllocationHandle>(handle, addr);
  const Lock lock(g_books.mutex);
  Handle* known = result == CUDA_SUCCESS ? g_books.handles.find(*handle, kPlainTag) : nullptr;
  const uint64_t id = result != CUDA_SUCCESS ? 0
                      : known != nullptr     ? known->physical
                                             : physical_at(address);
  Physical* physical = id == 0 ? nullptr : g_books.physicals.find(id, kPlainTag);
  if (physical != nullptr) physical->handles += 1;
  if (physical == nullptr || known != nullptr) {
    g_books.handles.unhold();
    if (known != nullptr) known->references += 1;
  } else {
    // The handle had been released, and the mapping kept the memory.
    Handle unused{};
    g_books.handles.put(*handle, kPlainTag, {id, 1, ++g_books.last_serial}, unused);
  }
  return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (moving::swap::swap_is_handle(handle))
    return moving::swap::swap_map(address, size, offset, handle, flags);
  // The driver does not know of what is away.
  if (moving::swap::swap_is_mapped(address, size)) return CUDA_ERROR_INVALID_VALUE;
  bool refused = false;
  const uint64_t physical = hold_for_map(handle, refused);
  if (refused) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = real<FunctionId::cuMemMap>(address, size, offset, handle, flags);
  if (physical == 0) return result;
  if (result == CUDA_SUCCESS) {
    note_mapped(address, size, physical);
  } else {
    give_up_mapping(physical);
  }
  return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  const Serial before = mark();
  const CUresult result = moving::swap::swap_unmap(address, size, tell_freed);
  if (result != CUDA_SUCCESS) return result;
  uint64_t at = address;
  const uint64_t end = address + size;
  while (at < end && remove_one_mapping(at, end, before)) {
  }
  return result;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  return moving::swap::swap_get_access(flags, location, address);
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  return moving::swap::swap_reserve(address, size, alignment, addr, flags);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return moving::swap::swap_unreserve(address, size);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  if (moving::swap::swap_is_handle(handle)) return moving::swap::swap_properties(prop, handle);
  return real<FunctionId::cuMemGetAllocationPropertiesFromHandle>(prop, handle);
}

}  // namespace nvshare::interposer::own
