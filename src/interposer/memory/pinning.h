#pragma once

#include "interposer/gate/gate.h"
#include "interposer/link/link.h"
#include "interposer/moving/swap/virtual.h"

namespace nvshare::interposer {

// What is away comes in with the next grant of its device, which may not be the current one.
// Refused when it does not even then.
template <typename Pin>
SwapPinned pin_when_there(Pin pin) {
  SwapPinned pinned = pin();
  if (pinned.what == SwapPinned::kAway) {
    const Passage passage(*pinned.gate);
    pinned = pin();
  }
  if (pinned.bytes != 0) memory_pinned(*pinned.gate, pinned.bytes);
  return pinned;
}

}  // namespace nvshare::interposer
