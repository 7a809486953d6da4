#pragma once

#include <map>
#include <set>

#include "interposer/moving/swap/virtual.h"
#include "interposer/moving/testing/fault_machine.h"

// Memory that the program makes itself, on the software GPU: what it should be is remembered.
namespace nvshare::interposer::moving::swap {

using Handle = CUmemGenericAllocationHandle;

inline constexpr uint64_t kGranule = 2 * kMiB;

class VirtualMachine : public FaultMachine {
 protected:
  using FaultMachine::FaultMachine;

  void SetUp() override;
  // Everything is unmapped and released.
  void TearDown() override;
  void check_all() override;

  static CUmemAllocationProp kind();
  static CUmemAccessDesc may(CUmemAccess_flags flags);

  CUdeviceptr at(uint64_t granule) const { return range + granule * kGranule; }

  Handle create(uint64_t bytes, bool room = true);
  // Mapped, to be read and written.
  void map(Handle handle, CUdeviceptr address);
  // As PyTorch does it: one behind the other, and filled.
  Handle grow(uint64_t bytes, uint64_t seed);
  void unmap(CUdeviceptr address, uint64_t bytes);
  void release(Handle handle);

  void fill(CUdeviceptr address, uint64_t bytes, uint64_t seed);
  bool has(CUdeviceptr address, uint64_t bytes, uint64_t seed) const;
  unsigned long long access_at(CUdeviceptr address) const;

  // Out and in again, with nothing of it on the card in between.
  void there_and_back();

  struct Written {
    uint64_t bytes;
    uint64_t seed;
  };

  static constexpr uint64_t kRange = 128 * kGranule;
  CUdeviceptr range = 0;
  CUdeviceptr end = 0;  // of what grow() has mapped
  std::multiset<Handle> handles;
  std::map<CUdeviceptr, Written> written;
  // Of what was freed last, all together.
  static Freed freed;
  static void note_freed(const Freed& one);
  // Told, and not yet taken off what is remembered.
  void settle_freed();

 private:
  static Freed unsettled;
};

}  // namespace nvshare::interposer::moving::swap
