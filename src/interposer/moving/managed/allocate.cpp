#include "interposer/moving/managed/state.h"

namespace nvshare::interposer::moving::managed {
namespace {

// Its pages belong on the device, and begin there when there is room: then the first kernel finds
// no faults. Nothing depends on it.
void place(Space& space, Lane& lane, const ManagedWish& wish, CUdeviceptr address) {
  const catching::Relaxed relaxed;
  real<FunctionId::cuMemAdvise>(address, wish.bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                                space.device.load());
  size_t free = 0;
  size_t total = 0;
  // Who was promised room may be a program that is larger than the card.
  if (!wish.room || real<FunctionId::cuMemGetInfo_v2>(&free, &total) != CUDA_SUCCESS) return;
  const CUstream stream = free >= wish.bytes ? stream_of(space, lane) : nullptr;
  if (stream == nullptr) return;
  real<FunctionId::cuMemPrefetchAsync>(address, wish.bytes, space.device.load(), stream);
}

// Whether the current context's device moves pages while both sides use them, which is what makes
// unified memory as good as plain memory. Where that cannot be found out, no.
uint32_t ask_device() {
  CUdevice device = -1;
  int managed = 0;
  int concurrent = 0;
  const bool known =
      real<FunctionId::cuCtxGetDevice>(&device) == CUDA_SUCCESS &&
      real<FunctionId::cuDeviceGetAttribute>(&managed, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
                                             device) == CUDA_SUCCESS &&
      real<FunctionId::cuDeviceGetAttribute>(
          &concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) == CUDA_SUCCESS;
  if (!known) return 0;
  return managed != 0 && concurrent != 0 ? kPossible : kImpossible;
}

}  // namespace

bool managed_is_possible(gate::Gate& gate) {
  const KeepErrno keep;
  Space* space = g_spaces.make(gate);
  if (space == nullptr) return false;
  uint32_t possible = space->possible.load(std::memory_order_relaxed);
  if (possible == 0) {
    possible = ask_device();
    space->possible.store(possible, std::memory_order_relaxed);
  }
  if (possible == kImpossible) {
    warn_once(
        "this GPU does not do unified memory while the program and the GPU both use it, so memory "
        "stays on the GPU, as with `nvshare run --backend native`");
  }
  return possible == kPossible;
}

CUresult managed_allocate(gate::Gate& gate, const ManagedWish& wish, CUdeviceptr* address) {
  const KeepErrno keep;
  Space* space = g_spaces.make(gate);
  if (space == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  CUcontext context = nullptr;
  CUresult result = real<FunctionId::cuCtxGetCurrent>(&context);
  if (result != CUDA_SUCCESS) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUdevice device = -1;
  result = real<FunctionId::cuCtxGetDevice>(&device);
  if (result != CUDA_SUCCESS) return result;
  Lane* lane = lane_of(*space, context);
  if (lane == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation* record = nullptr;
  {
    const Lock lock(space->mutex);
    space->device = device;
    record = take_record(*space, wish.bytes);
  }
  if (record == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  CUdeviceptr made = 0;
  result = real<FunctionId::cuMemAllocManaged>(&made, wish.bytes, wish.flags);
  if (result == CUDA_SUCCESS && wish.plain) place(*space, *lane, wish, made);
  const Lock lock(space->mutex);
  if (result != CUDA_SUCCESS) {
    give_record(*space, record);
    return result;
  }
  record->lane = lane;
  record->plain = wish.plain;
  add(*space, *record, made, wish.room ? Where::kHere : Where::kAway);
  *address = made;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::interposer::moving::managed
