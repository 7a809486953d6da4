#pragma once

#include <string.h>

#include "cuda/types.h"
#include "wire/messages.h"

namespace nvshare::interposer::memory {

// The IPC handle of memory that can leave the GPU, in the place of the driver's.
struct IpcHandle {
  static constexpr uint64_t kMagic = 0x637069726873766e;  // "nvshripc"
  uint64_t magic;
  uint8_t owner[wire::kIpcNameLength];
  wire::IpcMemory memory;
  uint8_t unused[24];
};
static_assert(sizeof(IpcHandle) == sizeof(cuda::CUipcMemHandle));

// Whether the handle is one of ours.
inline bool read_handle(const cuda::CUipcMemHandle& from, IpcHandle& handle) {
  memcpy(&handle, &from, sizeof handle);
  return handle.magic == IpcHandle::kMagic;
}

inline bool is_same(const IpcHandle& one, const IpcHandle& other) {
  return memcmp(&one, &other, sizeof one) == 0;
}

}  // namespace nvshare::interposer::memory
