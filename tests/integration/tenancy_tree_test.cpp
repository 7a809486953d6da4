#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "integration/world.h"

// Tenants nest, and a parent's limits hold for all its parts together.
namespace nvshare::integration {
namespace {

class TenancyTree : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }
  void restart_scheduler() {
    scheduler_.back().signal(SIGKILL);
    ASSERT_TRUE(scheduler_.back().wait(20s));
    scheduler_.push_back(start_scheduler());
  }
  void limit(const std::vector<std::string>& words) {
    std::vector<std::string> all{"limit"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = nvshare(all);
    ASSERT_EQ(outcome.ending.code, 0) << outcome.output;
  }

 private:
  std::vector<Process> scheduler_;
};

TEST_F(TenancyTree, ThreeRunsOfAUserShareTheUsersCores) {
  limit({user(), "--cores", "30"});
  std::vector<Job> jobs;
  for (const char* name : {"a", "b", "c"}) jobs.push_back(job(name, {}, {"--seconds", "8"}));
  expect_all_good(jobs, 60s);
  const std::vector<double> got = shares(jobs);
  const double sum = std::accumulate(got.begin(), got.end(), 0.0);
  EXPECT_EQ(wrong_share(sum, 30, "the user"), "");
  for (const double one : got) EXPECT_EQ(wrong_share(one, 10, "a run"), "");
}

// Runs of 10 % one after the other, with one kernel of 400 ms in each.
std::vector<std::string> loop_of_runs() {
  const std::string one_run = nvshare_program() + " run --name looped --cores 10 -- " + gpu_job() +
                              " --launches 1 --queue 1 --kernel 400ms --quiet && echo one more";
  return {"sh", "-c", "while " + one_run + "; do :; done"};
}

// How many kernels the loop has done.
int kernels_of(const Process& loop) {
  const std::string text = loop.output();
  int found = 0;
  for (std::size_t at = 0; (at = text.find("one more", at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST_F(TenancyTree, ALoopOfRunsAloneHasNoMoreThanOneRun) {
  Process loop = start(loop_of_runs());
  ASSERT_TRUE(loop.wait_for("one more", 30s)) << loop.output();
  const int before = kernels_of(loop);
  sleep(10s);
  // A kernel more or less is 4 points.
  const double looped = 100 * 0.4 * (kernels_of(loop) - before) / 10;
  EXPECT_LE(looped, 14.1) << loop.output();
  EXPECT_GE(looped, 3.9) << loop.output();
  loop.signal(SIGKILL);
  ASSERT_TRUE(loop.wait(20s));
}

TEST_F(TenancyTree, ALoopOfRunsBesideANeighbourHasNoMoreThanOneRun) {
  Job beside = job("beside", {"--cores", "50"}, {"--seconds", "60"});
  ASSERT_TRUE(beside.process.wait_for("progress", 30s)) << beside.process.output();
  Process loop = start(loop_of_runs());
  ASSERT_TRUE(loop.wait_for("one more", 30s)) << loop.output();
  const int before = kernels_of(loop);
  constexpr auto kLength = 20s;
  const double other = share_for(beside, kLength);
  const double looped = 100 * 0.4 * (kernels_of(loop) - before) / 20;
  // One kernel more or less is 2 points.
  EXPECT_LE(looped, 12.1) << loop.output();
  EXPECT_GE(looped, 5.9) << loop.output();
  EXPECT_EQ(wrong_share(other, 50, "the neighbour"), "");
  loop.signal(SIGKILL);
  ASSERT_TRUE(loop.wait(20s));
}

// The program begins before its run's keeper is back.
TEST_F(TenancyTree, AProgramThatStartsRightAfterARestartHasItsRunsLimit) {
  const std::string begin = folder() + "/begin";
  Job one = {run({"--name", "train", "--cores", "10"},
                 {"sh", "-c",
                  "while [ ! -e " + begin + " ]; do sleep 0.01; done; exec " + gpu_job() +
                      " --seconds 6 --progress 50ms --kernel 1ms"}),
             "train", 1ms};
  ASSERT_TRUE(eventually([&] { return has_tenant("train"); }, 20s));
  restart_scheduler();
  ASSERT_EQ(finish({"touch", begin}).ending.code, 0);
  ASSERT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
  sleep(500ms);
  EXPECT_EQ(wrong_share(share_for(one, 4s), 10, "train"), "");
  EXPECT_EQ(processes("train").size(), 1u);
}

TEST_F(TenancyTree, ProcessesOfARunHaveTheVariablesLimitTogether) {
  set("NVSHARE_GPU_MEMORY_LIMIT", "1Gi");
  const std::string holds = gpu_job() + " --seconds 3 --memory 600Mi --quiet";
  const Outcome both = nvshare({"run", "--name", "train", "--", "sh", "-c",
                                holds + " & first=$!; sleep 1; " + holds +
                                    "; second=$?; wait $first; echo ended with $? and $second"});
  EXPECT_NE(both.output.find("ended with 0 and 1"), std::string::npos) << both.output;
  EXPECT_NE(both.output.find("NVSHARE_GPU_MEMORY_LIMIT"), std::string::npos)
      << "nobody says why: " << both.output;
}

TEST_F(TenancyTree, AProcessWithoutTheVariableHasItsRunsLimit) {
  set("NVSHARE_GPU_MEMORY_LIMIT", "1Gi");
  const std::string holds =
      "env -u NVSHARE_GPU_MEMORY_LIMIT " + gpu_job() + " --launches 1 --quiet --memory ";
  const Outcome both =
      nvshare({"run", "--name", "train", "--", "sh", "-c",
               holds + "600Mi; first=$?; " + holds + "1100Mi; echo ended with $first and $?"});
  EXPECT_NE(both.output.find("ended with 0 and 1"), std::string::npos) << both.output;
}

TEST_F(TenancyTree, RunsOfAUserShareTheUsersMemory) {
  limit({user(), "--mem", "256Mi"});
  Process one = probe("one");
  Process two = probe("two");
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(two, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "alloc 192Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(two, "alloc 128Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_TRUE(two.wait_for("nvshare limit " + user() + " --mem 384Mi", 5s)) << two.output();
  EXPECT_EQ(ask(two, "alloc 64Mi"), "CUDA_SUCCESS");
}

TEST_F(TenancyTree, APausedUsersRunsStand) {
  Job one = job("one", {}, {"--seconds", "60"});
  ASSERT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
  ASSERT_EQ(nvshare({"pause", user()}).ending.code, 0);
  sleep(500ms);
  EXPECT_EQ(wrong_share(share_for(one, 1s), 0, "a run of a paused user"), "");
  ASSERT_EQ(nvshare({"resume", user()}).ending.code, 0);
  sleep(500ms);
  expect_share_for(one, 1s, 100);
}

}  // namespace
}  // namespace nvshare::integration
