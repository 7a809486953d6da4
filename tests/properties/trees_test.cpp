// Random trees of tenants, under the metered policy: no tenant has more than its limit on any
// level, each part with work has its due of what its tenant has, and the GPU is not idle while a
// tenant with a right to it has work.

#include <fmt/format.h>

#include <map>

#include "dice.h"
#include "due.h"
#include "holds.h"
#include "sim/simulator.h"

namespace nvshare::properties {
namespace {

using namespace sim;

Tree tree_of(const Scenario& s) {
  Tree tree;
  const auto add = [&](const std::string& name, int limit, bool works, const auto& part_of) {
    tree[name].limit = limit;
    tree[name].works = works;
    tree[part_of.value_or("")].parts.push_back(name);
  };
  for (const TenantSpec& t : s.tenants) add(t.name, t.limits.core_percent, false, t.part_of);
  for (const ClientSpec& c : s.clients) add(c.name, c.limits.core_percent, true, c.part_of);
  return tree;
}

Scenario random_tree(Dice& dice, Duration lasts, bool all_work) {
  Scenario s;
  s.lasts = lasts;
  s.gpus = {GpuSpec{}};
  const auto limit = [&] { return dice.pick({100, 100, 50, 30, 20, 80, 10, 60}); };
  std::vector<std::string> names;
  const auto parent = [&]() -> std::optional<std::string> {
    const std::uint32_t at = dice.below(static_cast<std::uint32_t>(names.size()) + 1);
    if (at == names.size()) return std::nullopt;
    return names[at];
  };
  std::map<std::string, int> depth;
  const auto place = [&](auto& spec) {
    spec.part_of = parent();
    if (spec.part_of && depth[*spec.part_of] >= 4) spec.part_of.reset();
    depth[spec.name] = spec.part_of ? depth[*spec.part_of] + 1 : 1;
    spec.limits.core_percent = limit();
    names.push_back(spec.name);
  };
  for (int t = dice.between(1, 4); t > 0; --t) {
    TenantSpec tenant;
    tenant.name = fmt::format("tenant{}", t);
    place(tenant);
    s.tenants.push_back(tenant);
  }
  for (int c = dice.between(1, 6); c > 0; --c) {
    ClientSpec client;
    client.name = fmt::format("client{}", c);
    place(client);
    client.processes = dice.between(1, 2);
    client.work.kernel = dice.pick<Duration>({1ms, 0ms, 100us, 2ms});
    if (!all_work) {
      client.arrives = lasts * dice.between(0, 5) / 10;
      if (dice.one_in(3)) client.leaves = client.arrives + (lasts - client.arrives) / 2;
      if (dice.one_in(3)) {
        client.work.kind = WorkloadKind::Bursty;
        client.work.burst = dice.pick<Duration>({3ms, 20ms, 60ms});
        client.work.gap = dice.pick<Duration>({2ms, 40ms, 200ms});
      }
      for (int i = dice.between(0, 2); i > 0; --i) {
        const Duration at = client.changes.empty() ? client.arrives + lasts / 10
                                                   : client.changes.back().at + lasts / 10;
        if (!client.leaves || at < *client.leaves) client.changes.push_back({at, {limit(), {}, 0}});
      }
    }
    s.clients.push_back(std::move(client));
  }
  if (!all_work) {
    for (TenantSpec& tenant : s.tenants) {
      if (dice.one_in(2)) tenant.changes = {{lasts / 2, {limit(), {}, 0}}};
    }
  }
  return s;
}

std::string story(const Scenario& s, const Report& report) {
  std::string text;
  for (const TenantSpec& t : s.tenants) {
    text +=
        fmt::format("{} of {} limit {}\n", t.name, t.part_of.value_or("-"), t.limits.core_percent);
    for (const auto& c : t.changes)
      text += fmt::format("  {} at {}\n", c.limits.core_percent, to_text(c.at));
  }
  for (std::size_t i = 0; i < s.clients.size(); ++i) {
    const ClientSpec& c = s.clients[i];
    Duration used{};
    for (const ClientReport& one : report.clients) {
      if (one.tenant == static_cast<int>(i)) used += one.gpu_time;
    }
    text += fmt::format(
        "{} of {} limit {} x{} kernel {}: {:.2f} %\n", c.name, c.part_of.value_or("-"),
        c.limits.core_percent, c.processes, to_text(c.work.kernel),
        100.0 * static_cast<double>(used.count()) / static_cast<double>(report.lasted.count()));
  }
  return text;
}

std::optional<std::string> parent_of(const Scenario& s, const std::string& name) {
  for (const TenantSpec& t : s.tenants) {
    if (t.name == name) return t.part_of;
  }
  for (const ClientSpec& c : s.clients) {
    if (c.name == name) return c.part_of;
  }
  return {};
}

// GPU time of the tenant with all its parts.
Duration used_by(const Scenario& s, const Report& report, const std::string& name) {
  Duration used{};
  for (const ClientReport& one : report.clients) {
    std::optional<std::string> at = s.clients[static_cast<std::size_t>(one.tenant)].name;
    while (at && *at != name) at = parent_of(s, *at);
    if (at) used += one.gpu_time;
  }
  return used;
}

// What limits that change allow from the beginning to the end.
template <typename Spec>
double allowed(const Spec& spec, Duration lasts) {
  double sum = 0;
  Duration since{};
  int limit = spec.limits.core_percent;
  for (const LimitStep& step : spec.changes) {
    sum += limit * static_cast<double>((step.at - since).count()) / 100;
    since = step.at;
    limit = step.limits.core_percent;
  }
  return sum + limit * static_cast<double>((lasts - since).count()) / 100;
}

// Percent of the GPU that each client has had, and its due, in sums by the name that `group` gives.
struct Had {
  double has = 0;
  double due = 0;
};
template <typename Group>
std::map<std::string, Had> had_by(const Scenario& s, const Report& report, Group group) {
  std::map<std::string, Had> had;
  Due due = dues_of(tree_of(s));
  for (const ClientSpec& client : s.clients) had[group(client.name)].due += due[client.name];
  for (const ClientReport& one : report.clients) {
    const std::string& name = s.clients[static_cast<std::size_t>(one.tenant)].name;
    had[group(name)].has += 100.0 * static_cast<double>(one.gpu_time.count()) /
                            static_cast<double>(report.lasted.count());
  }
  return had;
}

void check_due(const Scenario& s, const Report& report, const std::map<std::string, Had>& had) {
  double has = 0;
  double due = 0;
  for (const auto& [name, one] : had) {
    has += one.has;
    due += one.due;
    if (std::abs(one.has - one.due) <= 2.0) continue;
    RC_FAIL(fmt::format("{} has {:.2f} % and its due is {:.2f} %\n{}", name, one.has, one.due,
                        story(s, report)));
  }
  if (has < due - 2.0) {
    RC_FAIL(
        fmt::format("the GPU is used for {:.2f} % of the time, and tenants have a right to "
                    "{:.2f} %\n{}",
                    has, due, story(s, report)));
  }
}

TEST(Trees, EachPartWithWorkHasItsDue) {
  holds(400, [] {
    const auto input = *bytes(120);
    Dice dice{input};
    const Scenario s = random_tree(dice, 12s, true);
    const auto report = sim::run(s);
    RC_ASSERT(static_cast<bool>(report));
    check_due(s, *report, had_by(s, *report, [](const std::string& name) { return name; }));
  });
}

// The outermost tenant with a limit around the client; the client itself where there is none.
std::string limited_around(const Scenario& s, const std::string& client) {
  const Tree tree = tree_of(s);
  std::string found = client;
  for (std::optional<std::string> at = client; at; at = parent_of(s, *at)) {
    if (tree.at(*at).limit < 100) found = *at;
  }
  return found;
}

// Inside a tenant with a limit priorities order its parts, and nobody else.
TEST(Trees, PrioritiesInsideATenantWithALimitChangeNothingForOthers) {
  holds(200, [] {
    const auto input = *bytes(140);
    Dice dice{input};
    Scenario s = random_tree(dice, 12s, true);
    const auto group = [&](const std::string& name) { return limited_around(s, name); };
    for (ClientSpec& client : s.clients) {
      if (group(client.name) != client.name) client.limits.priority = dice.between(-10, 10);
    }
    const auto report = sim::run(s);
    RC_ASSERT(static_cast<bool>(report));
    check_due(s, *report, had_by(s, *report, group));
  });
}

// Clients come, go and pause, and limits change, on every level.
TEST(Trees, NoTenantHasMoreThanItsLimitOnAnyLevel) {
  holds(600, [] {
    const auto input = *bytes(160);
    Dice dice{input};
    const Scenario s = random_tree(dice, 10s, false);
    const auto report = sim::run(s);
    RC_ASSERT(static_cast<bool>(report));
    // docs/policies.md: the longest kernels and turns, and what can be saved up; again for each
    // change of a limit, at which what was saved goes over.
    const auto check = [&](const auto& spec) {
      const double most = allowed(spec, s.lasts);
      const double slack = 0.35e9 * static_cast<double>(1 + spec.changes.size());
      const auto used = static_cast<double>(used_by(s, *report, spec.name).count());
      if (used <= most + slack) return;
      RC_FAIL(fmt::format("{} has {:.3f} s and may have {:.3f} s\n{}", spec.name, used / 1e9,
                          most / 1e9, story(s, *report)));
    };
    for (const TenantSpec& t : s.tenants) check(t);
    for (const ClientSpec& c : s.clients) check(c);
  });
}

}  // namespace
}  // namespace nvshare::properties
