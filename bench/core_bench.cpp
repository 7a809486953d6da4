// What one event costs the core, at 100, 1,000 and 10,000 clients of one GPU, what a lease costs
// the arbiter with as many waiting, and how long an hour of 1,000 clients takes to simulate.
// `core_bench --check` fails when a limit is missed (checks.h).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <set>

#include "checks.h"
#include "core/arbiter/arbiter.h"
#include "core/core.h"
#include "sim/simulator.h"

namespace nvshare::bench {
namespace {

using namespace core;

constexpr int kDeep = 4;  // tenants that are parts of one another

void must(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "core_bench: %s\n", what);
  std::abort();
}

// A core with clients of one tenant each, that does as it is told. With `depth` these are parts of
// tenants, ten of each, which are parts of others. Two thirds of those have a limit.
class Crowd {
 public:
  Crowd(const Config& config, int clients, Bytes gpu, int depth = 1)
      : core_(config), running_(slots(clients)) {
    tell(GpuAdded{GpuId{0}, gpu});
    for (int i = 1; i <= clients; ++i) {
      const auto id = static_cast<std::uint64_t>(i);
      tell(TenantAdded{TenantId{id}, "t", limits_of(i), parent_of(i, 1, depth)});
      tell(ClientAdded{ClientId{id}, TenantId{id}, GpuId{0}});
    }
  }

  // The tenant that the i-th of a level is a part of; made when it is not there yet.
  std::optional<TenantId> parent_of(int i, int level, int depth) {
    if (level == depth) return std::nullopt;
    constexpr std::uint64_t kLevel = 1'000'000;
    const int place = i / 10;
    const TenantId id{kLevel * static_cast<std::uint64_t>(level) +
                      static_cast<std::uint64_t>(place)};
    if (!parents_.insert(id).second) return id;
    const Limits limits{place % 3 == 0 ? 100 : 90, {}, 0};
    tell(TenantAdded{id, "t", limits, parent_of(place, level + 1, depth)});
    return id;
  }

  // A third each with a high, a low and no limit.
  static Limits limits_of(int i) { return {i % 3 == 0 ? 100 : i % 3 == 1 ? 50 : 5, {}, 0}; }

  const Decisions& tell(const Event& event) {
    auto result = core_.step(event, now_);
    must(static_cast<bool>(result), "an event was refused");
    last_ = std::move(*result);
    for (const Decision& d : last_) {
      if (const auto* grant = std::get_if<Grant>(&d.action)) {
        granted_ = grant->client;
        running_[grant->client.value] = true;
      }
    }
    return last_;
  }
  void release(ClientId client, Duration used, bool more) {
    running_[client.value] = false;
    tell(Released{client, used, more});
  }
  void pass(Duration time) { now_ += time; }
  void wake_up() {
    must(core_.next_wakeup().has_value(), "nothing is due");
    now_ = std::max(now_, *core_.next_wakeup());
    tell(Tick{});
  }
  bool dropped(ClientId client) const {
    return std::any_of(last_.begin(), last_.end(), [&](const Decision& d) {
      const auto* drop = std::get_if<Drop>(&d.action);
      return drop != nullptr && drop->client == client;
    });
  }
  ClientId granted() const { return granted_; }
  bool runs(ClientId client) const { return running_[client.value]; }
  const Core& core() const { return core_; }
  // Somebody else each time, far from the last: nothing is in the cache by luck.
  ClientId another(int clients) {
    turn_ = (turn_ + 7919) % static_cast<std::uint64_t>(clients);
    return ClientId{turn_ + 1};
  }

 private:
  static std::vector<bool> slots(int clients) {
    return std::vector<bool>(static_cast<std::size_t>(clients) + 1);
  }

