#include <numeric>

#include "integration/world.h"

// Shares of GPU time as the programs themselves count them.
namespace nvshare::integration {
namespace {

using Words = std::vector<std::string>;

class Shares : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }
  // All of them to their ends; their shares.
  std::vector<double> finish(std::vector<Job>& jobs) {
    expect_all_good(jobs, 60s);
    return shares(jobs);
  }
  static double sum(const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  }

 private:
  std::vector<Process> scheduler_;
};

TEST_F(Shares, OneAloneWithoutALimitHasItAll) {
  std::vector<Job> jobs;
  jobs.push_back(job("alone", {}, {"--seconds", "4"}));
  expect_share(finish(jobs)[0], 100, "alone");
}

TEST_F(Shares, ALimitHoldsAlsoWhenNobodyElseWantsTheGpu) {
  std::vector<Job> jobs;
  jobs.push_back(job("a", {"--cores", "30"}, {"--seconds", "6"}));
  expect_share(finish(jobs)[0], 30, "a");
}

TEST_F(Shares, TwoWithLimits) {
  std::vector<Job> jobs;
  jobs.push_back(job("big", {"--cores", "60"}, {"--seconds", "6"}));
  jobs.push_back(job("small", {"--cores", "30"}, {"--seconds", "6"}));
  const std::vector<double> got = finish(jobs);
  expect_share(got[0], 60, "big");
  expect_share(got[1], 30, "small");
}

TEST_F(Shares, ThreeWithLimits) {
  std::vector<Job> jobs;
  jobs.push_back(job("half", {"--cores", "45"}, {"--seconds", "6"}));
  jobs.push_back(job("quarter", {"--cores", "25"}, {"--seconds", "6"}));
  jobs.push_back(job("tenth", {"--cores", "10"}, {"--seconds", "6"}));
  const std::vector<double> got = finish(jobs);
  expect_share(got[0], 45, "half");
  expect_share(got[1], 25, "quarter");
  expect_share(got[2], 10, "tenth");
}

TEST_F(Shares, TwoWithoutLimitsShareEqually) {
  std::vector<Job> jobs;
  jobs.push_back(job("a", {}, {"--seconds", "6"}));
  jobs.push_back(job("b", {}, {"--seconds", "6"}));
  const std::vector<double> got = finish(jobs);
  EXPECT_NEAR(got[0] / sum(got), 0.5, 0.02);
  EXPECT_GT(sum(got), 90) << "little is lost between turns";
}

TEST_F(Shares, LongKernelsDoNotTakeFromShortOnes) {
  std::vector<Job> jobs;
  jobs.push_back(job("long", {}, {"--seconds", "6", "--queue", "2"}, 20ms));
  jobs.push_back(job("short", {}, {"--seconds", "6", "--queue", "64"}, 100us));
  const std::vector<double> got = finish(jobs);
  // A short kernel takes 2 us more than it is asked to; that is not counted.
  EXPECT_NEAR(got[0] / sum(got), 0.5, 0.03);
}

TEST_F(Shares, LimitsOfMoreThanTheWholeAreScaledDown) {
  std::vector<Job> jobs;
  jobs.push_back(job("a", {"--cores", "90"}, {"--seconds", "6"}));
  jobs.push_back(job("b", {"--cores", "60"}, {"--seconds", "6"}));
  const std::vector<double> got = finish(jobs);
  EXPECT_NEAR(got[0] / sum(got), 0.6, 0.02);
  EXPECT_GT(sum(got), 90);
}

TEST_F(Shares, EightPrograms) {
  std::vector<Job> jobs;
  for (int i = 0; i < 8; ++i) {
    jobs.push_back(job("job" + std::to_string(i), {}, {"--seconds", "10"}));
  }
  const std::vector<double> got = finish(jobs);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i] / sum(got), 1 / 8.0, 0.02) << jobs[i].name;
  }
  EXPECT_GT(sum(got), 85);
}

TEST_F(Shares, ProcessesOfATenantShareItsLimit) {
  // The share that each of them has counted, one after the other.
  const std::string each = gpu_job() + " --seconds 6 | sed 's/.*share=\\([0-9.]*\\).*/\\1/'";
  Process both =
      run({"--name", "both", "--cores", "40"}, {"sh", "-c", each + " & " + each + "; wait"});
  ASSERT_EQ(both.wait(60s).value_or(Ending{}).code, 0) << both.output();
  double first = 0;
  double second = 0;
  ASSERT_EQ(std::sscanf(both.output().c_str(), "%lf %lf", &first, &second), 2) << both.output();
  expect_share(first + second, 40, "both together");
  EXPECT_NEAR(first, second, 4);
}

// However a program makes the GPU work, its limit holds.
class Patterns : public Shares, public ::testing::WithParamInterface<Words> {};

TEST_P(Patterns, TheLimitHolds) {
  Words options = GetParam();
  options.insert(options.end(), {"--seconds", "5"});
  std::vector<Job> jobs;
  jobs.push_back(job("limited", {"--cores", "40"}, options));
  expect_share(finish(jobs)[0], 40, "limited");
}

INSTANTIATE_TEST_SUITE_P(All, Patterns,
                         ::testing::Values(Words{"--pattern", "graph"},
                                           Words{"--pattern", "sync", "--queue", "1"},
                                           Words{"--per-thread-stream", "--threads", "3"},
                                           Words{"--streams", "4", "--threads", "2"},
                                           Words{"--streams", "0"}, Words{"--queue", "64"}));

TEST_F(Shares, BurstsBelowTheLimitAreNotHeldBack) {
  std::vector<Job> jobs;
  jobs.push_back(
      job("bursty", {"--cores", "50"},
          {"--seconds", "6", "--pattern", "bursty", "--busy", "20ms", "--idle", "60ms"}));
  const double got = finish(jobs)[0];
  EXPECT_NEAR(got, 25, 2.0) << "20 ms of work in every 80";
}

}  // namespace
}  // namespace nvshare::integration
