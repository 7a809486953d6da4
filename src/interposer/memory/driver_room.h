#pragma once

#include "interposer/catch/driver.h"
#include "interposer/gate/gate.h"

// Room for what the driver takes by itself: for code that it loads when a kernel is first launched,
// for streams, graphs and contexts. The scheduler fills a card with programs' memory, and then a
// call that nobody would think of as an allocation fails for want of some. Others' memory can move
// out of the way: room is made, and the call made again.
namespace nvshare::interposer::memory {

// What is kept free for one call. Costs nothing until the driver has refused it.
class DriverRoom {
 public:
  DriverRoom() = default;
  ~DriverRoom() {
    if (held_ != 0) give_back();
  }
  DriverRoom(const DriverRoom&) = delete;
  DriverRoom& operator=(const DriverRoom&) = delete;

  // The driver has no memory for a call to there, or for a context on that device. True: there is
  // more room now than there was, and the call is to be made again. Waits for others to make it;
  // who calls is not inside the gate and holds no lock of ours. False without a scheduler, but for
  // one that has just gone, which is waited for; while anything is captured, and within another
  // call.
  bool more(gate::Destination destination);
  bool more(CUdevice device);

 private:
  bool more(gate::Gate* gate);
  void give_back();

  gate::Gate* gate_ = nullptr;
  uint64_t held_ = 0;
  unsigned tries_ = 0;
};

// Makes a call for which the driver may need memory of its own. `place` as for DriverRoom::more().
template <typename Place, typename Call>
[[gnu::always_inline]] inline CUresult with_room(Place place, const Call& call) {
  DriverRoom room;
  for (;;) {
    const CUresult result = call();
    if (result != CUDA_ERROR_OUT_OF_MEMORY) [[likely]]
      return result;
    if (!room.more(place)) return result;
  }
}

// The same for one that goes to the current device.
template <FunctionId id, typename... Arguments>
inline CUresult real_with_room(Arguments... arguments) {
  return with_room(gate::Destination{}, [&] { return real<id>(arguments...); });
}

// The same for one that makes no work, but for which the driver looks at memory: what can leave is
// there.
template <FunctionId id, typename... Arguments>
inline CUresult real_with_memory(Arguments... arguments) {
  if (gate::Slot* slot = gate::enter_free()) {
    const CUresult result = real<id>(arguments...);
    gate::leave_free(slot);
    return result;
  }
  return with_room(gate::Destination{}, [&] {
    const gate::Passage passage({}, gate::Needs::kMemory);
    if (passage.refused()) return gate::Passage::kRefused;
    return real<id>(arguments...);
  });
}

}  // namespace nvshare::interposer::memory
