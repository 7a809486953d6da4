#pragma once

#include "interposer/moving/swap/swap.h"

// Physical memory that the program makes itself (cuMemCreate) and maps where it likes, moved as
// other memory is. The program has a handle of ours, which stays the same; the driver's own changes
// every time that the memory comes back. Addresses are the program's.
//
// All of these are for threads of the program, and never called with a lock of ours held. Where
// nothing of ours is concerned they do what the driver does.
namespace nvshare::interposer::moving::swap {

// Told for every piece of memory that is gone, with no lock held.
using SwapTellFreed = void (*)(const Freed& freed);

// Whether memory of this kind can be made again just as it is.
bool swap_can_follow(gate::Gate& gate, uint64_t bytes, const CUmemAllocationProp& kind,
                     unsigned long long flags);
// Makes it. It is counted already; `room` as for swap_allocate().
CUresult swap_create(gate::Gate& gate, uint64_t bytes, const CUmemAllocationProp& kind, bool room,
                     CUmemGenericAllocationHandle* handle);

// Whether the number is one of ours, or could be: it is none of the driver's.
bool swap_is_handle(CUmemGenericAllocationHandle handle);
// Whether anything of ours is mapped in the range, there or away.
bool swap_is_mapped(CUdeviceptr address, uint64_t bytes);

// These two are for ours alone: a handle for which swap_is_handle(), an address for which
// swap_is_mapped().
CUresult swap_release(CUmemGenericAllocationHandle handle, SwapTellFreed tell);
CUresult swap_retain(CUdeviceptr address, CUmemGenericAllocationHandle* handle);

// For a handle for which swap_is_handle(). While the memory is away nothing but the records change,
// and the checks are ours.
CUresult swap_map(CUdeviceptr address, uint64_t bytes, uint64_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult swap_unmap(CUdeviceptr address, uint64_t bytes, SwapTellFreed tell);
CUresult swap_set_access(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* access,
                         size_t count);
// Whether one of these lets somebody use memory of ours who is not its device: our gate does not
// hold him back while it is away.
bool swap_lets_others_in(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* access,
                         size_t count);
CUresult swap_get_access(unsigned long long* flags, const CUmemLocation* location,
                         CUdeviceptr address);
CUresult swap_properties(CUmemAllocationProp* kind, CUmemGenericAllocationHandle handle);

// Addresses are known, so that nothing is mapped outside of them while it is away.
CUresult swap_reserve(CUdeviceptr* address, uint64_t bytes, uint64_t alignment, CUdeviceptr wanted,
                      unsigned long long flags);
CUresult swap_unreserve(CUdeviceptr address, uint64_t bytes);

// Memory that others get hold of does not move any more.
struct SwapPinned {
  enum What : uint8_t {
    kNotOurs,
    kAway,    // not now: it can only be pinned where it is used
    kPinned,  // it is, and the driver's handle of it stays the same
    kNever,   // no other process can be given it
  };
  What what = kNotOurs;
  CUmemGenericAllocationHandle handle = 0;  // the driver's
  gate::Gate* gate = nullptr;
  uint64_t bytes = 0;  // that were not pinned before
};
SwapPinned swap_pin(CUmemGenericAllocationHandle handle);
// The first that is mapped in the range and is not pinned yet; not ours when there is none.
SwapPinned swap_pin_at(CUdeviceptr address, uint64_t bytes);

// Held while the driver is asked about an address: what is mapped there does not leave meanwhile.
class SwapHold {
 public:
  explicit SwapHold(CUdeviceptr address);
  ~SwapHold();
  SwapHold(const SwapHold&) = delete;
  SwapHold& operator=(const SwapHold&) = delete;

  // The driver knows nothing of it now.
  bool away() const { return away_; }
  // Of its device; null when nothing of ours is mapped there.
  gate::Gate* gate() const { return gate_; }

 private:
  struct Chunk* chunk_ = nullptr;
  gate::Gate* gate_ = nullptr;
  bool away_ = false;
};

}  // namespace nvshare::interposer::moving::swap
