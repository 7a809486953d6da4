#include <signal.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "integration/world.h"

// Machines with several GPUs: `nvshare run` finds the GPU with room and the least work, and --gpu
// chooses.
namespace nvshare::integration {
namespace {

using Json = nlohmann::json;
constexpr const char* kGood = "CUDA_SUCCESS";
constexpr const char* kShow = "echo ${CUDA_VISIBLE_DEVICES-unset} ${CUDA_DEVICE_ORDER-unset}";

// Two GPUs of 512 MiB. Memory stays on the GPU, so that a full GPU refuses.
class Placement : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_COUNT", "2");
    set("NVSHARE_SOFTGPU_MEMORY", "512Mi");
    set("NVSHARE_RESERVE_BASE", "4Mi");
    set("NVSHARE_RESERVE_PER_PROCESS", "2Mi");
    set("NVSHARE_RESERVE_PERCENT", "1");
    set("NVSHARE_MEMORY_BACKEND", "native");
  }
  // The GPU of the tenant's only process; -1 when it has none, or several.
  long gpu_of(const std::string& name) {
    const Json found = tenant(name);
    if (!found.is_object() || found["processes"].size() != 1) return -1;
    return found["processes"][0]["gpu"].get<long>();
  }
  std::string uuid(std::size_t gpu) {
    const Json now = status();
    return now.contains("gpus") ? now["gpus"][gpu]["uuid"].get<std::string>() : "";
  }
  // What a program under `run` sees in CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
  std::string shown(std::vector<std::string> options) {
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"--", "sh", "-c", kShow});
    const Outcome outcome = nvshare(options);
    EXPECT_EQ(outcome.ending.code, 0) << outcome.output;
    return outcome.output;
  }
};

