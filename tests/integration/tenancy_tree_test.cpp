#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "integration/either_way.h"
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

using TenancyTreeEitherWay = EitherWay<TenancyTree>;
INSTANTIATE_TEST_SUITE_P(Runs, TenancyTreeEitherWay, testing::Bool(), name_of_way);

TEST_P(TenancyTreeEitherWay, ThreeRunsOfAUserShareTheUsersCores) {
  limit({user(), "--cores", "30"});
  std::vector<Job> jobs;
  for (const char* name : {"a", "b", "c"}) jobs.push_back(job(name, {}, {"--seconds", "8"}));
  expect_all_good(jobs, 60s);
  const std::vector<double> got = shares(jobs);
  const double sum = std::accumulate(got.begin(), got.end(), 0.0);
  EXPECT_EQ(wrong_share(sum, 30, "the user"), "");
  for (const double one : got) EXPECT_EQ(wrong_share(one, 10, "a run"), "");
}

TEST_P(TenancyTreeEitherWay, ALimitOfAUserHoldsForTheRunsThatAreThere) {
  std::vector<Job> jobs;
  for (const char* name : {"a", "b"}) jobs.push_back(job(name, {}, {"--seconds", "60"}));
  for (Job& one : jobs) {
    ASSERT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
  }
  ASSERT_TRUE(processes(user()).empty()) << "the user has only runs";
  limit({user(), "--cores", "30"});
  sleep(1s);
  const auto both = [&] {
    const Duration from = now();
    sleep(4200ms);
    return std::vector{jobs[0].share(from, from + 4s), jobs[1].share(from, from + 4s)};
  };
  measure(both, [&](const std::vector<double>& got) {
    return wrong_share(got[0] + got[1], 30, "the user") + wrong_share(got[0], 15, "a") +
           wrong_share(got[1], 15, "b");
  });
  const std::string spent = "has used up its 30 % of GPU time";
  for (const char* name : {"a", "b"}) {
    std::string why;
    EXPECT_TRUE(eventually(
        [&] {
          why = nvshare({"why", name}).output;
          return why.find(spent) != why.npos &&
                 why.find("(the limit is of " + user() + ")") != why.npos;
        },
        10s))
        << why;
  }
}

// Runs of 10 % one after the other, each with another name and one kernel of 400 ms.
std::vector<std::string> loop_of_runs() {
  const std::string one_run = nvshare_program() + " run --name looped-$i --cores 10 -- " +
                              gpu_job() +
                              " --launches 1 --queue 1 --kernel 400ms --quiet && echo one more";
  return {"sh", "-c", "i=0; while " + one_run + "; do i=$((i + 1)); done"};
}

// How many kernels the loop has done.
int kernels_of(const Process& loop) {
  const std::string text = loop.output();
  int found = 0;
  for (std::size_t at = 0; (at = text.find("one more", at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST_P(TenancyTreeEitherWay, ALoopOfRunsAloneHasNoMoreThanOneRun) {
  Process loop = start(loop_of_runs());
  ASSERT_TRUE(loop.wait_for("one more", 30s)) << loop.output();
  const auto kernels_at = [&](int number) {
    EXPECT_TRUE(eventually([&] { return kernels_of(loop) >= number; }, 60s)) << loop.output();
    return now();
  };
  // From the end of one run to the end of another, so that only whole kernels are counted.
  constexpr int kKernels = 4;
  const int first = kernels_of(loop) + 1;
  const Duration begin = kernels_at(first);
  const Duration length = kernels_at(first + kKernels) - begin;
  const double looped = 100 * kKernels * 0.4 / std::chrono::duration<double>(length).count();
  std::cout << "looped: " << looped << " %\n";
  EXPECT_LE(looped, 11) << loop.output();
  EXPECT_GE(looped, 9) << loop.output();
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
TEST_P(TenancyTreeEitherWay, AProgramThatStartsRightAfterARestartHasItsRunsLimit) {
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

TEST_P(TenancyTreeEitherWay, ProcessesOfARunHaveTheVariablesLimitTogether) {
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
