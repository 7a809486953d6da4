// What holds for clients that behave, in random scenarios played in virtual time. How to replay a
// failure: holds.h.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "holds.h"
#include "random_scenarios.h"
#include "sim/simulator.h"
#include "watch.h"

namespace nvshare::properties {
namespace {

using namespace sim;
using core::ClientId;
using core::ComputePolicy;
using core::TenantId;

constexpr int kBytes = 120;
constexpr Duration kPlay = 4s;

double seconds(Duration d) {
  return static_cast<double>(d.count()) / 1e9;
}

Duration longest_kernel(const Scenario& s) {
  Duration longest{};
  for (const ClientSpec& c : s.clients) longest = std::max(longest, c.work.kernel);
  return longest;
}

// What each tenant is entitled to while all of them want the GPU, as a part of it: its limit,
// shrunk in proportion when the limits do not fit; those without a limit share what is left, and
// not less than best_effort_percent.
std::vector<double> entitlements(const Scenario& s) {
  double limited = 0;
  int unlimited = 0;
  for (const ClientSpec& c : s.clients) {
    if (c.limits.core_percent < 100) {
      limited += c.limits.core_percent;
    } else {
      ++unlimited;
    }
  }
  const double room = unlimited > 0 ? 100.0 - s.config.best_effort_percent : 100.0;
  const double scale = std::min(1.0, room / std::max(1.0, limited));
  const double rest = std::max<double>(100.0 - limited, s.config.best_effort_percent);
  std::vector<double> parts;
  for (const ClientSpec& c : s.clients) {
    parts.push_back(c.limits.core_percent < 100 ? c.limits.core_percent * scale / 100
                                                : rest / unlimited / 100);
  }
  return parts;
}

Report must_play(const Scenario& scenario, Observer* observer) {
  auto report = run(scenario, false, observer);
  if (!report) RC_FAIL(report.error().message + "\n" + to_lines(scenario));
  return *report;
}

class Rules : public Observer {
 public:
  explicit Rules(const Scenario& s) : watch_(s.config, Time{}) {}
  void after_step(const core::Event& event, Time now, const core::Decisions& decisions,
                  const core::Core& core) override {
    watch_.after(event, now, decisions, core);
  }
  const Watch& watch() const { return watch_; }

 private:
  Watch watch_;
};

// The rules of events_test.cpp, in anything the simulator can play.
TEST(Scenarios, EveryScenarioKeepsTheRules) {
  holds(300, [] {
    const auto input = *bytes(kBytes);
    Dice dice(input);
    const Scenario scenario = random_anything(dice, 2s);
    Rules rules(scenario);
    const auto report = run(scenario, false, &rules);
    if (!report && report.error().message.find("does not get its memory") == std::string::npos) {
      RC_FAIL(report.error().message + "\n" + to_lines(scenario));
    }
    const auto& broken = rules.watch().broken();
    if (!broken.empty()) RC_FAIL(to_lines(broken) + to_lines(scenario));
  });
}

// --- metered limits ---------------------------------------------------------------------------

// GPU time of each tenant since its present limit holds. Clients take turns, so the one that holds
// the grant has used the time since.
class SinceTheLimit : public Observer {
 public:
  explicit SinceTheLimit(const Scenario& s) : scenario_(s) {}

  void after_step(const core::Event& event, Time now, const core::Decisions&,
                  const core::Core& core) override {
    const core::Snapshot snapshot = core.snapshot();
    std::map<TenantId, Duration> used;
    for (const core::ShareView& share : snapshot.shares) used[share.tenant] += share.billed;
    if (const auto* change = std::get_if<core::LimitsChanged>(&event)) {
      start_[change->tenant] = {now, used[change->tenant] + in_flight(change->tenant, now)};
    }
    follow_grants(event, snapshot, now);
    for (const core::TenantView& tenant : snapshot.tenants) {
      if (used.contains(tenant.id)) check(tenant, used[tenant.id], now);
    }
  }
  std::string broken;

 private:
  struct Start {
    Time at{};
    Duration used{};
  };

