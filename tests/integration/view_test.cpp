#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "integration/fake_scheduler.h"
#include "integration/world.h"

// What programs see of the GPU's memory, wherever they look: the tenant's, and not the card's
// (which has 4 GiB here).
namespace nvshare::integration {
namespace {

constexpr const char* kTheCard = "used=0 free=4294967296 total=4294967296";

std::vector<std::string> smi() {
  return {NVSHARE_SMI, "--query-gpu=memory.used,memory.free,memory.total,memory.reserved",
          "--format=csv,noheader,nounits"};
}

class View : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }
  Process& scheduler() { return scheduler_.front(); }
  Process started(const std::string& name, const std::vector<std::string>& options) {
    Process one = probe(name, options);
    EXPECT_EQ(ask(one, "start"), "CUDA_SUCCESS") << one.output();
    return one;
  }
  // The last line of a program under `nvshare run`.
  std::string said(const std::vector<std::string>& options,
                   const std::vector<std::string>& program) {
    Process one = run(options, program);
    EXPECT_EQ(one.wait(30s).value_or(Ending{}).code, 0) << one.output();
    const std::string text = one.output();
    const std::size_t end = text.find_last_not_of('\n');
    const std::size_t begin = text.find_last_of('\n', end);
    return text.substr(begin + 1, end - begin);
  }

 private:
  std::vector<Process> scheduler_;
};

TEST_F(View, SmiShowsTheLimitAsTheCard) {
  EXPECT_EQ(said({"--mem", "1Gi"}, smi()), "0, 1024, 1024, 0");
  EXPECT_EQ(said({"--mem", "64Gi"}, smi()), "0, 4096, 4096, 0") << "no more than there is";
}

TEST_F(View, WithoutALimitAllIsAsWithoutTheLibrary) {
  Process other = started("other", {"--mem", "1Gi"});
  ASSERT_EQ(ask(other, "alloc 512Mi"), "CUDA_SUCCESS");
  const Outcome alone = finish(smi());
  EXPECT_EQ(said({}, smi()) + "\n", alone.output);
  EXPECT_EQ(alone.output, "512, 3584, 4096, 0\n") << "what others have is seen";
}

TEST_F(View, WhatTheTenantHasIsUsedAndWhatOthersHaveIsNot) {
  Process other = started("other", {});
  ASSERT_EQ(ask(other, "alloc 1Gi"), "CUDA_SUCCESS");
  const std::string show = smi()[0] + " " + smi()[1] + " " + smi()[2];
  // Says it once before and once after another process of the run has taken memory.
  Process both = run({"--name", "both", "--mem", "1Gi"},
                     {"sh", "-c",
                      show + "; " + gpu_job() +
                          " --memory 300Mi --pattern bursty --seconds 60 --quiet & read line; " +
                          show + "; kill $!; wait"});
  ASSERT_TRUE(both.wait_for("0, 1024, 1024, 0\n", 30s)) << both.output();
  ASSERT_TRUE(eventually(
      [&] {
        const nlohmann::json found = tenant("both");
        return found.is_object() && !found["processes"].empty() &&
               found["processes"][0].value("allocated", 0l) == 300l << 20;
      },
      30s))
      << both.output();
  both.say("go on");
  ASSERT_TRUE(both.wait(60s)) << both.output();
  EXPECT_NE(both.output().find("300, 724, 1024, 0\n"), std::string::npos) << both.output();
}

