#include "core/placement.h"

#include <algorithm>
#include <array>
#include <random>

#include "core/testing.h"

namespace nvshare::core {
namespace {

GpuId gpu(int id) {
  return GpuId{static_cast<std::uint64_t>(id)};
}

PlaceWish wish(std::optional<Bytes> memory = {}, std::vector<GpuId> among = {},
               std::vector<Reservation> reserved = {}) {
  return {memory, std::move(among), std::move(reserved)};
}

// GPUs of 16 GiB.
class PlacementTest : public ::testing::Test {
 protected:
  void gpus(int count) {
    for (int id = 0; id < count; ++id) t.gpu(id);
  }
  // A tenant with a client there that has this much.
  void program(int id, int on, Bytes bytes = mib(100)) {
    t.tenant(id);
    t.step(ClientAdded{t.cid(id), TenantId{static_cast<std::uint64_t>(id)}, gpu(on)});
    if (bytes.count > 0) t.allocate(id, bytes);
  }
  int place(const PlaceWish& wish) {
    const auto placement = t.core.place(wish);
    return placement ? static_cast<int>(placement->gpu.value) : -1;
  }
  std::string why(const PlaceWish& wish) { return to_text(*t.core.place(wish)); }

  TestCore t;
};

TEST_F(PlacementTest, WithoutAGpuThereIsNone) {
  EXPECT_EQ(place(wish()), -1);
  gpus(1);
  EXPECT_EQ(place(wish({}, {gpu(7)})), -1);
}

TEST_F(PlacementTest, TheIdleGpuIsChosen) {
  gpus(2);
  program(1, 0);
  EXPECT_EQ(place(wish()), 1);
  EXPECT_EQ(why(wish()), "it was idle; GPU 0 had 1 program");
}

TEST_F(PlacementTest, TheFirstOfEqualGpusIsChosen) {
  gpus(3);
  EXPECT_EQ(place(wish()), 0);
}

TEST_F(PlacementTest, TheLeastWorkIsChosenAmongBusyGpus) {
  gpus(3);
  for (const int id : {1, 2}) program(id, 0);
  program(3, 1);
  for (const int id : {4, 5, 6}) program(id, 2);
  EXPECT_EQ(place(wish()), 1);
  EXPECT_EQ(why(wish()),
            "it had the least work, with 1 program; GPU 0 had 2 programs, GPU 2 had 3 programs");
}

TEST_F(PlacementTest, AClientWithoutWorkComesBeforeOneWithWork) {
  gpus(2);
  program(1, 0);
  program(2, 1);
  t.want(1);
  EXPECT_EQ(place(wish()), 1);
}

// Memory comes first: queueing behind two programs is better than being refused.
TEST_F(PlacementTest, AGpuWithRoomComesBeforeOneWithLessWork) {
  gpus(2);
  program(1, 0, gib(12));
  for (const int id : {2, 3}) program(id, 1, gib(1));
  EXPECT_EQ(place(wish(gib(8))), 1);
  EXPECT_EQ(place(wish(gib(1))), 0);
  EXPECT_EQ(why(wish(gib(8))), "its 8GiB fit there, with " +
                                   to_text(t.core.place(wish(gib(8)))->reason.free) +
                                   " free; GPU 0 had " +
                                   to_text(t.core.place(wish(gib(8)))->others[0].free) + " free");
}

TEST_F(PlacementTest, WhereNothingFitsTheMostFreeMemoryIsChosen) {
  gpus(3);
  program(1, 0, gib(12));
  program(2, 1, gib(6));
  program(3, 2, gib(9));
  EXPECT_EQ(place(wish(gib(13))), 1);
  EXPECT_EQ(t.core.place(wish(gib(13)))->reason.why, Why::MostFree);
}

// A program of unknown size would be refused on a full GPU, or would push its owner out.
TEST_F(PlacementTest, AProgramOfUnknownSizeAvoidsAFullGpu) {
  gpus(2);
  program(1, 0, t.core.safe_limit(gpu(0)).value() - gib(1));
  for (const int id : {2, 3}) program(id, 1, gib(1));
  EXPECT_EQ(place(wish()), 0) << "a GiB of 16 is free";
  t.allocate(1, t.core.safe_limit(gpu(0)).value() - mib(100));
  EXPECT_EQ(place(wish()), 1);
  EXPECT_EQ(t.core.place(wish())->reason.why, Why::HasRoom);
}

// What other programs hold on the GPU is not free, though no client has it.
TEST_F(PlacementTest, MemoryOutsideOurControlIsNotFree) {
  gpus(2);
  t.step(OverheadMeasured{gpu(0), gib(15)});
  EXPECT_EQ(place(wish()), 1);
  EXPECT_EQ(place(wish(gib(4))), 1);
}

TEST_F(PlacementTest, OnlyTheGpusOfTheWishAreChosen) {
  gpus(3);
  program(1, 2);
  EXPECT_EQ(place(wish({}, {gpu(1), gpu(2)})), 1);
  EXPECT_EQ(place(wish({}, {gpu(2)})), 2);
  EXPECT_EQ(why(wish({}, {gpu(2)})), "there was no other to choose");
}

TEST_F(PlacementTest, ReservationsCountAsPrograms) {
  gpus(2);
  program(1, 0);
  EXPECT_EQ(place(wish({}, {}, {{gpu(1), {}}, {gpu(1), {}}})), 0);
}

TEST_F(PlacementTest, ReservationsKeepTheirMemory) {
  gpus(2);
  program(1, 1);
  EXPECT_EQ(place(wish(gib(8))), 0);
  EXPECT_EQ(place(wish(gib(8), {}, {{gpu(0), gib(8)}})), 1);
}

TEST_F(PlacementTest, TenRunsAtOnceSpreadEvenly) {
  gpus(2);
  std::vector<Reservation> reserved;
  std::array<int, 2> runs{};
  for (int i = 0; i < 10; ++i) {
    const int chosen = place(wish({}, {}, reserved));
    reserved.push_back({gpu(chosen), {}});
    ++runs.at(static_cast<std::size_t>(chosen));
  }
  EXPECT_EQ(runs, (std::array{5, 5}));
}

TEST_F(PlacementTest, AClientWithoutAGpuIsPlacedByTheSameRule) {
  gpus(2);
  program(1, 0, gib(12));
  for (const int id : {2, 3}) program(id, 1, gib(1));
  t.step(TenantAdded{TenantId{9}, "limited", {.memory = gib(8)}});
  const Decisions placed = t.step(ClientAdded{t.cid(9), TenantId{9}, {}});
  EXPECT_EQ(only<Place>(placed).at(0).gpu, gpu(1));
  EXPECT_EQ(placed.at(0).reason.why, Why::HasRoom);
}

TEST_F(PlacementTest, ManyOthersAreNotAllNamed) {
  gpus(6);
  program(1, 0);
  EXPECT_EQ(
      why(wish()),
      "it was idle; GPU 0 had 1 program, GPU 2 was idle too, GPU 3 was idle too and 2 others");
}

// --- whatever the GPUs have --------------------------------------------------------------------

class AnyGpus {
 public:
  explicit AnyGpus(unsigned seed) : dice_(seed) {}
  int number(int low, int high) { return std::uniform_int_distribution(low, high)(dice_); }
  std::vector<GpuLoad> loads() {
    std::vector<GpuLoad> all;
    for (int id = 0, count = number(1, 6); id < count; ++id) {
      const int programs = number(0, 3);
      all.push_back({gpu(id), programs, number(0, programs), gib(number(-2, 8)), gib(16)});
    }
    return all;
  }
  std::optional<Bytes> memory() {
    return number(0, 2) == 0 ? std::nullopt : std::optional(gib(number(1, 9)));
  }
  void shuffle(std::vector<GpuLoad>& all) { std::ranges::shuffle(all, dice_); }

