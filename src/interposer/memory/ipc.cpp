#include "interposer/link/ipc.h"

#include <string.h>

#include "interposer/catch/bodies.h"
#include "interposer/memory/driver_room.h"
#include "interposer/memory/imports.h"
#include "interposer/memory/movable.h"
#include "interposer/memory/pinning.h"
#include "interposer/moving/swap/share.h"

// CUDA IPC of plain memory. Memory that the driver allocated itself has the driver's handles.
// Memory that can leave the GPU has handles of ours, which other processes under nvshare open.
namespace nvshare::interposer::memory {
namespace {

CUresult refuse_to_share() {
  warn_once(
      "this program shares GPU memory with other processes (CUDA IPC), which memory that can "
      "leave the GPU does not do here: start it with `nvshare run --backend native`");
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult make_handle(gate::Gate& gate, CUdeviceptr address, CUipcMemHandle* to) {
  IpcHandle handle{};
  handle.magic = IpcHandle::kMagic;
  uint64_t secret = 0;
  while (secret == 0) {
    if (!link::random_bytes(&secret, sizeof secret)) return CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (!link::ipc_announce(gate, handle.owner)) return refuse_to_share();
  moving::swap::SwapShare share;
  const moving::swap::SwapPinned pinned =
      pin_when_there([&] { return moving::swap::swap_share(address, secret, &share); });
  switch (pinned.what) {
    case moving::swap::SwapPinned::kNotOurs:  // freed meanwhile
      return CUDA_ERROR_INVALID_VALUE;
    case moving::swap::SwapPinned::kAway:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case moving::swap::SwapPinned::kNever:
      return refuse_to_share();
    case moving::swap::SwapPinned::kPinned:
      break;
  }
  handle.memory = {share.base, share.secret};
  memcpy(to, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

template <FunctionId kFunction>
CUresult open(CUdeviceptr* address, const CUipcMemHandle& from, unsigned flags) {
  IpcHandle handle;
  if (!read_handle(from, handle)) return real_with_room<kFunction>(address, from, flags);
  if (address == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return import_open(handle, address);
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  const moving::Range range = handle != nullptr ? movable_range_of(address) : moving::Range{};
  if (!range.ours || !range.plain) return real<FunctionId::cuIpcGetMemHandle>(handle, address);
  CUdevice current = -1;
  const CUresult result = real<FunctionId::cuCtxGetDevice>(&current);
  if (result != CUDA_SUCCESS) return result;
  return range.shareable ? make_handle(*range.gate, address, handle) : refuse_to_share();
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open<FunctionId::cuIpcOpenMemHandle>(address, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open<FunctionId::cuIpcOpenMemHandle_v2>(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  CUresult result = CUDA_SUCCESS;
  if (import_close(address, &result)) return result;
  return real<FunctionId::cuIpcCloseMemHandle>(address);
}

}  // namespace nvshare::interposer::own
