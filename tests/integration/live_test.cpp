#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "integration/world.h"

// What can be changed and asked while programs run.
namespace nvshare::integration {
namespace {

class Live : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }
  // A job that has been running for a while.
  Job running(const std::string& name, const std::vector<std::string>& options) {
    Job one = job(name, options, {"--seconds", "60"});
    EXPECT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
    sleep(500ms);
    return one;
  }

 private:
  std::vector<Process> scheduler_;
};

TEST_F(Live, ALimitCanBeChanged) {
  const Job one = running("train", {"--cores", "20"});
  expect_share_for(one, 3s, 20);
  const Outcome changed = nvshare({"limit", "train", "--cores", "70"});
  EXPECT_EQ(changed.ending.code, 0) << changed.output;
  sleep(500ms);
  expect_share_for(one, 3s, 70);
  EXPECT_EQ(tenant("train").value("cores", 0), 70);
  EXPECT_EQ(nvshare({"limit", "train", "--cores", "100"}).ending.code, 0);
  sleep(500ms);
  expect_share_for(one, 2s, 100);
}

TEST_F(Live, AWrongLimitIsOneLineAndChangesNothing) {
  const Job one = running("train", {"--cores", "40"});
  for (const char* wrong : {"0", "101", "all"}) {
    const Outcome outcome = nvshare({"limit", "train", "--cores", wrong});
    EXPECT_EQ(outcome.ending.code, 2) << wrong;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  }
  const Outcome unknown = nvshare({"limit", "no-such-tenant", "--cores", "10"});
  EXPECT_NE(unknown.ending.code, 0);
  EXPECT_EQ(std::count(unknown.output.begin(), unknown.output.end(), '\n'), 1) << unknown.output;
  EXPECT_EQ(tenant("train").value("cores", 0), 40);
}

TEST_F(Live, APausedProgramDoesNothingUntilItIsResumed) {
  Job one = running("train", {});
  ASSERT_EQ(nvshare({"pause", "train"}).ending.code, 0);
  sleep(300ms);
  EXPECT_EQ(share_for(one, 1s), 0);
  EXPECT_TRUE(tenant("train").value("paused", false));
  const Outcome why = nvshare({"why", "train"});
  EXPECT_EQ(why.ending.code, 0);
  EXPECT_NE(why.output.find("pause"), std::string::npos) << why.output;
  ASSERT_EQ(nvshare({"resume", "train"}).ending.code, 0);
  sleep(300ms);
  expect_share_for(one, 2s, 100);
  one.process.signal(SIGTERM);
  EXPECT_EQ(one.process.wait(30s).value_or(Ending{}).code, 0);
}

TEST_F(Live, APausedProgramLeavesTheGpuToOthers) {
  const Job one = running("one", {});
  const Job two = running("two", {});
  ASSERT_EQ(nvshare({"pause", "one"}).ending.code, 0);
  sleep(300ms);
  expect_share_for(two, 2s, 100);
}

TEST_F(Live, WhySaysWhatAProgramWaitsFor) {
  const Job one = running("little", {"--cores", "5"});
  const Outcome why = nvshare({"why", "little"});
  EXPECT_EQ(why.ending.code, 0) << why.output;
  EXPECT_NE(why.output.find("gpu-job"), std::string::npos) << why.output;
  EXPECT_NE(why.output.find("5"), std::string::npos) << why.output;
}

TEST_F(Live, StatusTellsTheSharesAndTheProcesses) {
  const Job one = running("a", {"--cores", "60"});
  const Job two = running("b", {"--cores", "20"});
  const auto share = [&](const std::string& name) {
    const nlohmann::json found = tenant(name);
    return found.is_object() ? found.value("share", 0.0) : 0.0;
  };
  const auto both = [&] {
    sleep(2s);  // it is the share of the last seconds
    return std::pair{share("a"), share("b")};
  };
  measure(both, [](const auto& got) {
    return wrong_number(got.first, 60, 8, "a's share") +
           wrong_number(got.second, 20, 8, "b's share");
  });
  const nlohmann::json a = tenant("a");
  ASSERT_TRUE(a.is_object());
  ASSERT_EQ(a["processes"].size(), 1u);
  EXPECT_EQ(a["processes"][0].value("program", ""), "gpu-job");
  EXPECT_EQ(a["processes"][0].value("gpu", -1), 0);
  EXPECT_GT(a.value("used", 0l), 0l);
  const nlohmann::json gpu = status()["gpus"][0];
  EXPECT_EQ(gpu.value("clients", 0), 2);
  EXPECT_EQ(gpu.value("memory", 0l), 4l << 30);
}

// What the scheduler bills is what the programs got done, and what they made the GPU wait: on a
// machine whose processors are busy, that is more.
TEST_F(Live, TheBillIsWhatWasUsed) {
  const Job one = running("metered", {"--cores", "50"});
  const auto billed_of_done = [&] {
    const Duration from = now();
    const long before = tenant("metered").value("used", 0l);
    sleep(4s);
    const long after = tenant("metered").value("used", 0l);
    const Duration to = now();
    sleep(200ms);
    const double kernels = one.kernels_at(to) - one.kernels_at(from);  // of a millisecond
    return static_cast<double>(after - before) / 1e6 / kernels;
  };
  measure(billed_of_done, [&](double part) {
    const bool right = part >= 0.96 && part <= 1.05 + 0.2 * waited();
    return right ? "" : fmt::format("billed {:.3f} of what was done", part);
  });
}

// What NVML sees of it, which knows nothing of our meter.
TEST_F(Live, TheBillIsWhatNvmlSees) {
  const Job one = running("metered", {"--cores", "40"});
  sleep(4s);
  measure(
      [&] {
        sleep(3s);
        return status()["gpus"][0]["meter"];
      },
      [](const nlohmann::json& meter) {
        if (!meter.is_object()) return std::string("nothing was compared");
        return wrong_number(meter.value("nvml", 0.0), 40, 4, "what NVML saw") +
               wrong_number(meter.value("difference", 100.0), 0, 4, "the difference");
      });
}

TEST_F(Live, SchedulingCanBeSwitchedOff) {
  const Job one = running("limited", {"--cores", "20"});
  ASSERT_EQ(nvshare({"config", "scheduling=off"}).ending.code, 0);
  sleep(300ms);
  EXPECT_GT(share_for(one, 2s), 60) << "its limit does not hold";
  ASSERT_EQ(nvshare({"config", "scheduling=on"}).ending.code, 0);
  sleep(1s);
  expect_share_for(one, 3s, 20);
}

}  // namespace
}  // namespace nvshare::integration
