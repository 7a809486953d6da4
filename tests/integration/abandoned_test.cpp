#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "integration/fake_scheduler.h"
#include "integration/world.h"

// Programs whose scheduler goes, with memory where it happened to be.
namespace nvshare::integration {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class Abandoned : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_MEMORY", "256Mi");
    set("NVSHARE_RUN_DIR", run_directory());
    std::filesystem::create_directories(run_directory());
    set("LD_PRELOAD", NVSHARE_LIBRARY);
  }
  // With 200 MiB, in pieces that move by themselves.
  Process program() {
    Process one = start({probe_program()});
    EXPECT_EQ(ask(one, "start"), "CUDA_SUCCESS");
    for (int i = 0; i < 5; ++i) EXPECT_EQ(ask(one, "alloc 40Mi"), "CUDA_SUCCESS");
    return one;
  }
  static bool has_launched(const Process& one) { return answers_of(one).size() > 6; }
};

// The scheduler goes while the program lets its work run out, as some of its memory is to come.
TEST_F(Abandoned, NothingMovesWhileWorkIsOnTheGpu) {
  set("NVSHARE_SOFTGPU_MEMORY", "512Mi");
  const std::string trace = folder() + "/trace";
  set("NVSHARE_SOFTGPU_TRACE", trace);
  // To move something the library first looks whether it has changed, by kernels of its own.
  const auto looks = [&] {
    std::stringstream text;
    text << std::ifstream(trace).rdbuf();
    const std::string calls = text.str();
    return calls.find("cuLaunchKernel") != calls.rfind("cuLaunchKernel");
  };
  auto scheduler = std::make_unique<FakeScheduler>(run_directory());
  scheduler->backend(wire::Backend::Swap);
  Process one = program();
  EXPECT_EQ(ask(one, "launch 6s"), "CUDA_SUCCESS");
  scheduler->full(true);
  // In two chunks: there is room for one, which is then given up again.
  const std::uint64_t before = scheduler->told_of_memory();
  one.say("alloc 400Mi");
  ASSERT_TRUE(eventually([&] { return scheduler->told_of_memory() > before; }, 20s));
  sleep(300ms);
  scheduler.reset();
  sleep(1500ms);
  EXPECT_FALSE(looks());
  EXPECT_TRUE(eventually(looks, 30s)) << "but then";
}

// Nobody makes room while the scheduler is away, and no program shall die of that.
TEST_F(Abandoned, AnAllocationWithoutRoomWaitsForTheNextScheduler) {
  auto scheduler = std::make_unique<FakeScheduler>(run_directory());
  scheduler->backend(wire::Backend::Swap);
  Process one = program();
  scheduler.reset();
  EXPECT_EQ(ask(one, "alloc 10Mi"), "CUDA_SUCCESS") << "there is room for this";
  const std::size_t before = answers_of(one).size();
  one.say("alloc 100Mi");
  sleep(500ms);
  EXPECT_EQ(answers_of(one).size(), before);
  scheduler = std::make_unique<FakeScheduler>(run_directory());
  scheduler->backend(wire::Backend::Swap);
  scheduler->full(true);
  ASSERT_TRUE(eventually([&] { return answers_of(one).size() > before; }, 20s));
  EXPECT_EQ(answers_of(one).back(), "CUDA_SUCCESS");
  scheduler.reset();
  one.say("alloc 100Mi");
  ASSERT_TRUE(eventually([&] { return answers_of(one).size() > before + 1; }, 30s));
  EXPECT_EQ(answers_of(one).back(), "CUDA_ERROR_OUT_OF_MEMORY") << "but not for ever";
}

// Nor of one that cannot move.
TEST_F(Abandoned, AnAllocationThatCannotMoveWaitsAsWell) {
  auto scheduler = std::make_unique<FakeScheduler>(run_directory());
  scheduler->backend(wire::Backend::Native);
  Process one = program();
  Process two = start({probe_program()});
  EXPECT_EQ(ask(two, "start"), "CUDA_SUCCESS");
  scheduler.reset();
  const std::size_t before = answers_of(two).size();
  two.say("alloc 100Mi");
  sleep(500ms);
  EXPECT_EQ(answers_of(two).size(), before);
  one.say("end");
  ASSERT_TRUE(eventually([&] { return answers_of(two).size() > before; }, 4s));
  EXPECT_EQ(answers_of(two).back(), "CUDA_SUCCESS");
}

// Neither has all of its memory, and there is no room for what is missing of either.
TEST_F(Abandoned, OfTwoThatWereCaughtInASwitchOneRuns) {
  auto scheduler = std::make_unique<FakeScheduler>(run_directory());
  scheduler->backend(wire::Backend::Swap);
  Process one = program();
  scheduler->full(true);
  Process two = program();
  ASSERT_TRUE(scheduler->close());
  ASSERT_EQ(scheduler->order_out(120 * kMiB).out, 120 * kMiB) << "of the first";
  ASSERT_EQ(scheduler->order_in(80 * kMiB).in, 160 * kMiB) << "of both";
  ASSERT_EQ(scheduler->resident(), 240 * kMiB);
  scheduler.reset();
  for (Process* each : {&one, &two}) each->say("spin 1ms");
  ASSERT_TRUE(eventually([&] { return has_launched(one) || has_launched(two); }, 90s));
  Process& first = has_launched(one) ? one : two;
  Process& second = has_launched(one) ? two : one;
  EXPECT_FALSE(has_launched(second)) << "there is no room for both";
  first.say("end");
  EXPECT_TRUE(eventually([&] { return has_launched(second); }, 90s));
}

}  // namespace
}  // namespace nvshare::integration