  Duration in_flight(TenantId tenant, Time now) const {
    Duration sum{};
    for (const auto& [client, held] : held_) {
      if (held.first == tenant) sum += now - held.second;
    }
    return sum;
  }

  void follow_grants(const core::Event& event, const core::Snapshot& snapshot, Time now) {
    if (const auto* released = std::get_if<core::Released>(&event)) held_.erase(released->client);
    std::map<ClientId, std::pair<TenantId, Time>> held;
    for (const core::ClientView& c : snapshot.clients) {
      if (c.state == core::ClientState::Idle || c.state == core::ClientState::Waiting) continue;
      const auto it = held_.find(c.id);
      held[c.id] = it == held_.end() ? std::pair{c.tenant, now} : it->second;
    }
    held_ = std::move(held);
  }

  // The promise: limit x time, and at most one kernel, one turn and the burst it may have saved.
  void check(const core::TenantView& tenant, Duration used, Time now) {
    const int limit = tenant.limits.core_percent;
    if (limit == core::kNoCoreLimit || !broken.empty()) return;
    const core::Config& config = scenario_.config;
    const Start start = start_[tenant.id];
    const Duration allowed = (now - start.at) * limit / 100 + longest_kernel(scenario_) +
                             config.turn + config.burst_window * limit / 100;
    if (used - start.used <= allowed) return;
    broken = fmt::format("{} with {} % since {} has used {} at {}", tenant.name, limit,
                         seconds(start.at.time_since_epoch()), to_text(used - start.used),
                         seconds(now.time_since_epoch()));
  }

