#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <vector>

#include "interposer/moving/swap/swap.h"

// The swap engine on the software GPU, with a gate of the test's own. Every call of the driver goes
// through here, so that any of them can be made to fail.
namespace nvshare::interposer::moving {

#define EXPECT_OK(call) EXPECT_EQ((call), CUDA_SUCCESS)
#define ASSERT_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

// Of the calling thread's calls of the driver, from now on: the n-th fails (0: none), and they are
// counted.
void fail_call(uint64_t n);
uint64_t calls_since();
// What failed last.
const char* failed_function();

// A function of the driver fails for everybody, or works again.
void refuse(FunctionId id, bool refused, CUresult answer = CUDA_ERROR_OUT_OF_MEMORY);

// Done once, when the calling thread next calls that function, before the driver sees the call.
void before_next(FunctionId id, std::function<void()> action);

// Done whenever any thread calls that function, before the driver sees the call; null: no more.
void before_each(FunctionId id, std::function<void()> action);

// Calls of one function by anybody, from the beginning.
uint64_t driver_calls(FunctionId id);

// What was told of a move, and what is done meanwhile.
struct Told {
  Moved sum;
  int reports = 0;
  const std::function<bool()>* on_progress;
};
bool note_progress(void* told, Moved& moved);

// Bytes that differ in every place, and from seed to seed. Seed 0: zeros.
std::vector<unsigned char> pattern(uint64_t seed, uint64_t bytes);

// A software GPU of this process's own, with two cards of 1 GiB.
void start_card();

namespace swap {

// A context on a card of 1 GiB, and host memory to swap out to. At the end everything
// is freed, and the card is as empty as it was.
class SwapMachine : public ::testing::Test {
 protected:
  explicit SwapMachine(uint64_t host_bytes = 192 * kMiB) : host_bytes_(host_bytes) {}

  static void SetUpTestSuite();
  void SetUp() override;
  void TearDown() override;

  // The descriptor is there until the next is added.
  int add_arena(uint64_t bytes, SwapTellUntaken tell = nullptr);
  // What of it was told to be of no use.
  static uint64_t missing();
  // So much of it is enough; waits until the rest is given back, and answers how much that was.
  uint64_t return_all_but(uint64_t enough);
  // All the host memory that was given is there to be used, and nothing of ours is at work.
  void wait_for_arena();

  // An allocation that is written to, and remembered with what it should be.
  CUdeviceptr allocate(uint64_t bytes, uint64_t seed);
  // One that is away from the beginning.
  CUdeviceptr allocate_away(uint64_t bytes);
  void free(CUdeviceptr address);
  void write(CUdeviceptr address, uint64_t seed);
  // Whether all that is remembered and resident has the right bytes.
  void check_contents();
  // Whether the sums are exact, as the engine has them and as it told them.
  void check_sums();

  bool out(uint64_t bytes);
  bool in(uint64_t bytes);
  bool out_all() { return out(~uint64_t{0}); }
  bool in_all() { return in(~uint64_t{0}); }

  uint64_t used() const;  // of the card, but for what our kernels take
  uint64_t live() const;  // of what was asked for
  uint64_t in_pages() const;

  struct Known {
    uint64_t bytes = 0;
    uint64_t seed = 0;
    bool written = false;
  };

  // All its memory is freed, the context ends, and both begin anew.
  void restart();

  gate::Gate gate;
  CUcontext context{};
  uint64_t used_before = 0;
  std::map<CUdeviceptr, Known> known;
  uint64_t made = 0;         // bytes that the test has in another way
  uint64_t host_memory = 0;  // all that was given and not given back
  // What was told, all together, and of the last move alone.
  uint64_t told_resident = 0;
  Moved last;
  int reports = 0;
  std::function<bool()> on_progress;

 private:
  uint64_t host_bytes_;
};

}  // namespace swap
}  // namespace nvshare::interposer::moving
