#include "softgpu/runtime/residence.h"

#include <algorithm>

namespace nvshare::softgpu {
namespace {

// Calls with the address and the size of each block that the bytes touch. Blocks are counted from
// where the allocation begins; the last one ends with it.
template <typename Visit>
void for_each_block(const Allocation& allocation, std::uint64_t address, std::uint64_t bytes,
                    Visit visit) {
  const std::uint64_t end =
      std::min(address + bytes, allocation.base + allocation.bytes) - allocation.base;
  for (std::uint64_t at = (address - allocation.base) / kBlock * kBlock; at < end; at += kBlock) {
    visit(allocation.base + at, std::min(kBlock, allocation.bytes - at));
  }
}

}  // namespace

void Residence::forget(OnDevice& there, std::uint64_t block) {
  const auto found = there.blocks.find(block);
  there.bytes -= found->second.bytes;
  there.by_age.erase(found->second.place);
  there.blocks.erase(found);
}

void Residence::settle(Segment& segment, int device) {
  OnDevice& there = devices_[static_cast<std::size_t>(device)];
  if (there.blocks.empty()) return;
  const std::uint64_t left = managed_here(segment, device);
  while (there.bytes > left && !there.by_age.empty()) forget(there, there.by_age.front());
  // Others push out bytes, we hold blocks: what is left of a block goes with it.
  if (left > there.bytes) release_managed(segment, device, left - there.bytes);
}

void Residence::use(Segment& segment, int device, const Allocation& allocation,
                    std::uint64_t address, std::uint64_t bytes) {
  use_managed(segment, device);
  settle(segment, device);
  OnDevice& there = devices_[static_cast<std::size_t>(device)];
  for_each_block(allocation, address, bytes, [&](std::uint64_t block, std::uint64_t size) {
    const auto found = there.blocks.find(block);
    if (found != there.blocks.end()) {
      there.by_age.splice(there.by_age.end(), there.by_age, found->second.place);
      return;
    }
    leave(segment, allocation, block, size);
    if (!charge_managed(segment, device, size)) return;
    there.blocks[block] = {size, there.by_age.insert(there.by_age.end(), block)};
    there.bytes += size;
    settle(segment, device);  // the room may have come from ourselves
  });
}

void Residence::leave(Segment& segment, const Allocation& allocation, std::uint64_t address,
                      std::uint64_t bytes) {
  for (int device = 0; device < kMaxDevices; ++device) {
    OnDevice& there = devices_[static_cast<std::size_t>(device)];
    if (there.blocks.empty()) continue;
    settle(segment, device);
    for_each_block(allocation, address, bytes, [&](std::uint64_t block, std::uint64_t size) {
      if (!there.blocks.contains(block)) return;
      forget(there, block);
      release_managed(segment, device, size);
    });
  }
}

std::uint64_t Residence::missing(Segment& segment, int device, const Allocation& allocation,
                                 std::uint64_t address, std::uint64_t bytes) {
  settle(segment, device);
  const OnDevice& there = devices_[static_cast<std::size_t>(device)];
  std::uint64_t missing = 0;
  for_each_block(allocation, address, bytes, [&](std::uint64_t block, std::uint64_t size) {
    if (!there.blocks.contains(block)) missing += size;
  });
  return missing;
}

}  // namespace nvshare::softgpu
