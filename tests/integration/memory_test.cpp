#include <signal.h>

#include <nlohmann/json.hpp>

#include "integration/world.h"

// Memory limits, to the byte.
namespace nvshare::integration {
namespace {

class Memory : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }
  Process started(const std::string& name, const std::vector<std::string>& options) {
    Process one = probe(name, options);
    EXPECT_EQ(ask(one, "start"), "CUDA_SUCCESS") << one.output();
    return one;
  }
  long allocated(const std::string& name) { return sum_of(name, "allocated"); }
  long messages(const std::string& name) { return sum_of(name, "messages"); }

 private:
  // Of all its processes; -1 without such a tenant.
  long sum_of(const std::string& name, const char* key) {
    long sum = 0;
    const nlohmann::json found = tenant(name);
    if (!found.is_object()) return -1;
    for (const nlohmann::json& one : found["processes"]) sum += one.value(key, 0l);
    return sum;
  }

  std::vector<Process> scheduler_;
};

TEST_F(Memory, TheLimitIsExact) {
  Process one = started("one", {"--mem", "256Mi"});
  EXPECT_EQ(ask(one, "alloc 200Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "alloc 58Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(ask(one, "alloc 56Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "alloc 512"), "CUDA_ERROR_OUT_OF_MEMORY") << "not one byte more";
  EXPECT_EQ(allocated("one"), 256l << 20);
  EXPECT_EQ(ask(one, "free"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "alloc 56Mi"), "CUDA_SUCCESS");
}

TEST_F(Memory, ARefusalIsToldToThePersonOnceWithWhatToDo) {
  Process one = started("one", {"--mem", "256Mi"});
  EXPECT_EQ(ask(one, "alloc 200Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(one.output().find("nvshare run:"), std::string::npos) << one.output();
  EXPECT_EQ(ask(one, "alloc 58Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(ask(one, "alloc 100Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  const std::string line =
      "nvshare run: one asked for 58MiB more GPU memory: with the 200MiB it has that is 2MiB over "
      "its limit of 256MiB. Raise it: nvshare limit one --mem 384Mi, or start it with that --mem\n";
  EXPECT_TRUE(one.wait_for(line, 20s)) << one.output();
  const Outcome why = nvshare({"why", "one"});
  EXPECT_NE(why.output.find("was refused memory 2 times"), std::string::npos) << why.output;
  EXPECT_EQ(nvshare({"limit", "one", "--mem", "384Mi"}).ending.code, 0) << "as it says";
  EXPECT_EQ(ask(one, "alloc 58Mi"), "CUDA_SUCCESS");
  one.say("end");
  ASSERT_TRUE(one.wait(20s)) << "all that it was told is in its output once it has ended";
  const std::string output = one.output();
  EXPECT_EQ(output.find("nvshare run:"), output.rfind("nvshare run:")) << output;
}

TEST_F(Memory, TheLimitIsExactUnderRaces) {
  Process one = started("one", {"--mem", "256Mi"});
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(ask(one, "fill 2Mi 8"), "128");
    for (int i = 0; i < 128; ++i) ASSERT_EQ(ask(one, "free"), "CUDA_SUCCESS");
  }
}

TEST_F(Memory, FarFromAnyLimitNothingIsAsked) {
  for (const std::string backend : {"native", "swap", "managed"}) {
    Process one = started(backend, {"--mem", "1Gi", "--backend", backend});
    ASSERT_EQ(ask(one, "alloc 2Mi"), "CUDA_SUCCESS");
    const long before = messages(backend);
    ASSERT_GT(before, 0);
    EXPECT_EQ(ask(one, "churn 2Mi 1000"), "CUDA_SUCCESS");
    // Measuring the GPU may take the credit away for a moment, about once a second.
    EXPECT_LE(messages(backend), before + 50) << backend;
    EXPECT_EQ(allocated(backend), 2l << 20) << backend;
    EXPECT_EQ(ask(one, "alloc 4Mi"), "CUDA_SUCCESS");
    EXPECT_EQ(allocated(backend), 6l << 20) << "and it is known";
  }
}

TEST_F(Memory, CreditOfOneIsInNobodysWay) {
  const std::string job = gpu_job() + " --pattern bursty --memory ";
  Process both = run({"--name", "both", "--mem", "128Mi"},
                     {"sh", "-c",
                      job + "80Mi --seconds 60 --quiet & read line; " + job +
                          "48Mi --seconds 1; echo second=$?; " + job +
                          "49Mi --seconds 1; echo third=$?; kill $!; wait"});
  ASSERT_TRUE(eventually([&] { return allocated("both") == 80l << 20; }, 30s)) << both.output();
  both.say("go on");
  ASSERT_TRUE(both.wait(60s)) << both.output();
  EXPECT_NE(both.output().find("second=0"), std::string::npos) << both.output();
  EXPECT_NE(both.output().find("third=1"), std::string::npos) << both.output();
}

TEST_F(Memory, ALimitThatIsLoweredBindsTheNextAllocation) {
  Process one = started("one", {"--mem", "1Gi"});
  ASSERT_EQ(ask(one, "alloc 2Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "alloc 2Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(nvshare({"limit", "one", "--mem", "6Mi"}).ending.code, 0);
  EXPECT_EQ(ask(one, "info"), "free=2097152 total=6291456");
  EXPECT_EQ(ask(one, "alloc 3Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(ask(one, "alloc 2Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "alloc 1"), "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(Memory, ProcessesOfATenantShareTheLimit) {
  const std::string hold = gpu_job() + " --memory 80Mi --pattern bursty --seconds ";
  // The first holds its memory until it is told to end.
  Process both = run({"--name", "both", "--mem", "128Mi"},
                     {"sh", "-c",
                      hold + "60 --quiet & read line; " + hold +
                          "1; echo second=$?; kill $!; wait; " + hold + "1; echo third=$?"});
  ASSERT_TRUE(eventually([&] { return allocated("both") >= 80l << 20; }, 30s)) << both.output();
  both.say("go on");
  ASSERT_TRUE(both.wait(60s)) << both.output();
  EXPECT_NE(both.output().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << both.output();
  EXPECT_NE(both.output().find("second=1"), std::string::npos) << both.output();
  EXPECT_NE(both.output().find("third=0"), std::string::npos) << both.output();
}

TEST_F(Memory, TheProgramSeesItsLimitAsTheCard) {
  Process one = started("one", {"--mem", "256Mi"});
  EXPECT_EQ(ask(one, "info"), "free=268435456 total=268435456");
  EXPECT_EQ(ask(one, "alloc 100Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "info"), "free=163577856 total=268435456");
  Process free = started("free", {});
  EXPECT_NE(ask(free, "info").find("total=4294967296"), std::string::npos)
      << "without a limit it is the card's";
}

TEST_F(Memory, TheLimitCanBeChanged) {
  Process one = started("one", {"--mem", "64Mi"});
  EXPECT_EQ(ask(one, "alloc 128Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  ASSERT_EQ(nvshare({"limit", "one", "--mem", "256Mi"}).ending.code, 0);
  EXPECT_EQ(ask(one, "alloc 128Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(nvshare({"limit", "one", "--mem", "100Mi"}).ending.code, 0);
  EXPECT_EQ(ask(one, "alloc 2Mi"), "CUDA_ERROR_OUT_OF_MEMORY") << "what it has it keeps";
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
  ASSERT_EQ(nvshare({"limit", "one", "--mem", "none"}).ending.code, 0);
  EXPECT_EQ(ask(one, "alloc 1Gi"), "CUDA_SUCCESS");
}

TEST_F(Memory, AnEnvironmentVariableLowersTheLimitButDoesNotRaiseIt) {
  set("NVSHARE_GPU_MEMORY_LIMIT", "32Mi");
  Process low = started("low", {"--mem", "64Mi"});
  EXPECT_EQ(ask(low, "alloc 34Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_TRUE(eventually(
      [&] {
        return low.output().find("32MiB left under NVSHARE_GPU_MEMORY_LIMIT") != std::string::npos;
      },
      20s))
      << low.output();
  EXPECT_EQ(ask(low, "alloc 32Mi"), "CUDA_SUCCESS");
  set("NVSHARE_GPU_MEMORY_LIMIT", "1Gi");
  Process high = started("high", {"--mem", "64Mi"});
  EXPECT_EQ(ask(high, "alloc 66Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(Memory, AnEnvironmentVariableThatIsNotUnderstoodIsSaidAndLeavesNothing) {
  Process wrong = run({"--name", "wrong", "--mem", "64Mi"},
                      {"env", "NVSHARE_GPU_MEMORY_LIMIT=32 megabytes", probe_program()});
  EXPECT_EQ(ask(wrong, "start"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(ask(wrong, "start"), "CUDA_ERROR_OUT_OF_MEMORY");
  const std::string said = wrong.output();
  const std::string line =
      "nvshare: this program gets no GPU memory, because NVSHARE_GPU_MEMORY_LIMIT is '32 "
      "megabytes', which is not understood (write 4Gi, 512Mi, 2G or 25%; 0: no limit of its own)\n";
  EXPECT_NE(said.find(line), std::string::npos) << said;
  EXPECT_EQ(said.find("nvshare"), said.rfind("nvshare: ")) << "one line: " << said;
}

TEST_F(Memory, AKilledProcessHoldsNothing) {
  Process one = started("one", {"--mem", "256Mi"});
  ASSERT_EQ(ask(one, "alloc 200Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(allocated("one"), 200l << 20);
  const std::vector<pid_t> pids = processes("one");
  ASSERT_EQ(pids.size(), 1u);
  ::kill(pids[0], SIGKILL);
  EXPECT_TRUE(eventually([&] { return allocated("one") <= 0; }, 20s));
  EXPECT_EQ(one.wait(20s).value_or(Ending{}).signal, SIGKILL);
}

}  // namespace
}  // namespace nvshare::integration
