#include "sim/scenario_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "config/config_keys.h"
#include "config/reader.h"
#include "sim/scenario_client.h"
#include "sim/scenario_lease.h"
#include "sim/scenario_memory.h"

namespace nvshare::sim {
namespace {

using config::Problems;
using config::TableReader;

constexpr Duration kShortestPlay = 1us;

// Answers whether they are known: what fits can then be judged.
bool read_gpus(TableReader& root, Scenario& scenario) {
  const config::Value* listed = root.find("gpu");
  bool known = !listed || listed->kind == config::Kind::Array;
  int all = 0;
  for (TableReader& table : root.tables("gpu")) {
    GpuSpec gpu;
    const auto memory = table.bytes("memory", mib(1), kLargestMemory);
    const auto count = table.integer("count", 1, kMostGpus);
    known = known && table.has("memory") == memory.has_value();
    known = known && table.has("count") == count.has_value();
    gpu.memory = memory.value_or(gpu.memory);
    gpu.count = static_cast<int>(count.value_or(1));
    if (all <= kMostGpus && all + gpu.count > kMostGpus) {
      table.problem("count", fmt::format("more than {} GPUs in all", kMostGpus));
      known = false;
    }
    all = std::min(all + gpu.count, kMostGpus + 1);
    table.finish();
    scenario.gpus.push_back(gpu);
  }
  if (scenario.gpus.empty()) scenario.gpus.push_back({});
  return known;
}

int number_of_gpus(const Scenario& scenario) {
  int all = 0;
  for (const GpuSpec& gpu : scenario.gpus) all += gpu.count;
  return std::min(all, kMostGpus);
}

// The tenants so far. A parent has its place in the list before its parts, so that no tenant is a
// part of itself.
class Tree {
 public:
  // A tenant or a client (`kind`) that has been read.
  template <typename Spec>
  void add(TableReader& table, const Spec& spec, std::string_view kind) {
    const Level* parent = parent_of(table, spec.part_of);
    check_limits(table, spec.limits, parent);
    const int depth = parent == nullptr ? 1 : parent->depth + 1;
    if (depth == core::kDeepestTenant + 1) {
      table.problem("part_of", fmt::format("tenants are in one another {} deep at most",
                                           core::kDeepestTenant));
    }
    if (spec.name.empty()) return;
    Level& level =
        levels_.try_emplace(spec.name, Level{spec.name, spec.limits, parent, depth}).first->second;
    if (++level.times == 2) {
      table.problem("name", fmt::format("there is another {} '{}'", kind, spec.name));
    }
  }

 private:
  struct Level {
    std::string name;
    core::Limits limits;
    const Level* parent = nullptr;
    int depth = 1;
    int times = 0;
  };

  const Level* parent_of(TableReader& table, const std::optional<std::string>& part_of) const {
    if (!part_of) return nullptr;
    const auto at = levels_.find(*part_of);
    if (at != levels_.end()) return &at->second;
    table.problem("part_of", fmt::format("there is no tenant '{}' before it", *part_of));
    return nullptr;
  }
  // Each limit against those of all levels above. One that is not named asks for nothing.
  static void check_limits(TableReader& table, const core::Limits& limits, const Level* parent) {
    const auto check = [&](const char* key, auto limit, auto most_of, auto text) {
      for (const Level* level = parent; level != nullptr && table.has(key); level = level->parent) {
        const auto most = most_of(level->limits);
        if (limit <= most) continue;
        return table.problem(key, fmt::format("{} is above the limit of '{}', which is {}",
                                              text(limit), level->name, text(most)));
      }
    };
    const auto cores_of = [](const core::Limits& of) { return of.core_percent; };
    const auto priority_of = [](const core::Limits& of) { return of.priority; };
    const auto memory_of = [](const core::Limits& of) {
      return of.memory.value_or(kLargestMemory);
    };
    const auto number = [](int value) { return std::to_string(value); };
    const auto size = [](Bytes value) { return to_text(value); };
    if (limits.core_percent != core::kNoCoreLimit) {
      check("cores", limits.core_percent, cores_of, number);
    }
    check("priority", limits.priority, priority_of, number);
    check("memory_limit", limits.memory.value_or(Bytes{}), memory_of, size);
  }

