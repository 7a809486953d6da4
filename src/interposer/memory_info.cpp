#include "interposer/bodies.h"
#include "interposer/link.h"
#include "interposer/look.h"

// How much memory there is: with a limit, the tenant's own; without one, the driver's answer.
namespace nvshare::interposer {
namespace {

template <typename Size>
Size least(Size real, uint64_t own) {
  return own < real ? static_cast<Size>(own) : real;
}

template <FunctionId kFunction, typename Size>
CUresult get_info(Size* free, Size* total) {
  Gate* gate = gate_of_current_device();
  const MemoryView view = gate == nullptr ? MemoryView{} : memory_view(*gate);
  if (view.limit == 0) return real<kFunction>(free, total);
  Size real_free = 0;
  Size real_total = 0;
  const CUresult result = real<kFunction>(&real_free, &real_total);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t left = view.limit - (view.allocated < view.limit ? view.allocated : view.limit);
  if (free != nullptr) *free = least(real_free, left);
  if (total != nullptr) *total = least(real_total, view.limit);
  return CUDA_SUCCESS;
}

// Frameworks ask about every device there is: that makes nobody a client of the scheduler.
template <FunctionId kFunction, typename Size>
CUresult get_total(Size* bytes, CUdevice device) {
  const CUresult result = real<kFunction>(bytes, device);
  if (result != CUDA_SUCCESS) return result;
  const MemoryView view = look_at_memory(device);
  if (view.limit != 0) *bytes = least(*bytes, view.limit);
  return result;
}

}  // namespace

namespace own {

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

}  // namespace own
}  // namespace nvshare::interposer
