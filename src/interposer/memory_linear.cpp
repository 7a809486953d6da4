#include "interposer/bodies.h"
#include "interposer/memory_count.h"
#include "interposer/memory_graph.h"

// Plain, pitched and managed memory. With the backend `swap` the first two can move (swap.h).
// Arguments that the driver refuses anyway go to it unasked, so that its answer is the one without
// us.
namespace nvshare::interposer {
namespace {

// What every driver of today rounds rows up to.
constexpr uint64_t kPitch = 512;

template <FunctionId kFunction, typename Address, typename Size, typename... More>
CUresult allocate(Address* address, Size bytes, More... more) {
  if (address == nullptr || bytes == 0) return real<kFunction>(address, bytes, more...);
  Charge charge(gate_of_current_device(), bytes);
  if (charge.refused()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = real<kFunction>(address, bytes, more...);
  if (result == CUDA_SUCCESS) charge.keep({Space::kAddress, *address}, Lifetime::kContext);
  return result;
}

// The bytes are known when the driver has chosen the pitch: asked for as it will probably be, and
// corrected afterwards.
template <FunctionId kFunction, FunctionId kFree, typename Address, typename Size>
CUresult allocate_pitched(Address* address, Size* pitch, Size width, Size height,
                          unsigned element_size) {
  const uint64_t rows = product(sum(width, kPitch - 1) / kPitch, kPitch);
  const uint64_t expected = product(rows, height);
  const bool absurd = expected >= kMostBytes;
  if (address == nullptr || pitch == nullptr || expected == 0) {
    return real<kFunction>(address, pitch, width, height, element_size);
  }
  Charge charge(absurd ? nullptr : gate_of_current_device(), expected);
  if (charge.refused()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = real<kFunction>(address, pitch, width, height, element_size);
  if (result != CUDA_SUCCESS) return result;
  if (absurd || !charge.correct(product(*pitch, height))) {
    real<kFree>(*address);
    *address = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  charge.keep({Space::kAddress, *address}, Lifetime::kContext);
  return CUDA_SUCCESS;
}

// The gate of the device that memory which can move is to be allocated on; null when it is to be
// the driver's own.
Gate* gate_for_swap() {
  Gate* gate = gate_of_current_device();
  const bool swaps = gate != nullptr && memory_backend(*gate) == wire::Backend::Swap;
  return swaps ? gate : nullptr;
}

CUresult allocate_swappable(Gate& gate, CUdeviceptr* address, uint64_t bytes) {
  if (bytes >= kMostBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const Given given = memory_request(gate, bytes, true);
  if (given == Given::Refused) return CUDA_ERROR_OUT_OF_MEMORY;
  bool room = given == Given::Room;
  CUresult result = swap_allocate(gate, bytes, room, address);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && room && memory_found_no_room(gate, bytes)) {
    room = false;
    result = swap_allocate(gate, bytes, room, address);
  }
  if (result != CUDA_SUCCESS) memory_freed(gate, {bytes, room ? bytes : 0, 0});
  return result;
}

template <FunctionId kFunction, typename Address>
CUresult release(Address address) {
  if (const SwapFreed freed = swap_free(address); freed.ours) {
    tell_freed(freed);
    return freed.result;
  }
  const Serial before = mark();
  const CUresult result = real<kFunction>(address);
  if (result != CUDA_SUCCESS) return result;
  uncount({Space::kAddress, address}, before);
  left_freed(address);
  return result;
}

}  // namespace

namespace own {

CUresult cuMemAlloc(CUdeviceptr_v1* address, unsigned bytes) {
  return allocate<FunctionId::cuMemAlloc>(address, bytes);
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  Gate* gate = address != nullptr && bytes != 0 ? gate_for_swap() : nullptr;
  if (gate != nullptr) return allocate_swappable(*gate, address, bytes);
  return allocate<FunctionId::cuMemAlloc_v2>(address, bytes);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return allocate<FunctionId::cuMemAllocManaged>(address, bytes, flags);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* address, unsigned* pitch, unsigned width_bytes,
                         unsigned height, unsigned element_size_bytes) {
  return allocate_pitched<FunctionId::cuMemAllocPitch, FunctionId::cuMemFree>(
      address, pitch, width_bytes, height, element_size_bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width_bytes, size_t height,
                            unsigned element_size_bytes) {
  const uint64_t row = product(sum(width_bytes, kPitch - 1) / kPitch, kPitch);
  const uint64_t bytes = product(row, height);
  const bool sound =
      address != nullptr && pitch != nullptr && bytes != 0 && bytes < kMostBytes &&
      (element_size_bytes == 4 || element_size_bytes == 8 || element_size_bytes == 16);
  if (Gate* gate = sound ? gate_for_swap() : nullptr) {
    const CUresult result = allocate_swappable(*gate, address, bytes);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
  }
  return allocate_pitched<FunctionId::cuMemAllocPitch_v2, FunctionId::cuMemFree_v2>(
      address, pitch, width_bytes, height, element_size_bytes);
}

CUresult cuMemFree(CUdeviceptr_v1 address) {
  return release<FunctionId::cuMemFree>(address);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return release<FunctionId::cuMemFree_v2>(address);
}

}  // namespace own
}  // namespace nvshare::interposer
