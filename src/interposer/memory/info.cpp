#include "interposer/catch/bodies.h"
#include "interposer/link/link.h"
#include "interposer/link/look.h"

// How much memory there is: with a limit, the tenant's own. Free is what the program could have
// more: where others' memory can move that is not what the driver has now.
namespace nvshare::interposer::memory {
namespace {

template <typename Size>
Size least(Size real, uint64_t own) {
  return own < real ? static_cast<Size>(own) : real;
}

template <FunctionId kFunction, typename Size>
CUresult get_info(Size* free, Size* total) {
  gate::Gate* gate = link::gate_of_current_device();
  // Nobody knows the limit of a program that the scheduler does not take yet.
  if (gate != nullptr) link::wait_while_refused(*gate);
  const link::MemoryView view = gate == nullptr ? link::MemoryView{} : link::memory_view(*gate);
  if (view.limit == 0 && !view.has_room) return real<kFunction>(free, total);
  Size real_free = 0;
  Size real_total = 0;
  const CUresult result = real<kFunction>(&real_free, &real_total);
  if (result != CUDA_SUCCESS) return result;
  const Size all = view.limit == 0 ? real_total : least(real_total, view.limit);
  Size left = view.has_room ? least(real_total, view.room_left) : real_free;
  if (view.limit != 0) {
    left = least(left, view.allocated < view.limit ? view.limit - view.allocated : 0);
  }
  if (free != nullptr) *free = left;
  if (total != nullptr) *total = all;
  return CUDA_SUCCESS;
}

// Frameworks ask about every device there is: that makes nobody a client of the scheduler.
template <FunctionId kFunction, typename Size>
CUresult get_total(Size* bytes, CUdevice device) {
  const CUresult result = real<kFunction>(bytes, device);
  if (result != CUDA_SUCCESS) return result;
  const link::MemoryView view = link::look_at_memory(device);
  if (view.limit != 0) *bytes = least(*bytes, view.limit);
  return result;
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuMemGetInfo(unsigned* free, unsigned* total) {
  return get_info<FunctionId::cuMemGetInfo>(free, total);
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return get_info<FunctionId::cuMemGetInfo_v2>(free, total);
}

CUresult cuDeviceTotalMem(unsigned* bytes, CUdevice device) {
  return get_total<FunctionId::cuDeviceTotalMem>(bytes, device);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return get_total<FunctionId::cuDeviceTotalMem_v2>(bytes, device);
}

}  // namespace nvshare::interposer::own