TEST_F(View, AProgramOnTheGpuSeesItAtOnce) {
  Process one = started("one", {"--mem", "256Mi"});
  ASSERT_EQ(ask(one, "alloc 100Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "nvml"), "used=104857600 free=163577856 total=268435456");
  ASSERT_EQ(ask(one, "free"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "nvml"), "used=0 free=268435456 total=268435456");
  EXPECT_EQ(ask(one, "total"), "total=268435456");
  ASSERT_EQ(ask(one, "alloc 128Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(nvshare({"limit", "one", "--mem", "64Mi"}).ending.code, 0);
  EXPECT_EQ(ask(one, "nvml"), "used=67108864 free=0 total=67108864") << "more than all there is";
}

// What others have can be moved out, so it is not in the way; what cannot move is.
TEST_F(View, FreeIsWhatAProgramCouldHave) {
  const auto free_of = [&](Process& one) {
    const std::string said = ask(one, "info");
    const std::size_t at = said.find("free=");
    EXPECT_NE(at, std::string::npos) << said;
    return at == std::string::npos ? 0 : std::stoll(said.substr(at + 5));
  };
  constexpr std::int64_t kGi = std::int64_t{1} << 30;
  Process one = started("one", {});
  Process two = started("two", {});
  const std::int64_t all = free_of(one);
  EXPECT_GT(all, 3 * kGi);
  EXPECT_LT(all, 4 * kGi) << "not what is reserved";
  ASSERT_EQ(ask(two, "alloc 2Gi"), "CUDA_SUCCESS");
  EXPECT_EQ(free_of(one), all);
  EXPECT_EQ(free_of(two), all - 2 * kGi) << "its own counts";
  ASSERT_EQ(ask(one, "alloc 3Gi"), "CUDA_SUCCESS") << "it is there when it is needed";
  Process native = started("native", {"--backend", "native"});
  const std::int64_t before = free_of(two);
  ASSERT_EQ(ask(native, "alloc 64Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(free_of(two), before - (64 << 20)) << "what cannot move is in the way";
  Process limited = started("limited", {"--mem", "1Gi"});
  EXPECT_EQ(free_of(limited), kGi);
}

TEST_F(View, WhoOnlyLooksIsNoClient) {
  Process one = probe("one", {"--mem", "256Mi"});
  EXPECT_EQ(ask(one, "nvml"), "used=0 free=268435456 total=268435456");
  EXPECT_EQ(ask(one, "total"), "total=268435456");
  ASSERT_TRUE(has_tenant("one"));
  EXPECT_TRUE(processes("one").empty());
  // The limit that it sees is the present one.
  ASSERT_EQ(nvshare({"limit", "one", "--mem", "128Mi"}).ending.code, 0);
  EXPECT_TRUE(eventually([&] { return ask(one, "total") == "total=134217728"; }, 20s));
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "alloc 2Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(processes("one").size(), 1u);
}

TEST_F(View, AChildOfWhoLookedCanUseTheGpu) {
  Process one = probe("one", {"--mem", "256Mi"});
  ASSERT_EQ(ask(one, "nvml"), "used=0 free=268435456 total=268435456");
  EXPECT_EQ(ask(one, "fork begin 300Mi"), "CUDA_ERROR_OUT_OF_MEMORY") << "its limit holds";
  EXPECT_EQ(ask(one, "fork begin 200Mi"), "CUDA_SUCCESS");
}

TEST_F(View, AChildOfAProgramOnTheGpuSeesTheTenants) {
  Process one = started("one", {"--mem", "256Mi"});
  ASSERT_EQ(ask(one, "alloc 100Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "fork nvml"), "used=104857600 free=163577856 total=268435456");
}

TEST_F(View, ALimitInTheEnvironmentCounts) {
  set("NVSHARE_GPU_MEMORY_LIMIT", "512Mi");
  EXPECT_EQ(said({"--mem", "1Gi"}, smi()), "0, 512, 512, 0");
  EXPECT_EQ(said({"--mem", "256Mi"}, smi()), "0, 256, 256, 0") << "it can only lower";
  EXPECT_EQ(said({}, smi()), "0, 512, 512, 0");
}

TEST_F(View, ALimitInTheEnvironmentIsSharedByTheProcessesThatHaveIt) {
  const auto words = [](const std::string& limit) {
    return std::vector<std::string>{"env", "LD_PRELOAD=" NVSHARE_LIBRARY,
                                    "NVSHARE_GPU_MEMORY_LIMIT=" + limit, probe_program()};
  };
  Process one = start(words("512Mi"));
  Process two = start(words("512Mi"));
  Process without = start(words(""));
  for (Process* each : {&one, &two, &without}) ASSERT_EQ(ask(*each, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(without, "alloc 64Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "alloc 128Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(two, "alloc 256Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "info"), "free=134217728 total=536870912");
  EXPECT_EQ(ask(two, "info"), "free=134217728 total=536870912");
  EXPECT_EQ(ask(one, "nvml"), "used=402653184 free=134217728 total=536870912");
}

TEST_F(View, ALimitInPercentIsOfTheCard) {
  set("NVSHARE_GPU_MEMORY_LIMIT", "25%");
  EXPECT_EQ(said({}, smi()), "0, 1024, 1024, 0");
  Process one = probe("one");
  EXPECT_EQ(ask(one, "total"), "total=1073741824");
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "info"), "free=1073741824 total=1073741824");
  EXPECT_EQ(ask(one, "alloc 1025Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(ask(one, "alloc 1Gi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "nvml"), "used=1073741824 free=0 total=1073741824");
}

TEST_F(View, WithoutASchedulerItIsTheCard) {
  Process one = probe("one", {"--mem", "256Mi"});
  ASSERT_EQ(ask(one, "nvml"), "used=0 free=268435456 total=268435456");
  scheduler().signal(SIGKILL);
  ASSERT_TRUE(scheduler().wait(20s));
  EXPECT_TRUE(eventually([&] { return ask(one, "nvml") == kTheCard; }, 20s));
  EXPECT_EQ(ask(one, "total"), "total=4294967296");
}

// A scheduler that does not answer is asked now and then, and not each time: an answer to so many
// questions would be long in coming.
TEST_F(View, ASchedulerThatDoesNotAnswerHoldsNobodyUp) {
  Process one = probe("one", {"--mem", "256Mi"});
  ASSERT_EQ(ask(one, "nvml"), "used=0 free=268435456 total=268435456");
  scheduler().signal(SIGSTOP);
  EXPECT_TRUE(eventually([&] { return ask(one, "nvml 1000") == kTheCard; }, 20s));
  scheduler().signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return ask(one, "total") == "total=268435456"; }, 20s));
}

class TwoCards : public World {};

TEST_F(TwoCards, EachIsSeenByItself) {
  set("NVSHARE_SOFTGPU_COUNT", "2");
  const Process scheduler = start_scheduler();
  const std::string show = smi()[0] + " " + smi()[1] + " " + smi()[2];
  // The job is on the first.
  Process one = run({"--name", "one", "--mem", "1Gi"},
                    {"sh", "-c",
                     gpu_job() + " --memory 512Mi --pattern bursty --seconds 60 --quiet & " +
                         "read line; " + show + "; kill $!; wait"});
  ASSERT_TRUE(eventually([&] { return !processes("one").empty(); }, 30s)) << one.output();
  ASSERT_TRUE(eventually(
      [&] { return tenant("one")["processes"][0].value("allocated", 0l) == 512l << 20; }, 30s));
  one.say("go on");
  ASSERT_TRUE(one.wait(60s)) << one.output();
  EXPECT_NE(one.output().find("512, 512, 1024, 0\n0, 1024, 1024, 0\n"), std::string::npos)
      << one.output();
}

// With a scheduler that says what a test wants.
class ViewOfTwoLimits : public World {};

TEST_F(ViewOfTwoLimits, TheSmallestIsTheCardAndTheTightestSaysWhatIsFree) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  std::filesystem::create_directories(run_directory());
  FakeScheduler scheduler(run_directory());
  set("LD_PRELOAD", NVSHARE_LIBRARY);
  set("NVSHARE_GPU_MEMORY_LIMIT", "512Mi");
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "alloc 12Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "info"), "free=524288000 total=536870912") << "its own alone";
  scheduler.show(1024 * kMiB, 100 * kMiB);
  EXPECT_EQ(ask(one, "info"), "free=524288000 total=536870912") << "its own is smaller";
  scheduler.show(1024 * kMiB, 1000 * kMiB);
  EXPECT_EQ(ask(one, "info"), "free=25165824 total=536870912") << "the tenant's leaves less";
  EXPECT_EQ(ask(one, "nvml"), "used=511705088 free=25165824 total=536870912");
  scheduler.show(256 * kMiB, 300 * kMiB);
  EXPECT_EQ(ask(one, "info"), "free=0 total=268435456") << "the tenant's is smaller";
}

}  // namespace
}  // namespace nvshare::integration
