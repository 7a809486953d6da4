// Contexts come and go. With the first one on a device its link to the scheduler is made; with a
// context goes all that is known of its streams and of its memory.
#include "interposer/catch/bodies.h"
#include "interposer/gate/records.h"
#include "interposer/link/state.h"
#include "interposer/memory/driver_room.h"
#include "interposer/memory/memory.h"
#include "interposer/moving/managed/managed.h"

namespace nvshare::interposer::catching {
namespace {

// The device's gate, if it has one, of a program that the scheduler takes.
CUresult be_welcome(CUdevice device, gate::Gate*& gate) {
  const KeepErrno keep;
  gate = link::gate_of_device(device);
  return gate == nullptr ? CUDA_SUCCESS : link::wait_for_welcome(*gate);
}

// `call` has the driver make a context on the device. The scheduler is asked before that, because a
// context takes GPU memory, and a program that is refused is to have none.
template <typename Call>
CUresult make(const CUcontext* context, CUdevice device, const Call& call) {
  gate::Gate* gate = nullptr;
  if (const CUresult welcome = be_welcome(device, gate); welcome != CUDA_SUCCESS) return welcome;
  const CUresult result = memory::with_room(device, call);
  if (result != CUDA_SUCCESS || gate == nullptr) return result;
  const KeepErrno keep;
  link::end_before_driver();
  gate::note_context(*gate, *context);
  if (link::memory_backend(*gate) == wire::Backend::Swap)
    moving::swap::swap_context_made(*gate, *context);
  return result;
}

// Nobody of us touches a context while the driver ends it (or, not `leaving`, has refused to).
void about_to_end(CUcontext context, bool leaving) {
  gate::set_leaving(context, leaving);
  moving::swap::swap_context_leaving(context, leaving);
  moving::managed::managed_context_leaving(context, leaving);
}

template <FunctionId id>
CUresult destroy(CUcontext context) {
  const uint64_t mark = memory::memory_mark();
  about_to_end(context, true);
  const CUresult result = real<id>(context);
  const bool gone = result == CUDA_SUCCESS &&
                    (id != FunctionId::cuCtxDetach || memory::memory_last_attachment(context));
  if (!gone) {
    about_to_end(context, false);
    return result;
  }
  gate::HoldMarkers().gone(context);
  memory::memory_context_gone(context, mark);
  return result;
}

// The primary context ends with a reset, or when the last who retained it releases it.
template <FunctionId id>
CUresult give_back_primary(CUdevice device) {
  const uint64_t mark = memory::memory_mark();
  const CUcontext context = gate::primary_of(device);
  about_to_end(context, true);
  const CUresult result = real<id>(device);
  unsigned flags = 0;
  int active = 1;
  if (result == CUDA_SUCCESS) {
    real<FunctionId::cuDevicePrimaryCtxGetState>(device, &flags, &active);
  }
  if (active != 0) {
    about_to_end(context, false);
    return result;
  }
  const CUcontext ended = gate::HoldMarkers().primary_gone(device);
  if (ended != nullptr) memory::memory_context_gone(ended, mark);
  return result;
}

}  // namespace

}  // namespace nvshare::interposer::catching

namespace nvshare::interposer::own {
using namespace catching;

CUresult cuCtxCreate(CUcontext* ctx, unsigned flags, CUdevice device) {
  return make(ctx, device, [&] { return real<FunctionId::cuCtxCreate>(ctx, flags, device); });
}
CUresult cuCtxCreate_v2(CUcontext* ctx, unsigned flags, CUdevice device) {
  return make(ctx, device, [&] { return real<FunctionId::cuCtxCreate_v2>(ctx, flags, device); });
}
CUresult cuCtxCreate_v3(CUcontext* ctx, CUexecAffinityParam* params_array, int num_params,
                        unsigned flags, CUdevice device) {
  return make(ctx, device, [&] {
    return real<FunctionId::cuCtxCreate_v3>(ctx, params_array, num_params, flags, device);
  });
}
CUresult cuCtxCreate_v4(CUcontext* ctx, CUctxCreateParams* ctx_create_params, unsigned flags,
                        CUdevice device) {
  return make(ctx, device, [&] {
    return real<FunctionId::cuCtxCreate_v4>(ctx, ctx_create_params, flags, device);
  });
}
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx ctx) {
  const CUresult result = real<FunctionId::cuCtxFromGreenCtx>(context, ctx);
  if (result != CUDA_SUCCESS) return result;
  const KeepErrno keep;
  CUcontext popped;
  CUdevice device = -1;
  if (real<FunctionId::cuCtxPushCurrent_v2>(*context) != CUDA_SUCCESS) return result;
  real<FunctionId::cuCtxGetDevice>(&device);
  real<FunctionId::cuCtxPopCurrent_v2>(&popped);
  if (gate::Gate* gate = link::gate_of_device(device)) gate::note_context(*gate, *context);
  return result;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice device) {
  return make(ctx, device, [&] {
    const CUresult result = real<FunctionId::cuDevicePrimaryCtxRetain>(ctx, device);
    if (result == CUDA_SUCCESS) gate::note_primary(device, *ctx);
    return result;
  });
}

CUresult cuCtxDestroy(CUcontext ctx) {
  return destroy<FunctionId::cuCtxDestroy>(ctx);
}
CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return destroy<FunctionId::cuCtxDestroy_v2>(ctx);
}
CUresult cuCtxDetach(CUcontext ctx) {
  return destroy<FunctionId::cuCtxDetach>(ctx);
}
CUresult cuGreenCtxDestroy(CUgreenCtx ctx) {
  CUcontext context = nullptr;
  if (link::any_link()) real<FunctionId::cuCtxFromGreenCtx>(&context, ctx);
  about_to_end(context, true);
  const CUresult result = real<FunctionId::cuGreenCtxDestroy>(ctx);
  if (result == CUDA_SUCCESS && context != nullptr) {
    gate::HoldMarkers().gone(context);
  } else {
    about_to_end(context, false);
  }
  return result;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return give_back_primary<FunctionId::cuDevicePrimaryCtxRelease>(device);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return give_back_primary<FunctionId::cuDevicePrimaryCtxRelease_v2>(device);
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return give_back_primary<FunctionId::cuDevicePrimaryCtxReset>(device);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return give_back_primary<FunctionId::cuDevicePrimaryCtxReset_v2>(device);
}

}  // namespace nvshare::interposer::own
