#include "interposer/memory/driver_room.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <vector>

#include "interposer/gate/records.h"
#include "interposer/link/state.h"

// Room for the driver alone, with this file in the place of the link behind it.
namespace nvshare::interposer {

constinit thread_local gate::Slot* gate::t_slot = nullptr;
std::atomic<int> gate::g_captures{0};

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// What the link was told, and what it answers.
struct World {
  link::Link link;
  bool managed = true;
  bool ends = false;
  bool no_gate = false;
  std::vector<uint64_t> asked;
  size_t refused_from = ~size_t{0};  // the how many-th request and later ones
  uint64_t held = 0;
  int told_short = 0;
};
World* world = nullptr;

}  // namespace

gate::Gate* gate::gate_for(Destination) {
  return world->no_gate ? nullptr : &world->link.gate;
}
gate::Gate* link::gate_of_device(CUdevice) {
  return world->no_gate ? nullptr : &world->link.gate;
}
bool gate::stopped_looking() {
  return world->ends;
}
bool link::wait_for_scheduler(const gate::Gate&) {
  return world->managed;
}
bool link::memory_is_short(gate::Gate&) {
  ++world->told_short;
  return world->managed;
}
link::Given link::memory_request(gate::Gate& gate, uint64_t bytes, bool movable) {
  EXPECT_EQ(&gate, &world->link.gate);
  EXPECT_FALSE(movable);
  errno = EINTR;
  world->asked.push_back(bytes);
  if (world->asked.size() > world->refused_from) return Given::Refused;
  world->held += bytes;
  return Given::Room;
}
void link::memory_freed(gate::Gate&, const Gone& gone) {
  EXPECT_EQ(gone.bytes, gone.pinned);
  EXPECT_EQ(gone.bytes, gone.resident);
  world->held -= gone.bytes;
}

namespace memory {
namespace {

class DriverRoomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    world = &world_;
    world_.link.gate.link = &world_.link;
    world_.link.device.memory = uint64_t{80} << 30;
    gate::g_captures = 0;
    gate::t_slot = nullptr;
  }
  void TearDown() override { EXPECT_EQ(world_.held, 0u) << "not all was given back"; }

  // A call that succeeds when so much is held for it, and how often it was made.
  CUresult call(uint64_t needed) {
    calls_ = 0;
    return with_room(gate::Destination{}, [&] {
      ++calls_;
      return world_.held >= needed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    });
  }
  void expect_untouched() {
    EXPECT_EQ(call(1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(calls_, 1);
    EXPECT_TRUE(world_.asked.empty());
  }

  World world_;
  int calls_ = 0;
};

TEST_F(DriverRoomTest, NothingIsAskedForWhatTheDriverHas) {
  EXPECT_EQ(call(0), CUDA_SUCCESS);
  EXPECT_EQ(with_room(0, [] { return CUDA_ERROR_INVALID_VALUE; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(world_.asked.empty());
}

TEST_F(DriverRoomTest, ALittleAndThenMore) {
  EXPECT_EQ(call(10 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(world_.asked, (std::vector<uint64_t>{64 * kMiB}));
  EXPECT_EQ(world_.told_short, 0) << "it was not promised any";
  world_.asked.clear();
  EXPECT_EQ(call(1024 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(world_.asked, (std::vector<uint64_t>{64 * kMiB, 192 * kMiB, 768 * kMiB}));
  EXPECT_EQ(world_.told_short, 2);
}

TEST_F(DriverRoomTest, OfASmallCardAPart) {
  world_.link.device.memory = 256 * kMiB;
  EXPECT_EQ(call(5 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(world_.asked, (std::vector<uint64_t>{4 * kMiB, 12 * kMiB}));
}

TEST_F(DriverRoomTest, NotForEver) {
  EXPECT_EQ(call(~uint64_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls_, 4);
}

TEST_F(DriverRoomTest, RefusedIsTheDriversAnswer) {
  world_.refused_from = 1;
  EXPECT_EQ(call(100 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(world_.asked.size(), 2u);
}

TEST_F(DriverRoomTest, NobodyIsAskedWhereNobodyCanHelp) {
  world_.managed = false;
  expect_untouched();
  world_.managed = true;
  world_.no_gate = true;
  expect_untouched();
  world_.no_gate = false;
  world_.ends = true;
  expect_untouched();
}

TEST_F(DriverRoomTest, NobodyWaitsInACapture) {
  gate::g_captures = 1;
  expect_untouched();
}

// Who closes the gate would wait for it.
TEST_F(DriverRoomTest, NobodyWaitsInsideTheGate) {
  gate::Slot slot;
  slot.inside = &world_.link.gate;
  gate::t_slot = &slot;
  expect_untouched();
  slot.inside = nullptr;
  EXPECT_EQ(call(1), CUDA_SUCCESS);
  gate::t_slot = nullptr;
}

TEST_F(DriverRoomTest, TheSchedulerMayGoMeanwhile) {
  CUresult result = with_room(0, [&] {
    if (!world_.asked.empty()) world_.managed = false;
    return CUDA_ERROR_OUT_OF_MEMORY;
  });
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(world_.asked.size(), 1u);
}

TEST_F(DriverRoomTest, ErrnoIsKept) {
  errno = ENOENT;
  EXPECT_EQ(call(1), CUDA_SUCCESS);
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace memory
}  // namespace nvshare::interposer
