#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>

#include "softgpu/engine/segment.h"
#include "softgpu/runtime/memory.h"

namespace nvshare::softgpu {

// Which blocks of this process's managed memory are on which device. The bytes never move (an
// address is an address); what moves is the account: a block that the device uses takes room on the
// card, and gives way, least recently used first, to whatever else needs the room, in this process
// or another. How much another has pushed out is told by the card; which blocks those were, this
// process works out when it looks next.
class Residence {
 public:
  // The device uses these bytes of the managed allocation. What finds no room on the card even
  // after everything else has given way is used from afar.
  void use(Segment& segment, int device, const Allocation& allocation, std::uint64_t address,
           std::uint64_t bytes);
  // They are on no device any more.
  void leave(Segment& segment, const Allocation& allocation, std::uint64_t address,
             std::uint64_t bytes);
  // How many of these bytes would have to move for the device to have them all.
  std::uint64_t missing(Segment& segment, int device, const Allocation& allocation,
                        std::uint64_t address, std::uint64_t bytes);

 private:
  struct Block {
    std::uint64_t bytes = 0;
    std::list<std::uint64_t>::iterator place;  // in by_age
  };
  struct OnDevice {
    std::map<std::uint64_t, Block> blocks;  // by address
    std::list<std::uint64_t> by_age;        // oldest first
    std::uint64_t bytes = 0;
  };

  // Forgets the blocks that others have pushed out.
  void settle(Segment& segment, int device);
  void forget(OnDevice& there, std::uint64_t block);

  std::array<OnDevice, kMaxDevices> devices_;
};

}  // namespace nvshare::softgpu