  const Scenario& scenario_;
  std::map<TenantId, Start> start_;
  std::map<ClientId, std::pair<TenantId, Time>> held_;
};

// From the moment a limit is set, at every later moment until the next is set: GPU time used since
// is at most limit x time + longest kernel + turn + burst_window x limit.
TEST(Scenarios, MeteredLimitsHoldFromTheMomentTheyAreSet) {
  holds(500, [] {
    const auto input = *bytes(kBytes);
    Dice dice(input);
    Scenario scenario = random_mix(dice, ComputePolicy::Metered, kPlay, Mix{});
    scenario.config.share_mode = core::ShareMode::Turns;
    SinceTheLimit watch(scenario);
    must_play(scenario, &watch);
    if (!watch.broken.empty()) RC_FAIL(watch.broken + "\n" + to_lines(scenario));
  });
}

// The same for the whole time, however the clients share the GPU. Processes that run together each
// bring their own kernel and burst.
TEST(Scenarios, MeteredLimitsHoldInEveryShareMode) {
  holds(300, [] {
    const auto input = *bytes(kBytes);
    Dice dice(input);
    Scenario s = random_mix(dice, ComputePolicy::Metered, kPlay, Mix{.limit_changes = false});
    s.config.share_mode = dice.pick({core::ShareMode::Auto, core::ShareMode::Concurrent});
    const Report report = must_play(s, nullptr);
    for (std::size_t t = 0; t < s.clients.size(); ++t) {
      const ClientSpec& spec = s.clients[t];
      if (spec.limits.core_percent == 100) continue;
      Duration used{};
      for (const ClientReport& c : report.clients) {
        if (c.tenant == static_cast<int>(t)) used += c.gpu_time;
      }
      const Duration there = spec.leaves.value_or(report.lasted) - spec.arrives;
      const double limit = spec.limits.core_percent / 100.0;
      const double slack = seconds(spec.work.kernel) + seconds(s.config.turn) +
                           seconds(s.config.burst_window) * limit;
      if (seconds(used) > limit * seconds(there) + spec.processes * slack) {
        RC_FAIL(fmt::format("{} used {}\n", spec.name, to_text(used)) + to_lines(s));
      }
    }
  });
}

// Tenants that always have work get what they are entitled to, less what two turns and kernels of
// everybody take.
TEST(Scenarios, MeteredEntitlementsAreReached) {
  holds(300, [] {
    const auto input = *bytes(kBytes);
    Dice dice(input);
    const Mix mix{.bursts = false, .come_and_go = false, .limit_changes = false};
    const Scenario s = random_mix(dice, ComputePolicy::Metered, kPlay, mix);
    const Report report = must_play(s, nullptr);
    const std::vector<double> wanted = entitlements(s);
    const double slack = 2.0 * static_cast<double>(s.clients.size()) *
                         (seconds(s.config.turn) + seconds(longest_kernel(s)));
    for (std::size_t t = 0; t < s.clients.size(); ++t) {
      double used = 0;
      for (const ClientReport& c : report.clients) {
        if (c.tenant == static_cast<int>(t)) used += seconds(c.gpu_time);
      }
      if (used < wanted[t] * seconds(kPlay) - slack) {
        RC_FAIL(fmt::format("{} has {:.3f}s of {:.3f}s\n", s.clients[t].name, used,
                            wanted[t] * seconds(kPlay)) +
                to_lines(s));
      }
    }
  });
}

// --- waiting ----------------------------------------------------------------------------------

// Nobody waits longer for the GPU than this. With n tenants, each of p processes at most, turns of
// T and kernels up to K, w the smallest part of the GPU that anyone of them is entitled to:
//   p x ( (4T + 3K) / w  +  n (T + K)  +  burst_window )
// The first term: what its last turn took beyond its due has to be earned again by the others and,
// under a limit, refilled. The second: everyone else once. The third: what those who were idle for
// a moment may catch up.
TEST(Scenarios, MeteredWaitsAreBounded) {
  holds(500, [] {
    const auto input = *bytes(kBytes);
    Dice dice(input);
    const Scenario s = random_mix(dice, ComputePolicy::Metered, kPlay, Mix{.limit_changes = false});
    const Report report = must_play(s, nullptr);
    const auto parts = entitlements(s);
    const double smallest = *std::min_element(parts.begin(), parts.end());
    const double turn = seconds(s.config.turn);
    const double kernel = seconds(longest_kernel(s));
    const double n = static_cast<double>(s.clients.size());
    const double bound = 2 * ((4 * turn + 3 * kernel) / smallest + n * (turn + kernel) +
                              seconds(s.config.burst_window));
    for (const ClientReport& c : report.clients) {
      if (seconds(c.longest_wait) > bound) {
        RC_FAIL(fmt::format("{} waits {} of {:.3f}s\n", c.name, to_text(c.longest_wait), bound) +
                to_lines(s));
      }
    }
  });
}

// How long each client waits for its memory, from the moment it stands in the queue.
class MemoryWaits : public Observer {
 public:
  explicit MemoryWaits(const Scenario& s) : scenario_(s) {}

  void after_step(const core::Event&, Time now, const core::Decisions& decisions,
                  const core::Core& core) override {
    for (const core::Decision& d : decisions) {
      if (const auto* waits = std::get_if<core::WaitForMemory>(&d.action)) {
        const auto view = core.view(waits->client);
        if (view->state != core::ClientState::Waiting) continue;
        since_.try_emplace(waits->client, Wait{now, static_cast<int>(since_.size())});
      } else if (const auto* there = std::get_if<core::MemoryAvailable>(&d.action)) {
        since_.erase(there->client);
      }
    }
    for (const auto& [id, wait] : since_) {
      const double waited = seconds(now - wait.since);
      if (waited > bound(wait.before) && broken.empty()) {
        broken = fmt::format("client {} waits {:.3f}s behind {} of {:.3f}s", id.value, waited,
                             wait.before, bound(wait.before));
      }
    }
  }
  std::string broken;

 private:
  struct Wait {
    Time since{};
    int before = 0;
  };

  // Each one before it, and it itself: a quantum, the time in which the others stop (a turn and a
  // kernel of each that runs), and the whole GPU moved out and in.
  double bound(int before) const {
    const core::Config& config = scenario_.config;
    const double all = static_cast<double>(scenario_.gpus[0].memory.count) /
                       static_cast<double>(scenario_.link_per_second.count);
    const double stop = seconds(config.turn) + static_cast<double>(scenario_.clients.size()) *
                                                   seconds(longest_kernel(scenario_));
    return (before + 1) * (seconds(config.quantum_max) + stop + 2 * all);
  }

