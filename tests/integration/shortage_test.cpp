#include <signal.h>

#include <nlohmann/json.hpp>

#include "integration/world.h"

// Host memory by shortage, with real processes: jobs wait instead of failing as long as what does
// not fit the card fits into the arena. Each job changes all of its memory again and again, and
// looks at the end whether every word is what it should be.
namespace nvshare::integration {
namespace {

class Shortage : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_RESERVE_BASE", "4Mi");
    set("NVSHARE_RESERVE_PER_PROCESS", "2Mi");
    set("NVSHARE_RESERVE_PERCENT", "1");
    set("NVSHARE_QUANTUM_MIN", "200ms");
    set("NVSHARE_QUANTUM_MAX", "500ms");
  }
  Job trainer(const std::string& name, const std::string& memory, const std::string& piece) {
    return job(name, {},
               {"--pattern", "train", "--memory", memory, "--piece", piece, "--queue", "2",
                "--check", "--seconds", "300"});
  }
  static double kernels(const Job& job) {
    const std::vector<Sample> samples = job.samples();
    return samples.empty() ? 0 : samples.back().kernels;
  }
  // Each of them has run, been away and run again.
  bool all_take_turns(const std::vector<Job>& jobs) {
    for (int round = 0; round < 2; ++round) {
      std::vector<double> before;
      for (const Job& one : jobs) before.push_back(kernels(one));
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        const auto moved_on = [&] { return kernels(jobs[i]) > before[i] + 3; };
        if (!eventually(moved_on, 60s)) return false;
      }
    }
    return true;
  }
  std::string how_it_stands(const Process& scheduler) {
    return nvshare({"status"}).output + nvshare({"why", "a"}).output + scheduler.output();
  }
  static void end_well(std::vector<Job>& jobs) {
    for (const Job& one : jobs) one.process.signal(SIGTERM);
    for (Job& one : jobs) {
      const auto ending = one.process.wait(120s);
      ASSERT_TRUE(ending) << one.name << " has not ended:\n" << one.process.output();
      EXPECT_EQ(ending->code, 0) << one.name << ":\n" << one.process.output();
    }
  }
  std::int64_t of_scheduler(const char* key) { return status()["scheduler"].value(key, -1l); }
};

TEST_F(Shortage, FourJobsOf700MibRunOnACardOfOneGib) {
  set("NVSHARE_SOFTGPU_MEMORY", "1Gi");
  set("NVSHARE_ARENA_LIMIT", "2252Mi");
  const Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  for (const char* name : {"a", "b", "c", "d"}) jobs.push_back(trainer(name, "700Mi", "100Mi"));
  EXPECT_TRUE(all_take_turns(jobs)) << how_it_stands(scheduler);
  EXPECT_LE(of_scheduler("arena_used"), std::int64_t{2252} << 20);
  end_well(jobs);
  EXPECT_EQ(scheduler.output().find("memory_refused"), std::string::npos) << scheduler.output();
  EXPECT_TRUE(eventually([&] { return of_scheduler("arena_used") == 0; }, 20s));
}

// Little more than the shortage and two chunks: whatever leaves takes the place of what comes.
TEST_F(Shortage, AFullArenaAndAFullCardExchangeInLockstep) {
  set("NVSHARE_SOFTGPU_MEMORY", "512Mi");
  set("NVSHARE_ARENA_LIMIT", "640Mi");
  const Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  jobs.push_back(trainer("a", "480Mi", "32Mi"));
  jobs.push_back(trainer("b", "480Mi", "32Mi"));
  EXPECT_TRUE(all_take_turns(jobs)) << how_it_stands(scheduler);
  EXPECT_LE(of_scheduler("arena_used"), std::int64_t{640} << 20);
  EXPECT_NE(nvshare({"trace", "a"}).output.find("host_memory_passed"), std::string::npos)
      << "slabs change hands: " << nvshare({"trace", "a"}).output;
  end_well(jobs);
}

// Slabs of a job that is killed in the middle of an exchange come back, and the others go on.
TEST_F(Shortage, AJobThatIsKilledInAnExchangeLeavesItsSlabs) {
  set("NVSHARE_SOFTGPU_MEMORY", "512Mi");
  set("NVSHARE_ARENA_LIMIT", "1100Mi");
  const Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  for (const char* name : {"a", "b", "c"}) jobs.push_back(trainer(name, "440Mi", "32Mi"));
  EXPECT_TRUE(all_take_turns(jobs)) << how_it_stands(scheduler);
  for (const pid_t pid : processes("c")) ::kill(pid, SIGKILL);
  jobs.back().process.wait(60s);
  jobs.pop_back();
  EXPECT_TRUE(all_take_turns(jobs)) << how_it_stands(scheduler);
  EXPECT_LE(of_scheduler("arena_used"), std::int64_t{1100} << 20);
  end_well(jobs);
  EXPECT_TRUE(eventually([&] { return of_scheduler("arena_used") == 0; }, 30s));
}

TEST_F(Shortage, StatusAndWhySayWhatHostMemoryIsNeededUsedAndPossible) {
  set("NVSHARE_SOFTGPU_MEMORY", "512Mi");
  set("NVSHARE_ARENA_LIMIT", "640Mi");
  const Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  jobs.push_back(trainer("a", "320Mi", "32Mi"));
  ASSERT_TRUE(eventually([&] { return kernels(jobs[0]) > 0; }, 30s));
  const std::string line = "host memory for swapping: ";
  EXPECT_EQ(nvshare({"status"}).output.find(line), std::string::npos) << "all memory fits";
  EXPECT_EQ(nvshare({"why", "a"}).output.find(line), std::string::npos);
  jobs.push_back(trainer("b", "320Mi", "32Mi"));
  ASSERT_TRUE(all_take_turns(jobs));
  EXPECT_GT(of_scheduler("arena_needed"), std::int64_t{100} << 20);
  for (const auto& words : {std::vector<std::string>{"status"}, {"why", "a"}}) {
    const std::string text = nvshare(words).output;
    EXPECT_NE(text.find("\n" + line), std::string::npos) << text;
    EXPECT_NE(text.find(" used, 640MiB possible (limited by arena_limit)\n"), std::string::npos)
        << text;
  }
  end_well(jobs);
}

TEST_F(Shortage, WhatFitsNeitherIsRefusedInOneLineWithTheNumbers) {
  set("NVSHARE_SOFTGPU_MEMORY", "512Mi");
  set("NVSHARE_ARENA_LIMIT", "128Mi");
  const Process scheduler = start_scheduler();
  Job first = trainer("first", "400Mi", "100Mi");
  ASSERT_TRUE(eventually([&] { return kernels(first) > 0; }, 30s)) << first.process.output();
  Job second = trainer("second", "400Mi", "100Mi");
  const auto ending = second.process.wait(60s);
  ASSERT_TRUE(ending);
  EXPECT_NE(ending->code, 0);
  EXPECT_NE(second.process.output().find("of host memory would be needed"), std::string::npos)
      << second.process.output();
  const double before = kernels(first);
  EXPECT_TRUE(eventually([&] { return kernels(first) > before + 3; }, 30s));
  first.process.signal(SIGTERM);
  first.process.wait(60s);
}

}  // namespace
}  // namespace nvshare::integration