  Core core_;
  Time now_{};
  ClientId granted_;
  std::uint64_t turn_ = 0;
  Decisions last_;
  std::vector<bool> running_;
  std::set<TenantId> parents_;
};

Config config_of(ComputePolicy policy) {
  Config config;
  config.policy = policy;
  config.share_mode = ShareMode::Turns;
  config.reserve_percent = 0;
  config.reserve_base = config.reserve_per_process = Bytes{};
  return config;
}

int clients_of(const benchmark::State& state) {
  return static_cast<int>(state.range(0));
}

// Everyone wants the GPU; the turn goes round: Released, and with it the next one's Grant.
void hand_over(benchmark::State& state, int depth) {
  const int n = clients_of(state);
  Crowd crowd(config_of(ComputePolicy::Metered), n, gib(16), depth);
  for (int i = 0; i < n; ++i) crowd.tell(WorkRequested{crowd.another(n)});
  for (auto _ : state) {
    crowd.pass(5ms);
    crowd.release(crowd.granted(), 5ms, true);
    must(crowd.runs(crowd.granted()), "nobody was granted the turn");
  }
  state.counters["events"] = 1;
}

void metered_hand_over(benchmark::State& state) {
  hand_over(state, 1);
}
void metered_hand_over_deep(benchmark::State& state) {
  hand_over(state, kDeep);
}

// The same where the core says when a turn or a quota is over: Tick, Drop, Released, Grant.
void serial_hand_over(benchmark::State& state, ComputePolicy policy) {
  const int n = clients_of(state);
  Crowd crowd(config_of(policy), n, gib(16));
  for (int i = 0; i < n; ++i) crowd.tell(WorkRequested{crowd.another(n)});
  std::int64_t dropped = 0;
  for (auto _ : state) {
    crowd.wake_up();
    const ClientId holder = crowd.granted();
    if (!crowd.runs(holder) || !crowd.dropped(holder)) continue;
    crowd.release(holder, 1us, true);
    ++dropped;
  }
  must(dropped * 4 > static_cast<std::int64_t>(state.iterations()), "the turn does not go round");
  state.counters["events"] = 2;
}
void fair_hand_over(benchmark::State& state) {
  serial_hand_over(state, ComputePolicy::Fair);
}
void coordinated_hand_over(benchmark::State& state) {
  serial_hand_over(state, ComputePolicy::Coordinated);
}

// All run together; one after the other stops for a moment and asks again.
void together(benchmark::State& state, ComputePolicy policy) {
  const int n = clients_of(state);
  Config config = config_of(policy);
  config.window = 1h;  // the ends of windows, when all are looked at, are not what is measured
  Crowd crowd(config, n, gib(16));
  for (int i = 0; i < n; ++i) crowd.tell(WorkRequested{crowd.another(n)});
  for (auto _ : state) {
    crowd.pass(1us);
    const ClientId client = crowd.another(n);
    crowd.release(client, 1us, false);
    crowd.tell(WorkRequested{client});
    must(crowd.runs(client), "was not granted");
  }
  state.counters["events"] = 2;
}
void wall_stop_and_go(benchmark::State& state) {
  together(state, ComputePolicy::Wall);
}
void weighted_stop_and_go(benchmark::State& state) {
  together(state, ComputePolicy::Weighted);
}

// Half of the clients wait; another one asks, and once it has had its turn it has no more work.
void work_requested(benchmark::State& state, int depth) {
  const int n = clients_of(state);
  Crowd crowd(config_of(ComputePolicy::Metered), n, gib(16), depth);
  for (int i = 0; i < n / 2; ++i) crowd.tell(WorkRequested{crowd.another(n)});
  for (auto _ : state) {
    const ClientId holder = crowd.granted();
    crowd.pass(5ms);
    crowd.release(holder, 5ms, false);
    crowd.tell(WorkRequested{holder});
  }
  state.counters["events"] = 2;
}

void metered_work_requested(benchmark::State& state) {
  work_requested(state, 1);
}
void metered_work_requested_deep(benchmark::State& state) {
  work_requested(state, kDeep);
}

// A quarter of the clients have their memory on the GPU; the others wait for it. One of those
// grows and shrinks again.
void memory_changed(benchmark::State& state, int depth) {
  const int n = clients_of(state);
  Crowd crowd(config_of(ComputePolicy::Metered), n, mib(64) * (n / 4), depth);
  for (int i = 1; i <= n; ++i) {
    const ClientId client{static_cast<std::uint64_t>(i)};
    crowd.tell(MemoryChanged{client, mib(64), {}, {}});
    crowd.tell(WorkRequested{client});
  }
  must(crowd.core().snapshot().gpus[0].waiting_for_memory >= n / 2, "the queue is not long");
  for (auto _ : state) {
    ClientId client = crowd.another(n);
    while (client.value <= static_cast<std::uint64_t>(n) / 2) client = crowd.another(n);
    crowd.tell(MemoryChanged{client, mib(65), {}, {}});
    crowd.tell(MemoryChanged{client, mib(64), {}, {}});
  }
  state.counters["events"] = 2;
}
void memory_changed_long_queue(benchmark::State& state) {
  memory_changed(state, 1);
}
void memory_changed_long_queue_deep(benchmark::State& state) {
  memory_changed(state, kDeep);
}

Duration percent_of_window(const Config& config, int percent) {
  return config.window * percent / 100;
}

void limits_changed(benchmark::State& state, ComputePolicy policy, int depth = 1) {
  const int n = clients_of(state);
  Crowd crowd(config_of(policy), n, gib(16), depth);
  for (int i = 0; i < n; ++i) crowd.tell(WorkRequested{crowd.another(n)});
  crowd.pass(percent_of_window(config_of(policy), 60));  // two thirds are over their limit
  crowd.tell(Tick{});
  int percent = 1;
  for (auto _ : state) {
    const ClientId client = crowd.another(n);
    percent = percent % 99 + 1;
    crowd.tell(LimitsChanged{TenantId{client.value}, {percent, {}, 0}});
  }
  state.counters["events"] = 1;
}
void metered_limits_changed(benchmark::State& state) {
  limits_changed(state, ComputePolicy::Metered);
}
void metered_limits_changed_deep(benchmark::State& state) {
  limits_changed(state, ComputePolicy::Metered, kDeep);
}
void wall_limits_changed(benchmark::State& state) {
  limits_changed(state, ComputePolicy::Wall);
}

// Requests of the three classes wait for a GPU. One lease is given back, the next waiter gets its
// own, and another request comes.
void lease_handed_on(benchmark::State& state) {
  const int n = clients_of(state);
  ArbiterConfig config;
  config.queue = 2 * n;
  Arbiter arbiter(config);
  arbiter.add_gpu(GpuId{0});
  const Time now{1h};
  std::uint64_t last = 0;
  std::deque<LeaseId> held;
  const auto keep = [&](const Result<Answers>& answers) {
    must(static_cast<bool>(answers), "a request was refused");
    for (const Answer& answer : *answers) {
      must(answer.outcome == Outcome::Acquired, "a request got no lease");
      held.push_back(answer.lease);
    }
  };
  const auto ask = [&] {
    const char* const classes[] = {"ASR", "NMT", "TTS"};
    ++last;
    keep(arbiter.ask({LeaseId{last}, GpuId{0}, classes[last % 3]}, now));
  };
  for (int i = 0; i < n + config.slots; ++i) ask();
  for (auto _ : state) {
    const LeaseId lease = held.front();
    held.pop_front();
    keep(arbiter.release(lease, now));
    ask();
  }
  must(arbiter.gpu(GpuId{0}, now)->waiting == n, "the queue is not as long as it should be");
  state.counters["events"] = 2;
}

// --- an hour ------------------------------------------------------------------------------------

sim::Scenario hour_of(int clients) {
  sim::Scenario s;
  s.lasts = 1h;
  s.gpus = {sim::GpuSpec{.memory = gib(80)}};
  s.config = config_of(ComputePolicy::Metered);
  for (int i = 0; i < clients; ++i) {
    sim::ClientSpec c;
    c.name = "t";
    c.limits = Crowd::limits_of(i);
    c.work.kernel = 2ms;
    s.clients.push_back(std::move(c));
  }
  return s;
}

void play(benchmark::State& state, const sim::Scenario& scenario) {
  std::size_t events = 0;
  for (auto _ : state) {
    const auto report = sim::run(scenario);
    must(static_cast<bool>(report), "the scenario was refused");
    events += report->events;
  }
  state.counters["told"] = benchmark::Counter(static_cast<double>(events));
}

void hour_of_turns(benchmark::State& state) {
  play(state, hour_of(1000));
}

// Together they hold four times what the GPU has.
void hour_of_rotation(benchmark::State& state) {
  sim::Scenario s = hour_of(1000);
  for (sim::ClientSpec& c : s.clients) c.memory = {{Duration{}, mib(4 * 80 * 1024 / 1000)}};
  play(state, s);
}

#define NVSHARE_EVENT(name) BENCHMARK(name)->Arg(100)->Arg(1000)->Arg(10000)
NVSHARE_EVENT(metered_hand_over);
NVSHARE_EVENT(metered_work_requested);
NVSHARE_EVENT(metered_hand_over_deep);
NVSHARE_EVENT(metered_work_requested_deep);
NVSHARE_EVENT(metered_limits_changed);
NVSHARE_EVENT(metered_limits_changed_deep);
NVSHARE_EVENT(memory_changed_long_queue);
NVSHARE_EVENT(memory_changed_long_queue_deep);
NVSHARE_EVENT(fair_hand_over);
NVSHARE_EVENT(coordinated_hand_over);
NVSHARE_EVENT(wall_stop_and_go);
NVSHARE_EVENT(weighted_stop_and_go);
NVSHARE_EVENT(wall_limits_changed);
NVSHARE_EVENT(lease_handed_on);
BENCHMARK(hour_of_turns)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(hour_of_rotation)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace nvshare::bench

int main(int argc, char** argv) {
  using namespace nvshare::bench;
  bool check = false;
  std::vector<char*> arguments;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0) {
      check = true;
    } else {
      arguments.push_back(argv[i]);
    }
  }
  // Repetitions in mixed order: what else the machine does meets all sizes alike.
  std::string repetitions = "--benchmark_repetitions=3";
  std::string mixed = "--benchmark_enable_random_interleaving=true";
  if (check) arguments.insert(arguments.begin() + 1, {repetitions.data(), mixed.data()});
  int count = static_cast<int>(arguments.size());
  benchmark::AddCustomContext("command", "tools/bench.sh BUILD_DIR --record");
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  Medians reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  if (!check) return 0;
  const auto results = reporter.results();
  const int missed =
      check_limits(
          results,
          {"metered_hand_over", "metered_work_requested", "metered_hand_over_deep",
           "metered_work_requested_deep", "metered_limits_changed", "metered_limits_changed_deep",
           "memory_changed_long_queue", "memory_changed_long_queue_deep", "fair_hand_over",
           "coordinated_hand_over", "wall_stop_and_go", "weighted_stop_and_go",
           "wall_limits_changed", "lease_handed_on"},
          {"hour_of_turns", "hour_of_rotation"}) +
      check_depth(results, {"metered_hand_over", "metered_work_requested", "metered_limits_changed",
                            "memory_changed_long_queue"});
  return missed == 0 ? 0 : 1;
}
