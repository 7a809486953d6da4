// Host memory in virtual time: jobs wait instead of failing as long as the shortage fits into it.

#include <map>
#include <random>

#include "base/chunk.h"
#include "scenarios.h"

namespace nvshare::sim {
namespace {

// A card without a reserve, so that sums can be read off the test.
Scenario card(Bytes memory, Bytes host, Duration lasts) {
  Scenario scenario = one_gpu(core::ComputePolicy::Metered, lasts, memory);
  scenario.config.reserve_percent = 0;
  scenario.config.reserve_base = {};
  scenario.config.reserve_per_process = {};
  scenario.config.quantum_min = 1s;
  scenario.host_memory = host;
  return scenario;
}

void add(Scenario& scenario, const char* name, Bytes memory) {
  scenario.clients.push_back(with_memory(saturating(name, 100, 1ms), memory));
}

// What always holds: what was once on the card is there or in host memory.
struct Watch : Observer {
  explicit Watch(Bytes most) : host(most) {}
  void after_step(const core::Event&, Time, const core::Decisions&,
                  const core::Core& core) override {
    const core::Snapshot s = core.snapshot();
    EXPECT_LE(s.gpus[0].resident, s.gpus[0].safe_limit);
    EXPECT_LE(s.gpus[0].host_used, host);
    Bytes left{};
    for (const core::ClientView& client : s.clients) {
      Bytes& most = had[client.id];
      most = std::min(std::max(most, client.resident), client.allocated);
      left += most - client.resident + client.outgoing;
    }
    EXPECT_LE(left, host);
  }
  Bytes host;
  std::map<core::ClientId, Bytes> had;  // on the card at once, at most
};

void expect_equal_shares(const Report& report, double together) {
  const auto count = static_cast<int>(report.clients.size());
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    sum += share_of(report, i);
    EXPECT_NEAR(share_of(report, i), together / count, together / count * 0.25);
  }
  EXPECT_GE(sum, together * 0.9);
}

TEST(HostMemory, FourOf700MibRunOnOneGibWithAnArenaOf2200Mib) {
  Scenario scenario = card(gib(1), mib(2253), 5min);
  scenario.config.link_per_second = gib(50);
  for (const char* name : {"a", "b", "c", "d"}) add(scenario, name, mib(700));
  Watch watch(mib(2253));
  const Report report = play(scenario, &watch);
  expect_equal_shares(report, 95);
  EXPECT_GE(report.gpus[0].highest_swapped, mib(2800 - 1024));
}

TEST(HostMemory, TwoOf86GibRunOnACardOf139WithTheirShortageAndTwoChunks) {
  const Bytes host = gib(2 * 86 - 139) + mib(512);
  Scenario scenario = card(gib(139), host, 5min);
  scenario.config.link_per_second = gib(50);
  scenario.config.quantum_min = 10s;
  add(scenario, "a", gib(86));
  add(scenario, "b", gib(86));
  Watch watch(host);
  expect_equal_shares(play(scenario, &watch), 90);
}

TEST(HostMemory, WhatFitsNeitherCardNorHostIsRefusedWithTheNumbers) {
  Scenario scenario = card(gib(16), gib(4), 1min);
  add(scenario, "a", gib(12));
  add(scenario, "b", gib(12));
  const auto report = run(scenario);
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message.find("8.5GiB of host memory would be needed"), std::string::npos)
      << report.error().message;
  EXPECT_NE(report.error().message.find("there can be 4GiB"), std::string::npos)
      << report.error().message;
}

// Twenty GiB change places while one GiB of host memory is free: chunks pass each other.
TEST(HostMemory, AnExchangeThroughLittleHostMemoryKeepsTheLinkBusy) {
  const Bytes host = gib(20 + 1);
  Scenario scenario = card(gib(20), host, 100s);
  scenario.link_per_second = gib(50);
  scenario.config.link_per_second = gib(50);
  scenario.config.quantum_mode = core::QuantumMode::Fixed;
  scenario.config.quantum_fixed = 10s;
  add(scenario, "a", gib(20));
  add(scenario, "b", gib(20));
  Watch watch(host);
  const Report report = play(scenario, &watch);
  Bytes moved{};
  for (const ClientReport& client : report.clients) moved += client.moved_in + client.moved_out;
  const double idle = 100 - share_of(report, 0) - share_of(report, 1);  // percent of 100 s
  const double one_way = static_cast<double>(moved.count) / static_cast<double>(gib(50).count);
  EXPECT_GT(moved, gib(100));
  EXPECT_LE(idle, one_way / 0.8) << "the exchange at 80 % of the one-way link";
}

// Two GPUs share the host's memory: what one of them does not need the other can use.
TEST(HostMemory, OneGpusPlacesAreTheOthersWhenItIsDone) {
  Scenario scenario = card(gib(16), gib(9), 10min);
  scenario.gpus.push_back(GpuSpec{.memory = gib(16)});
  scenario.config.link_per_second = gib(50);
  for (const char* name : {"a", "b"}) {
    add(scenario, name, gib(12));
    scenario.clients.back().gpu = 0;
    scenario.clients.back().leaves = 1min;
  }
  for (const char* name : {"c", "d"}) {
    add(scenario, name, gib(12));
    scenario.clients.back().gpu = 1;
    scenario.clients.back().arrives = 2min;
  }
  const Report report = play(scenario);
  EXPECT_GT(report.clients[2].gpu_time, 150s);
  EXPECT_GT(report.clients[3].gpu_time, 150s);
}

// Whatever fits card and host together gets there, and nobody waits on an empty card.
TEST(HostMemory, WhateverFitsCardAndHostRuns) {
  std::mt19937_64 random(20261118);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const Bytes memory = mib(between(512, 16384));
    const auto count = static_cast<int>(between(2, 8));
    std::vector<Bytes> sizes;
    Bytes all{};
    for (int i = 0; i < count; ++i) {
      sizes.push_back(Bytes{between(memory.count / 8, memory.count)});
      all += sizes.back();
    }
    const auto chunk =
        static_cast<std::int64_t>(largest_chunk(static_cast<std::uint64_t>(memory.count)));
    const Bytes host = std::max(Bytes{}, all - memory) + Bytes{2 * chunk};
    Scenario scenario = card(memory, host, 400s);
    scenario.config.link_per_second = gib(50);
    for (const Bytes size : sizes) add(scenario, "job", size);
    for (std::size_t i = 0; i < scenario.clients.size(); ++i) {
      scenario.clients[i].name += std::to_string(i);
      if (between(0, 3) == 0) scenario.clients[i].leaves = 1s * between(1, 300);
      if (between(0, 3) == 0) scenario.clients[i].arrives = 1ms * between(1, 900);
    }
    Watch watch(host);
    const Report report = play(scenario, &watch);
    Duration used{};
    Duration until{};
    for (const ClientReport& client : report.clients) {
      used += client.gpu_time;
      until = std::max(
          until, scenario.clients[static_cast<std::size_t>(client.tenant)].leaves.value_or(400s));
      const ClientSpec& spec = scenario.clients[static_cast<std::size_t>(client.tenant)];
      const Duration there = spec.leaves.value_or(400s) - spec.arrives;
      if (there > 200s) {
        EXPECT_GT(client.gpu_time, 2s) << client.name;
      }
    }
    EXPECT_GT(used, until * 7 / 10);
  }
}

}  // namespace
}  // namespace nvshare::sim
