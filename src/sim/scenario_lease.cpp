#include "sim/scenario_lease.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/suggest.h"
#include "config/class_tables.h"

namespace nvshare::sim {
namespace {

using config::Kind;
using config::TableReader;

constexpr const char* kUsedByLeases = "is only used by clients with a lease";

bool any_lease(TableReader& root) {
  const config::Value* clients = root.find("client");
  if (clients == nullptr || clients->kind != Kind::Array) return false;
  return std::ranges::any_of(clients->items, [](const config::Value& client) {
    return std::ranges::find(client.entries, "lease", &config::Entry::key) != client.entries.end();
  });
}

void read_class(TableReader& table, const core::ArbiterConfig& arbiter, LeaseSpec& lease) {
  const auto name = table.text("class");
  if (!name) {
    if (!table.has("class")) table.missing("class", "whose lease it is");
    return;
  }
  lease.asks.task_class = *name;
  std::vector<std::string_view> names;
  for (const core::TaskClass& one : arbiter.classes) names.push_back(one.name);
  if (std::ranges::find(names, *name) != names.end()) return;
  table.problem("class", fmt::format("'{}' is not one of {}", *name, join(names)));
}

}  // namespace

void read_arbiter(TableReader& root, config::Problems& problems, Scenario& scenario) {
  auto table = root.table("arbiter");
  config::read_arbiter(root, table ? &*table : nullptr, problems, scenario.arbiter,
                       scenario.usage_sample_interval);
  if (table) table->finish();
  if (any_lease(root)) return;
  for (const char* key : {"arbiter", "classes"}) {
    if (root.has(key)) root.problem(key, kUsedByLeases);
  }
}

std::optional<LeaseSpec> read_lease(TableReader& client, const ClientSpec& spec,
                                    const core::ArbiterConfig& arbiter) {
  auto table = client.table("lease");
  if (!table) return std::nullopt;
  LeaseSpec lease;
  read_class(*table, arbiter, lease);
  lease.asks.max_wait = table->duration("max_wait", Duration{0}, core::kLongestWait);
  lease.asks.hold_max = table->duration("hold_max", 1ms, core::kLongestHold);
  lease.asks.refusal = table->choice("busy", config::refusals());
  lease.asks.audio = table->duration("audio", Duration{0}, core::kLongestHold);
  lease.asks.gpu_hold = table->duration("hold", Duration{0}, core::kLongestHold);
  const auto refused = table->choice<Refused>(
      "refused",
      {{"skip", Refused::Skip}, {"retry", Refused::Retry}, {"fallback", Refused::FallBack}});
  lease.refused = refused.value_or(lease.refused);
  table->finish();
  if (spec.work.kind != WorkloadKind::Bursty) {
    client.problem("lease", "is only used by the workload 'bursty'");
  }
  return lease;
}

}  // namespace nvshare::sim
