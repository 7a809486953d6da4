#include <nlohmann/json.hpp>

#include "integration/world.h"

// `nvshare doctor`: what it says of an installation that works, and of one that does not.
namespace nvshare::integration {
namespace {

class Doctor : public World {};

TEST_F(Doctor, FindsNothingWrongWhereNothingIs) {
  set("NVSHARE_SOFTGPU_MEMORY", "2Gi");  // little beside the host memory of any machine
  const Process scheduler = start_scheduler();
  const Outcome outcome = nvshare({"doctor"});
  EXPECT_EQ(outcome.ending.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("is seen by the scheduler"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("\nall is well\n"), std::string::npos) << outcome.output;
  EXPECT_TRUE(eventually([&] { return runs() == 0; }, 20s)) << "it leaves nothing behind";
}

TEST_F(Doctor, StartsASchedulerWhereThereIsNone) {
  const Outcome outcome = nvshare({"doctor", "--json"});
  EXPECT_EQ(outcome.ending.code, 0) << outcome.output;
  const auto answer = nlohmann::json::parse(outcome.output, nullptr, false);
  ASSERT_TRUE(answer.is_object()) << outcome.output;
  EXPECT_TRUE(answer.value("healthy", false));
  EXPECT_NE(outcome.output.find("private scheduler"), std::string::npos) << outcome.output;
}

TEST_F(Doctor, WarnsOfLittleHostMemory) {
  set("NVSHARE_SOFTGPU_MEMORY", "1Gi");
  set("NVSHARE_ARENA_LIMIT", "128Mi");
  const Process scheduler = start_scheduler();
  const Outcome outcome = nvshare({"doctor"});
  EXPECT_EQ(outcome.ending.code, 0) << "a warning is no problem";
  EXPECT_NE(outcome.output.find("warning 128MiB of host memory can be spared for swapping, limited "
                                "by arena_limit: little beside the 1GiB of GPU 0"),
            std::string::npos)
      << outcome.output;
}

TEST_F(Doctor, NamesThoseWhoUseTheGpuOutside) {
  const Process scheduler = start_scheduler();
  Process outside = start({gpu_job(), "--seconds", "60", "--progress", "50ms"});
  ASSERT_TRUE(outside.wait_for("progress", 30s)) << outside.output();
  const std::string warning = "gpu-job (pid " + std::to_string(outside.pid()) +
                              ") uses GPU 0 outside nvshare: start it with nvshare run\n";
  Outcome outcome;
  // The scheduler looks every now and then.
  EXPECT_TRUE(eventually(
      [&] {
        outcome = nvshare({"doctor"});
        return outcome.output.find("warning " + warning) != std::string::npos;
      },
      30s))
      << outcome.output;
  EXPECT_EQ(outcome.ending.code, 0) << "a warning is no problem";
}

TEST_F(Doctor, WithoutADriverSaysWhatToDo) {
  set("LD_LIBRARY_PATH", folder());
  const Outcome outcome = nvshare({"doctor"});
  if (outcome.output.find("problem no CUDA driver") == std::string::npos) {
    GTEST_SKIP() << "this machine has a driver";
  }
  EXPECT_EQ(outcome.ending.code, 1);
  EXPECT_NE(outcome.output.find("try nvshare softgpu -- nvshare doctor"), std::string::npos)
      << outcome.output;
}

TEST_F(Doctor, ADriverThatFailsIsAProblem) {
  set("NVSHARE_MEMORY_BACKEND", "native");  // with `swap` the memory would be waited for
  const Process scheduler = start_scheduler();
  set("NVSHARE_SOFTGPU_FAIL_ALLOCATION", "1");
  const Outcome outcome = nvshare({"doctor"});
  EXPECT_EQ(outcome.ending.code, 1);
  EXPECT_NE(outcome.output.find("problem cuMemAlloc_v2 failed with 2 in a program"),
            std::string::npos)
      << outcome.output;
}

}  // namespace
}  // namespace nvshare::integration
