#include "interposer/moving/managed/state.h"

namespace nvshare::interposer::moving::managed {
namespace {

// The allocation that an address lies in.
Allocation* find(Space& space, CUdeviceptr address) REQUIRES(space.mutex) {
  Allocation wanted;
  wanted.address = address;
  wanted.serial = ~uint64_t{0};
  Allocation* found = space.allocations.at_or_before(wanted);
  return found != nullptr && address - found->address < found->bytes ? found : nullptr;
}

void wait_until_still(Space& space, const Allocation& allocation) REQUIRES(space.mutex) {
  while (allocation.moving > 0) {
    const uint32_t seen = space.finished.load();
    space.mutex.unlock();
    futex_wait(space.finished, seen);
    space.mutex.lock();
  }
}

// What an allocation is that somebody wants to free.
struct Claim {
  Space* space = nullptr;
  Allocation* allocation = nullptr;
  CUcontext context = nullptr;
};

// Nobody else can free it then, and nothing of it moves. A move under way is waited for, as the
// driver would.
Claim claim(CUdeviceptr address) {
  Claim claimed;
  g_spaces.visit([&](Space& space) {
    const Lock lock(space.mutex);
    Allocation* found = find(space, address);
    if (found == nullptr || found->address != address) return found != nullptr;
    space.allocations.remove(found);
    found->freeing = true;
    claimed = {&space, found, found->lane->context};
    wait_until_still(space, *found);
    return true;
  });
  return claimed;
}

// What the driver does not know it has freed already, with its context or for another thread.
bool is_gone(const Claim& claimed, CUresult result) {
  return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ||
         claimed.allocation->lane->context != claimed.context;
}

}  // namespace

Freed managed_free(CUdeviceptr address) {
  const KeepErrno keep;
  const Claim claimed = claim(address);
  if (claimed.allocation == nullptr) return {};
  Space& space = *claimed.space;
  Allocation& allocation = *claimed.allocation;
  Freed freed;
  freed.ours = true;
  freed.gate = space.gate;
  freed.result = real<FunctionId::cuMemFree_v2>(address);
  const Lock lock(space.mutex);
  if (!is_gone(claimed, freed.result)) {
    allocation.freeing = false;
    space.allocations.insert(&allocation);
    return freed;
  }
  freed.bytes = allocation.bytes;
  freed.resident = resident_bytes(allocation);
  remove(space, allocation);
  give_record(space, &allocation);
  return freed;
}

Range managed_range_of(CUdeviceptr address) {
  Range range;
  g_spaces.visit([&](Space& space) {
    const Lock lock(space.mutex);
    const Allocation* found = find(space, address);
    if (found == nullptr) return false;
    range.ours = true;
    range.base = found->address;
    range.bytes = found->bytes;
    range.context = found->lane->context;
    range.gate = space.gate;
    range.resident = resident_bytes(*found) == found->bytes;
    range.device = space.device;
    range.plain = found->plain;
    return true;
  });
  return range;
}

}  // namespace nvshare::interposer::moving::managed
