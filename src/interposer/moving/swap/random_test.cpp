#include <random>

#include "interposer/moving/testing/swap_machine.h"

// Whatever is allocated, written, freed, moved out and in, in whatever order: every byte is what
// was last written, and every sum is exact.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t kSeed = 20240229;
#ifdef NVSHARE_UNDER_SANITIZER  // each takes ten times as long
constexpr int kSteps = 500;
#else
constexpr int kSteps = 4000;
#endif
constexpr uint64_t kMostLive = 150 * kMiB;

class Random : public SwapMachine {
 protected:
  uint64_t below(uint64_t limit) {
    return std::uniform_int_distribution<uint64_t>(0, limit - 1)(dice);
  }

  uint64_t any_size() {
    switch (below(10)) {
      case 0:
        return kMiB + 1 + below(20 * kMiB);
      case 1:
      case 2:
        return 512 * kKiB + below(4 * kMiB);
      default:
        return 1 + below(below(2) == 0 ? 4 * kKiB : 300 * kKiB);
    }
  }

  CUdeviceptr any_address() {
    auto at = known.begin();
    std::advance(at, static_cast<long>(below(known.size())));
    return at->first;
  }

  void write_any() {
    const CUdeviceptr address = any_address();
    if (swap_range_of(address).resident) write(address, below(4) == 0 ? 0 : dice());
  }

  void check_any() {
    const CUdeviceptr address = any_address();
    const Known one = known[address];
    const Range range = swap_range_of(address + below(one.bytes));
    EXPECT_TRUE(range.ours);
    EXPECT_EQ(range.base, address);
    EXPECT_EQ(range.bytes, one.bytes);
    if (!range.resident || !one.written) return;
    std::vector<unsigned char> found(one.bytes);
    ASSERT_OK(real<FunctionId::cuMemcpyDtoH_v2>(found.data(), address, found.size()));
    ASSERT_EQ(found, pattern(one.seed, one.bytes));
  }

  void step() {
    const uint64_t kind = below(100);
    if (known.empty() || (kind < 35 && live() < kMostLive)) {
      if (below(4) == 0) {
        allocate_away(any_size());
      } else {
        allocate(any_size(), below(5) == 0 ? 0 : dice());
      }
    } else if (kind < 60) {
      free(any_address());
    } else if (kind < 75) {
      write_any();
    } else if (kind < 90) {
      check_any();
    } else if (kind < 95) {
      EXPECT_TRUE(out(below(2) == 0 ? below(20 * kMiB) : below(2 * kMostLive)));
    } else {
      EXPECT_TRUE(in(below(2) == 0 ? below(20 * kMiB) : below(2 * kMostLive)));
    }
  }

  std::mt19937_64 dice{kSeed};
};

TEST_F(Random, NothingIsLostAndEverythingIsCounted) {
  RecordProperty("seed", std::to_string(kSeed));
  for (int i = 0; i < kSteps; ++i) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", step " + std::to_string(i));
    step();
    check_sums();
    if (i % 500 == 499) {
      EXPECT_TRUE(in_all());
      check_contents();
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
