#include "interposer/catch/bodies.h"
#include "interposer/memory/count.h"
#include "interposer/memory/graph.h"
#include "interposer/memory/movable.h"

// Plain, pitched and managed memory. With the backend `swap` the first two can move, and with
// `managed` all three (memory_movable.h).
// Arguments that the driver refuses anyway go to it unasked, so that its answer is the one without
// us.
namespace nvshare::interposer::memory {
namespace {

// What every driver of today rounds rows up to.
constexpr uint64_t kPitch = 512;

template <FunctionId kFunction, typename Address, typename Size, typename... More>
CUresult allocate(Address* address, Size bytes, More... more) {
  if (address == nullptr || bytes == 0) return real<kFunction>(address, bytes, more...);
  gate::Gate* gate = link::gate_of_current_device();
  return link::allocate_with_scheduler(gate, [&](link::Again& again) {
    Charge charge(gate, bytes);
    if (charge.refused()) return again.refused();
    const CUresult result = real<kFunction>(address, bytes, more...);
    if (result == CUDA_SUCCESS) charge.keep({KeyKind::kAddress, *address}, Lifetime::kContext);
    return result;
  });
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
  gate::Gate* gate = absurd ? nullptr : link::gate_of_current_device();
  return link::allocate_with_scheduler(gate, [&](link::Again& again) {
    Charge charge(gate, expected);
    if (charge.refused()) return again.refused();
    const CUresult result = real<kFunction>(address, pitch, width, height, element_size);
    if (result != CUDA_SUCCESS) return result;
    if (absurd || !charge.correct(product(*pitch, height))) {
      real<kFree>(*address);
      *address = 0;
      return again.refused();
    }
    charge.keep({KeyKind::kAddress, *address}, Lifetime::kContext);
    return CUDA_SUCCESS;
  });
}

// What the current context's device does with memory that the program asks for, if `sound`, which
// otherwise goes to the driver.
Home home_if(bool sound) {
  return sound ? home_of_memory() : Home{};
}

template <FunctionId kFunction, typename Address>
CUresult release(Address address) {
  if (const moving::Freed freed = movable_free(address); freed.ours) {
    tell_freed(freed);
    return freed.result;
  }
  const Serial before = mark();
  const CUresult result = real<kFunction>(address);
  if (result != CUDA_SUCCESS) return result;
  uncount({KeyKind::kAddress, address}, before);
  left_freed(address);
  return result;
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuMemAlloc(CUdeviceptr_v1* address, unsigned bytes) {
  return allocate<FunctionId::cuMemAlloc>(address, bytes);
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const Home home = home_if(address != nullptr && bytes != 0);
  if (home.moves()) return movable_allocate(home, bytes, address);
  return allocate<FunctionId::cuMemAlloc_v2>(address, bytes);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  const Home home = home_if(address != nullptr && bytes != 0);
  if (home.backend == wire::Backend::Managed) {
    return movable_allocate_managed(home, bytes, flags, address);
  }
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
  if (const Home home = home_if(sound); home.moves()) {
    const CUresult result = movable_allocate(home, bytes, address);
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

}  // namespace nvshare::interposer::own