TEST_F(Placement, WithTheFirstGpuFullTheNextRunIsOnTheSecond) {
  Process scheduler = start_scheduler();
  Process a = probe("a");
  ASSERT_EQ(ask(a, "begin 400Mi"), kGood);
  ASSERT_EQ(gpu_of("a"), 0);
  Process refused = probe("refused", {"--gpu", "0"});
  ASSERT_EQ(ask(refused, "begin 400Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
  refused.say("end");
  ASSERT_TRUE(refused.wait(20s));

  Process b = probe("b");
  EXPECT_EQ(ask(b, "begin 400Mi"), kGood);
  EXPECT_EQ(ask(b, "spin 1ms"), kGood);
  EXPECT_EQ(gpu_of("b"), 1);
  EXPECT_EQ(tenant("b")["placed"]["gpus"], Json::array({1}));
  const std::string why = nvshare({"why", "b"}).output;
  EXPECT_NE(why.find("b was placed on GPU 1: it "), std::string::npos) << why;
  const std::string table = nvshare({"status"}).output;
  EXPECT_NE(table.find("PROCESSES  GPU"), std::string::npos) << table;
}

TEST_F(Placement, AnIdleGpuComesBeforeABusyOne) {
  Process scheduler = start_scheduler();
  Process a = probe("a");
  ASSERT_EQ(ask(a, "begin 16Mi"), kGood);
  Process b = probe("b");
  ASSERT_EQ(ask(b, "begin 16Mi"), kGood);
  EXPECT_EQ(gpu_of("b"), 1);
  EXPECT_EQ(nvshare({"why", "b"})
                .output.find("b was placed on GPU 1: it was idle; GPU 0 had 1 program\n"),
            0u);
}

// A memory limit is known before the program allocates anything.
TEST_F(Placement, AMemoryLimitIsPutWhereItFits) {
  Process scheduler = start_scheduler();
  Process a = probe("a", {"--gpu", "0"});
  ASSERT_EQ(ask(a, "begin 300Mi"), kGood);
  std::vector<Process> small;
  for (const char* name : {"b", "c"}) {
    small.push_back(probe(name, {"--gpu", "1"}));
    ASSERT_EQ(ask(small.back(), "begin 16Mi"), kGood);
  }
  Process large = probe("large", {"--mem", "400Mi"});
  EXPECT_EQ(ask(large, "begin 400Mi"), kGood);
  EXPECT_EQ(gpu_of("large"), 1);
}

TEST_F(Placement, AProgramWithALeaseSeesTheGpuOfItsLease) {
  Process scheduler = start_scheduler();
  const auto seen = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"lease", "run", "--class", "ASR"});
    options.insert(options.end(), {"--", "sh", "-c", kShow});
    const Outcome outcome = nvshare(options);
    EXPECT_EQ(outcome.ending.code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_EQ(seen({"--gpu", "1"}), "1 PCI_BUS_ID\n");
  EXPECT_EQ(seen({"--gpu", uuid(0)}), "0 PCI_BUS_ID\n");
  EXPECT_EQ(seen({}), "0 PCI_BUS_ID\n") << "both are idle";
  set("CUDA_VISIBLE_DEVICES", "1,0");
  EXPECT_EQ(seen({"--gpu", "1"}), "1,0 unset\n") << "as its caller has said";
}

TEST_F(Placement, ANumberAndAUuidChooseTheGpu) {
  Process scheduler = start_scheduler();
  const std::string second = uuid(1);
  EXPECT_EQ(shown({"--gpu", "1"}), "1 PCI_BUS_ID\n");
  EXPECT_EQ(shown({"--gpu", second}), "1 PCI_BUS_ID\n");
  EXPECT_EQ(shown({"--gpu", second.substr(0, 10)}), "1 PCI_BUS_ID\n");
  EXPECT_EQ(shown({"--gpu", "1,0"}), "1,0 PCI_BUS_ID\n");
  EXPECT_EQ(shown({"--gpu", "2x"}), "0,1 PCI_BUS_ID\n");
  EXPECT_EQ(shown({"--gpu", "all"}), "unset unset\n");
  Process chosen = probe("chosen", {"--gpu", "1"});
  ASSERT_EQ(ask(chosen, "begin 16Mi"), kGood);
  EXPECT_EQ(gpu_of("chosen"), 1);
  EXPECT_EQ(tenant("chosen")["placed"]["text"], "placed on GPU 1: it was asked for");
}

TEST_F(Placement, AGpuThatIsNotThereIsOneLineAndNothingIsStarted) {
  const auto refused = [&](const std::string& which, const std::string& line) {
    const Outcome outcome = nvshare({"run", "--gpu", which, "--", "sh", "-c", "echo started"});
    EXPECT_EQ(outcome.ending.code, 2) << which;
    EXPECT_EQ(outcome.output, "nvshare run: " + line + "\n");
  };
  refused("9", "there is no GPU 9: this machine has 0 and 1");
  refused("GPU-00", "there is no GPU GPU-00: nvidia-smi -L lists those of this machine");
  refused("first",
          "--gpu: 'first' is not auto, all, 2x (for any two), a number, a UUID (GPU-...) or a list "
          "of those");
  EXPECT_FALSE(std::filesystem::exists(run_directory())) << "a scheduler was started";
}

TEST_F(Placement, AGpuThatHasFailedIsLeftOut) {
  Process scheduler = start_scheduler();
  const std::string second = uuid(1);
  set("NVSHARE_SOFTGPU_LOSE_DEVICE", "1");
  Process loses = probe("loses", {"--gpu", "0"});
  ASSERT_EQ(ask(loses, "begin 16Mi"), kGood);
  ASSERT_EQ(ask(loses, "spin 1ms"), "CUDA_ERROR_DEVICE_UNAVAILABLE");
  set("NVSHARE_SOFTGPU_LOSE_DEVICE", "0");
  // CUDA does not count the failed GPU.
  EXPECT_EQ(shown({"--gpu", "1"}), second + " unset\n");
  EXPECT_EQ(shown({"--gpu", second}), second + " unset\n");
  EXPECT_EQ(shown({}), second + " unset\n");
  const Outcome failed = nvshare({"run", "--gpu", "0", "--", "echo", "started"});
  EXPECT_EQ(failed.ending.code, 2);
  EXPECT_EQ(failed.output,
            "nvshare run: GPU 0 has failed, or may not be used: nvidia-smi -i 0 says which\n");
}

TEST_F(Placement, TenRunsAtOnceSpread) {
  Process scheduler = start_scheduler();
  std::vector<Process> all;
  for (int i = 0; i < 10; ++i) all.push_back(probe("r" + std::to_string(i)));
  for (Process& one : all) one.say("begin 16Mi");
  for (Process& one : all) ASSERT_TRUE(one.wait_for(kGood, 60s)) << one.output();
  std::map<long, int> placed;
  std::map<long, int> there;
  const Json all_now = status();
  for (const Json& one : all_now["tenants"]) {
    if (one["kind"] != "run") continue;
    for (const Json& gpu : one["placed"]["gpus"]) ++placed[gpu.get<long>()];
    for (const Json& process : one["processes"]) ++there[process["gpu"].get<long>()];
  }
  EXPECT_EQ(placed[0], 5);
  EXPECT_EQ(placed[1], 5);
  EXPECT_EQ(there, placed);
}

TEST_F(Placement, ARunOfTwoGpusHasBoth) {
  Process scheduler = start_scheduler();
  Process both = probe("both", {"--gpu", "2x"});
  ASSERT_EQ(ask(both, "begin 16Mi"), kGood);
  EXPECT_EQ(tenant("both")["placed"]["gpus"], Json::array({0, 1}));
}

TEST_F(Placement, ARestartOfTheSchedulerMovesNoRun) {
  Process scheduler = start_scheduler();
  Process a = probe("a");
  ASSERT_EQ(ask(a, "begin 16Mi"), kGood);
  Process b = probe("b");
  ASSERT_EQ(ask(b, "begin 16Mi"), kGood);
  ASSERT_EQ(gpu_of("b"), 1);
  a.say("end");
  ASSERT_TRUE(a.wait(20s));
  scheduler.signal(SIGKILL);
  ASSERT_TRUE(scheduler.wait(20s));
  scheduler = start_scheduler();
  // GPU 0 is idle now, and would be chosen for a run that is new.
  ASSERT_TRUE(eventually([&] { return gpu_of("b") >= 0 && tenant("b")["kind"] == "run"; }, 30s))
      << status().dump(1);
  EXPECT_EQ(gpu_of("b"), 1);
  EXPECT_EQ(tenant("b")["placed"]["text"],
            "placed on GPU 1: it was there before the scheduler was started again");
  EXPECT_EQ(ask(b, "spin 1ms"), kGood);
  Process c = probe("c");
  ASSERT_EQ(ask(c, "begin 16Mi"), kGood);
  EXPECT_EQ(gpu_of("c"), 0);
}

// `nvshare run` then asks for the GPUs that the keeper was told of.
TEST_F(Placement, ARunThatLostItsKeeperStaysOnItsGpu) {
  Process scheduler = start_scheduler();
  Process a = probe("a");
  ASSERT_EQ(ask(a, "begin 16Mi"), kGood);
  Process b = run({"--name", "b"}, {"sh", "-c", "read line; kill -9 $PPID; exec sleep 60"});
  const auto placed = [&] {
    return has_tenant("b") && tenant("b")["kind"] == "run" ? tenant("b")["placed"].dump() : "";
  };
  ASSERT_TRUE(eventually([&] { return placed().find("[1]") != std::string::npos; }, 20s));
  scheduler.signal(SIGKILL);
  ASSERT_TRUE(scheduler.wait(20s));
  b.say("kill");
  sleep(500ms);
  a.say("end");
  ASSERT_TRUE(a.wait(20s));
  scheduler = start_scheduler();
  EXPECT_TRUE(eventually([&] { return placed().find("[1]") != std::string::npos; }, 20s))
      << status().dump(1);
}

TEST_F(Placement, AChoiceInTheEnvironmentIsLeftAlone) {
  Process scheduler = start_scheduler();
  set("CUDA_VISIBLE_DEVICES", "1");
  EXPECT_EQ(shown({}), "1 unset\n");
  EXPECT_EQ(shown({"--gpu", "all"}), "1 unset\n");
  EXPECT_EQ(shown({"--gpu", "0"}), "0 PCI_BUS_ID\n");
  Process b = probe("b");
  ASSERT_EQ(ask(b, "begin 16Mi"), kGood);
  EXPECT_EQ(gpu_of("b"), 1);
}

// NVML does not list MIG devices, and a number cannot name one.
TEST_F(Placement, AMigDeviceInTheEnvironmentIsLeftAlone) {
  Process scheduler = start_scheduler();
  set("CUDA_VISIBLE_DEVICES", "MIG-01020304");
  EXPECT_EQ(shown({}), "MIG-01020304 unset\n");
  EXPECT_EQ(shown({"--gpu", "all"}), "MIG-01020304 unset\n");
}

// CUDA counts the faster GPU first, and NVML the one with the lower bus number.
TEST_F(Placement, OnAMachineWithMixedGpusNumbersAreThoseOfNvml) {
  set("NVSHARE_SOFTGPU_FASTEST", "1");
  Process scheduler = start_scheduler();
  for (const int gpu : {0, 1}) {
    const std::string name = "chosen" + std::to_string(gpu);
    Process one = probe(name, {"--gpu", std::to_string(gpu)});
    ASSERT_EQ(ask(one, "begin 16Mi"), kGood);
    EXPECT_EQ(gpu_of(name), gpu);
  }
  set("CUDA_VISIBLE_DEVICES", "0");
  Process own = probe("own");
  ASSERT_EQ(ask(own, "begin 16Mi"), kGood);
  EXPECT_EQ(gpu_of("own"), 1) << "the caller's number keeps its meaning";
}

TEST_F(Placement, TheSchedulerChoosesAmongTheGpusOfTheVariable) {
  Process scheduler = start_scheduler();
  set("CUDA_VISIBLE_DEVICES", uuid(1));
  EXPECT_EQ(shown({"--gpu", "1x"}), "1 PCI_BUS_ID\n");
  set("CUDA_VISIBLE_DEVICES", "1");
  set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
  EXPECT_EQ(shown({"--gpu", "1x"}), "1 PCI_BUS_ID\n");
  const Outcome two = nvshare({"run", "--gpu", "2x", "--", "echo", "started"});
  EXPECT_EQ(two.ending.code, 2);
  EXPECT_EQ(two.output, "nvshare run: --gpu: 2 wanted, and CUDA_VISIBLE_DEVICES=1 leaves 1\n");
}

TEST_F(Placement, WithOneGpuNothingIsSetUnlessItIsChosen) {
  set("NVSHARE_SOFTGPU_COUNT", "1");
  Process scheduler = start_scheduler();
  EXPECT_EQ(shown({}), "unset unset\n");
  EXPECT_EQ(shown({"--gpu", "0"}), "0 PCI_BUS_ID\n");
  Process a = probe("a");
  ASSERT_EQ(ask(a, "begin 16Mi"), kGood);
  EXPECT_TRUE(tenant("a")["placed"].is_null());
}

// Nobody knows the GPUs then.
TEST_F(Placement, WithoutNvmlNothingIsPlaced) {
  set("NVSHARE_SOFTGPU_NVML_UNAVAILABLE", "true");
  Process scheduler = start_scheduler();
  EXPECT_EQ(shown({}), "unset unset\n");
  const Outcome outcome = nvshare({"run", "--gpu", "1", "--", "true"});
  EXPECT_EQ(outcome.ending.code, 2);
  EXPECT_EQ(outcome.output.find("nvshare run: --gpu: NVML: "), 0u) << outcome.output;
}

}  // namespace
}  // namespace nvshare::integration