  std::map<std::string, Level> levels_;
};

void read_tenants(TableReader& root, Scenario& scenario, Tree& tree) {
  for (TableReader& table : root.tables("tenant")) {
    TenantSpec tenant = read_tenant(table);
    tree.add(table, tenant, "tenant");
    table.finish();
    scenario.tenants.push_back(std::move(tenant));
  }
}

std::vector<TableReader> read_clients(TableReader& root, Scenario& scenario) {
  const int gpus = number_of_gpus(scenario);
  Tree tree;
  read_tenants(root, scenario, tree);
  std::vector<TableReader> tables = root.tables("client");
  for (TableReader& table : tables) {
    ClientSpec client = read_client(table);
    tree.add(table, client, "client");
    if (const auto gpu = table.integer("gpu", 0, gpus - 1)) {
      client.gpu = static_cast<int>(*gpu);
    }
    client.lease = read_lease(table, client, scenario.arbiter);
    if (client.arrives >= scenario.lasts) {
      table.problem("arrives", fmt::format("{} is not before the end of the scenario ({})",
                                           to_text(client.arrives), to_text(scenario.lasts)));
    }
    table.finish();
    scenario.clients.push_back(std::move(client));
  }
  const config::Value* listed = root.find("client");
  if (!listed || (listed->kind == config::Kind::Array && listed->items.empty())) {
    root.missing("client", "a scenario needs at least one [[client]]");
  }
  return tables;
}

// The file's name, with what could upset a terminal or a picture taken out of it.
std::string name_from(const std::string& source) {
  std::string name = std::filesystem::path(source).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return name;
}

Scenario read_scenario(const config::Value& document, const std::string& source,
                       Problems& problems) {
  Scenario scenario;
  TableReader root(document, "", problems);
  scenario.name = root.text("name").value_or(name_from(source));
  scenario.about = root.text("about").value_or("");
  scenario.lasts = root.duration("lasts", kShortestPlay, kLongestTime).value_or(scenario.lasts);
  if (auto table = root.table("lasts_under")) {
    for (core::ComputePolicy policy : core::kComputePolicies) {
      const auto lasts = table->duration(core::name_of(policy), kShortestPlay, kLongestTime);
      if (lasts) scenario.lasts_under[policy] = *lasts;
    }
    table->finish();
  }
  scenario.link_per_second =
      root.bytes("link_per_second", mib(1), kLargestMemory).value_or(scenario.link_per_second);
  scenario.hand_over =
      root.duration("hand_over", Duration::zero(), 1s).value_or(scenario.hand_over);
  if (auto table = root.table("config")) {
    config::read_config(*table, scenario.config);
    table->finish();
  }
  if (auto table = root.table("host")) {
    scenario.host_memory = table->bytes("memory", Bytes{}, kLargestMemory);
    table->finish();
  }
  read_arbiter(root, problems, scenario);
  const bool gpus_are_known = read_gpus(root, scenario);
  std::vector<TableReader> clients = read_clients(root, scenario);
  if (gpus_are_known) check_memory(scenario, clients);
  root.finish();
  return scenario;
}

}  // namespace

ParsedScenario parse_scenario(std::string_view toml, const std::string& source) {
  const auto document = config::parse_toml(toml, source);
  if (!document) return {{}, {document.error().message}};
  Problems problems(source);
  Scenario scenario = read_scenario(*document, source, problems);
  return {std::move(scenario), problems.lines()};
}

const BuiltIn* find_built_in(std::string_view name) {
  for (const BuiltIn& one : built_in_scenarios()) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

}  // namespace nvshare::sim