 private:
  std::mt19937 dice_;
};

bool has_room(const GpuLoad& gpu, const std::optional<Bytes>& memory) {
  return memory ? *memory <= gpu.free : gpu.free >= Bytes{gpu.total.count / 100 * kFreeForUnknown};
}

TEST(PlacementProperty, NoOtherGpuIsBetter) {
  for (unsigned seed = 0; seed < 5000; ++seed) {
    AnyGpus any(seed);
    const std::vector<GpuLoad> all = any.loads();
    const std::optional<Bytes> memory = any.memory();
    const auto placement = choose(all, memory);
    ASSERT_TRUE(placement);
    const GpuLoad& best = all.at(placement->gpu.value);
    for (const GpuLoad& other : all) {
      if (has_room(other, memory)) {
        ASSERT_TRUE(has_room(best, memory)) << "seed " << seed;
        ASSERT_LE(best.programs, other.programs) << "seed " << seed;
        if (best.programs != other.programs || best.wanting != other.wanting) continue;
        ASSERT_GE(best.free, other.free) << "seed " << seed;
      } else if (!has_room(best, memory)) {
        ASSERT_GE(best.free, other.free) << "seed " << seed;
      }
    }
    ASSERT_EQ(placement->others.size() + 1, all.size()) << "seed " << seed;
  }
}

TEST(PlacementProperty, TheOrderOfTheGpusDoesNotMatter) {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    AnyGpus any(seed);
    std::vector<GpuLoad> all = any.loads();
    const std::optional<Bytes> memory = any.memory();
    const GpuId before = choose(all, memory)->gpu;
    any.shuffle(all);
    ASSERT_EQ(choose(all, memory)->gpu, before) << "seed " << seed;
  }
}

// Runs that come one after the other leave no GPU with two programs more than another.
TEST(PlacementProperty, RunsWithoutALimitSpreadEvenly) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    AnyGpus any(seed);
    std::vector<GpuLoad> all;
    for (int id = 0, count = any.number(2, 6); id < count; ++id) {
      all.push_back({gpu(id), 0, 0, gib(any.number(4, 12)), gib(16)});
    }
    for (int run = any.number(1, 40); run > 0; --run) {
      ++all.at(choose(all, std::nullopt)->gpu.value).programs;
    }
    const auto [least, most] = std::ranges::minmax_element(all, {}, &GpuLoad::programs);
    ASSERT_LE(most->programs - least->programs, 1) << "seed " << seed;
  }
}

}  // namespace
}  // namespace nvshare::core
