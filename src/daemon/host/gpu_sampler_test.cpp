#include "daemon/host/gpu_sampler.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace nvshare::daemon {
namespace {

// What the GPUs said until `enough` says so, or for ten seconds.
template <typename Enough>
std::map<std::size_t, int> collect(GpuSampler& sampler, Enough enough) {
  std::map<std::size_t, int> counts;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!enough(counts) && std::chrono::steady_clock::now() < until) {
    pollfd ready{sampler.ready(), POLLIN, 0};
    poll(&ready, 1, 100);
    for (const auto& one : sampler.take()) ++counts[one.gpu];
  }
  return counts;
}

TEST(Sampler, AsksEachGpuAgainAndAgain) {
  auto sampler = GpuSampler::start(
      2,
      [](std::size_t gpu) {
        GpuSample sample;
        sample.utilisation = static_cast<int>(gpu);
        return sample;
      },
      1ms);
  ASSERT_TRUE(sampler);
  const auto counts =
      collect(**sampler, [](const auto& seen) { return seen.size() == 2 && seen.at(1) > 3; });
  EXPECT_EQ(counts.size(), 2u);
}

TEST(Sampler, AGpuThatHangsDoesNotStopTheOthers) {
  // Outlives the sampler: its thread is left behind.
  struct Gate {
    std::mutex mutex;
    std::condition_variable wake;
    bool open = false;
  };
  const auto gate = std::make_shared<Gate>();
  {
    auto sampler = GpuSampler::start(
        2,
        [gate](std::size_t gpu) {
          std::unique_lock lock(gate->mutex);
          if (gpu == 0) gate->wake.wait(lock, [&] { return gate->open; });
          return GpuSample{};
        },
        1ms);
    ASSERT_TRUE(sampler);
    const auto counts =
        collect(**sampler, [](const auto& seen) { return seen.contains(1) && seen.at(1) > 3; });
    EXPECT_FALSE(counts.contains(0));
    EXPECT_GT(counts.at(1), 3);
    const auto start = std::chrono::steady_clock::now();
    sampler->reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5 * GpuSampler::kLeaveBehindAfter);
  }
  {
    const std::lock_guard lock(gate->mutex);
    gate->open = true;
  }
  gate->wake.notify_all();
  while (gate.use_count() > 1) std::this_thread::yield();  // the thread has ended
}

TEST(Sampler, AShorterPeriodCountsAtOnce) {
  auto sampler = GpuSampler::start(
      1, [](std::size_t) { return GpuSample{}; }, 1h);
  ASSERT_TRUE(sampler);
  collect(**sampler, [](const auto& seen) { return seen.contains(0); });
  (*sampler)->set_period(1ms);
  const auto counts =
      collect(**sampler, [](const auto& seen) { return seen.contains(0) && seen.at(0) > 3; });
  EXPECT_GT(counts.at(0), 3);
}

TEST(Sampler, WithoutTheLibrarySaysSo) {
  const auto gpus = NvmlGpus::open("libnvshare-no-such-library.so.1");
  ASSERT_FALSE(gpus);
  EXPECT_NE(gpus.error().message.find("libnvshare-no-such-library"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::daemon