  const Scenario& scenario_;
  std::map<ClientId, Wait> since_;
};

// With clients that answer: whoever stands in the memory queue behind k others has its memory after
// at most (k + 1) x (quantum_max + the time others take to stop + the whole GPU out and in).
TEST(Scenarios, MemoryWaitsAreBounded) {
  holds(400, [] {
    const auto input = *bytes(kBytes);
    Dice dice(input);
    const Scenario scenario = random_crowd(dice, 15s);
    MemoryWaits watch(scenario);
    must_play(scenario, &watch);
    if (!watch.broken.empty()) RC_FAIL(watch.broken + "\n" + to_lines(scenario));
  });
}

// --- drops ------------------------------------------------------------------------------------

// Keeps each tenant's account of the present window from what is billed, as the policy promises:
// quota = limit x window, an overrun is carried over.
class OnlyWhoIsOver : public Observer {
 public:
  explicit OnlyWhoIsOver(const Scenario& s) : scenario_(s) {}

  void after_step(const core::Event&, Time now, const core::Decisions& decisions,
                  const core::Core& core) override {
    advance(now);
    for (const core::Decision& d : decisions) {
      const auto* drop = std::get_if<core::Drop>(&d.action);
      if (drop != nullptr) check(core.view(drop->client)->tenant, now);
    }
    std::map<TenantId, int> running;
    n_ = 0;
    for (const core::ClientView& c : core.snapshot().clients) {
      if (c.state == core::ClientState::Idle || c.state == core::ClientState::Waiting) continue;
      ++running[c.tenant];
      ++n_;
    }
    running_ = std::move(running);
  }
  std::string broken;
  int drops = 0;

 private:
  double quota(TenantId tenant) const {
    return seconds(scenario_.config.window) *
           scenario_.clients[tenant.value - 1].limits.core_percent / 100;
  }
  void advance(Time now) {
    while (now >= window_end_) {
      bill(window_end_);
      for (auto& [tenant, used] : used_) {
        used = std::max(0.0, used - quota(tenant));
      }
      window_end_ += scenario_.config.window;
    }
    bill(now);
  }
  void bill(Time now) {
    const double passed = seconds(now - at_);
    at_ = now;
    const bool divided = scenario_.config.policy == ComputePolicy::Weighted;
    for (const auto& [tenant, count] : running_) {
      used_[tenant] += divided ? passed * count / n_ : passed;
    }
  }
  void check(TenantId tenant, Time now) {
    ++drops;
    const bool at_the_end = now == window_end_ - scenario_.config.window;
    if (at_the_end || used_[tenant] >= quota(tenant) - 1e-6 || !broken.empty()) return;
    broken = fmt::format("t{} is dropped at {:.6f} with {:.6f} of {:.6f}", tenant.value - 1,
                         seconds(now.time_since_epoch()), used_[tenant], quota(tenant));
  }

  const Scenario& scenario_;
  Time at_{};
  Time window_end_ = Time{} + scenario_.config.window;
  std::map<TenantId, double> used_;
  std::map<TenantId, int> running_;
  int n_ = 0;
};

// Under the policies in which all run together, a tenant is told to drop only when its own bill has
// reached its own quota; nobody else is disturbed.
TEST(Scenarios, OnlyTheTenantOverItsQuotaIsDropped) {
  int drops = 0;
  holds(400, [&drops] {
    const auto input = *bytes(kBytes);
    Dice dice(input);
    const auto policy = dice.pick({ComputePolicy::Wall, ComputePolicy::Weighted});
    Scenario s = random_mix(dice, policy, 6s, Mix{.limit_changes = false});
    s.config.window = dice.pick<Duration>({1s, 300ms});
    OnlyWhoIsOver watch(s);
    must_play(s, &watch);
    drops += watch.drops;
    if (!watch.broken.empty()) RC_FAIL(watch.broken + "\n" + to_lines(s));
  });
  EXPECT_GT(drops, 100);
}

}  // namespace
}  // namespace nvshare::properties
