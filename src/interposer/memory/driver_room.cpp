#include "interposer/memory/driver_room.h"

#include "interposer/gate/records.h"
#include "interposer/link/state.h"

namespace nvshare::interposer::memory {
namespace {

// Nobody knows how much the driver wants: asked for is little first, and then four times as much.
// A part of the card, for small ones.
constexpr uint64_t kFirst = uint64_t{64} << 20;
constexpr uint64_t kLeastPart = 64;
constexpr uint64_t kTimes = 4;
constexpr unsigned kMostTries = 3;

uint64_t first_step(const gate::Gate& gate) {
  const uint64_t part = gate.link->device.memory / kLeastPart;
  return part < kFirst ? part : kFirst;
}

// Whoever gives the GPU back waits for threads that are inside.
bool is_inside() {
  return gate::t_slot != nullptr && gate::t_slot->inside.load(std::memory_order_relaxed) != nullptr;
}

// To capture means not to be held up.
bool may_wait() {
  return !is_inside() && gate::g_captures.load(std::memory_order_relaxed) == 0 &&
         !gate::stopped_looking();
}

}  // namespace

__attribute__((cold)) bool DriverRoom::more(gate::Destination destination) {
  const KeepErrno keep;
  return may_wait() && more(gate::gate_for(destination));
}

__attribute__((cold)) bool DriverRoom::more(CUdevice device) {
  const KeepErrno keep;
  return may_wait() && more(link::gate_of_device(device));
}

bool DriverRoom::more(gate::Gate* gate) {
  if (gate_ == nullptr) gate_ = gate;
  if (gate_ == nullptr || tries_ == kMostTries) return false;
  // There was room by the books, and the driver did not find it.
  const bool told = tries_ == 0 ? link::wait_for_scheduler(*gate_) : link::memory_is_short(*gate_);
  if (!told) return false;
  const uint64_t wanted = tries_ == 0 ? first_step(*gate_) : kTimes * held_;
  const uint64_t bytes = wanted - held_;
  if (link::memory_request(*gate_, bytes, false) == link::Given::Refused) return false;
  held_ = wanted;
  ++tries_;
  return true;
}

// What the driver has taken of it is in nobody's books until it is measured the next time. Should
// somebody be promised the same room meanwhile, the driver tells him so (memory_found_no_room).
void DriverRoom::give_back() {
  link::pinned_memory_freed(*gate_, held_);
}

}  // namespace nvshare::interposer::memory
