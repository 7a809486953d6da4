#include "cli/commands/doctor.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

Finding finding(Bytes limit, const std::string& limited_by, const std::vector<Bytes>& gpus) {
  Status status;
  status.scheduler.arena = {{}, {}, limit, limited_by};
  for (const Bytes memory : gpus) {
    GpuInfo gpu;
    gpu.index = static_cast<long>(status.gpus.size());
    gpu.memory = memory;
    status.gpus.push_back(gpu);
  }
  return host_memory_finding(status);
}

TEST(Doctor, SaysHowMuchHostMemoryThereIsForSwapping) {
  const Finding found = finding(gib(64), "machine", {gib(80)});
  EXPECT_EQ(found.level, Level::Good);
  EXPECT_EQ(found.what, "64GiB of host memory can be spared for swapping, limited by the machine");
  EXPECT_EQ(found.advice, "");
  EXPECT_EQ(finding(gib(64), "", {}).what, "64GiB of host memory can be spared for swapping");
}

TEST(Doctor, WarnsOfLittleHostMemoryForTheLargestGpu) {
  EXPECT_EQ(finding(gib(40), "machine", {gib(80)}).level, Level::Good);
  const Finding found = finding(gib(39), "machine", {gib(16), gib(80), gib(16)});
  EXPECT_EQ(found.level, Level::Warning);
  EXPECT_EQ(found.what,
            "39GiB of host memory can be spared for swapping, limited by the machine: little "
            "beside the 80GiB of GPU 1, and programs that do not fit both are refused memory");
  EXPECT_EQ(finding({}, "", {}).level, Level::Good) << "no GPU is known";
}

TEST(Doctor, AdvisesByWhatHostMemoryIsLimited) {
  const auto advice = [](const char* by) { return finding(gib(1), by, {gib(80)}).advice; };
  EXPECT_EQ(advice("arena_limit"),
            "raise arena_limit in the scheduler's settings, and start it again");
  EXPECT_EQ(advice("cgroup"),
            "raise the memory limit of the scheduler's cgroup (systemd: MemoryMax)");
  EXPECT_EQ(advice("machine"), "free host memory, or add some");
}

TEST(Doctor, NamesTheLimitOfTheEnvironment) {
  EXPECT_FALSE(own_limit_finding(nullptr));
  EXPECT_FALSE(own_limit_finding(""));
  const auto good = own_limit_finding("1.5Gi");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->level, Level::Good);
  EXPECT_EQ(good->what,
            "NVSHARE_GPU_MEMORY_LIMIT is '1.5Gi': programs that are started here may have at most "
            "1.5GiB of GPU memory each");
  EXPECT_EQ(own_limit_finding("25%")->what,
            "NVSHARE_GPU_MEMORY_LIMIT is '25%': programs that are started here may have at most "
            "25% of a GPU's memory each");
  EXPECT_EQ(own_limit_finding("0")->level, Level::Good);
  const auto wrong = own_limit_finding("32 megabytes");
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->level, Level::Problem);
  EXPECT_EQ(wrong->what,
            "NVSHARE_GPU_MEMORY_LIMIT is '32 megabytes', which is not understood: programs get no "
            "GPU memory");
  EXPECT_EQ(wrong->advice, "write 4Gi, 512Mi, 2G or 25%, or unset it");
}

}  // namespace
}  // namespace nvshare::cli
