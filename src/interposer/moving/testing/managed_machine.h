#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "interposer/moving/managed/managed.h"
#include "interposer/moving/testing/swap_machine.h"

namespace nvshare::interposer::moving::managed {

// Unified memory in a context on a card of 1 GiB, with a gate of the test's own. At the end
// everything is freed, and the card is as empty as it was.
class ManagedMachine : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { start_card(); }
  void SetUp() override;
  void TearDown() override;

  // Memory that is written to, and remembered with what it should be. Seed 0: not written to.
  CUdeviceptr allocate(const ManagedWish& wish, uint64_t seed);
  CUdeviceptr allocate(uint64_t bytes, uint64_t seed) {
    return allocate({bytes, true, true, CU_MEM_ATTACH_GLOBAL}, seed);
  }
  CUdeviceptr allocate_away(uint64_t bytes) {
    return allocate({bytes, false, true, CU_MEM_ATTACH_GLOBAL}, 0);
  }
  void free(CUdeviceptr address);
  // Whether all that is remembered has the right bytes. Looked at from the host, which moves
  // nothing on this card.
  void check_contents();
  // Whether the sums are exact, as the books have them and as they were told.
  void check_sums();

  bool out(uint64_t bytes);
  bool in(uint64_t bytes);
  bool out_all() { return out(~uint64_t{0}); }
  bool in_all() { return in(~uint64_t{0}); }

  uint64_t used() const;  // of the card, beyond what was used at the beginning
  uint64_t live() const;  // of what was asked for

  struct Known {
    uint64_t bytes = 0;
    uint64_t seed = 0;
  };

  gate::Gate gate;
  CUcontext context{};
  std::map<CUdeviceptr, Known> known;
  // What was told, all together, and of the last move alone.
  uint64_t told_resident = 0;
  Moved last;
  int reports = 0;
  std::function<bool()> on_progress;

 private:
  using Move = bool(gate::Gate&, uint64_t, Progress, void*);
  bool move(Move* how, uint64_t bytes);

  uint64_t used_before_ = 0;
};

}  // namespace nvshare::interposer::moving::managed
