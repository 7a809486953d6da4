#pragma once

#include "interposer/gate/gate.h"
#include "interposer/link/link.h"
#include "interposer/moving/swap/virtual.h"

namespace nvshare::interposer::memory {

// What is away comes in with the next grant of its device, which may not be the current one.
// Refused when it does not even then.
template <typename Pin>
moving::swap::SwapPinned pin_when_there(Pin pin) {
  moving::swap::SwapPinned pinned = pin();
  if (pinned.what == moving::swap::SwapPinned::kAway) {
    const gate::Passage passage(*pinned.gate);
    pinned = pin();
  }
  if (pinned.bytes != 0) link::memory_pinned(*pinned.gate, pinned.bytes);
  return pinned;
}

}  // namespace nvshare::interposer::memory
