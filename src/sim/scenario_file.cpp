#include "sim/scenario_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "config/config_keys.h"
#include "config/reader.h"
#include "sim/scenario_client.h"
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

// Tenants that are parts of one another have their place in a list, so that none is its own part.
void check_part_of(TableReader& table, const std::optional<std::string>& part_of,
                   const std::map<std::string, int>& before) {
  if (part_of && !before.contains(*part_of)) {
    table.problem("part_of", fmt::format("there is no tenant '{}' before it", *part_of));
  }
}

std::map<std::string, int> read_tenants(TableReader& root, Scenario& scenario) {
  std::map<std::string, int> names;
  for (TableReader& table : root.tables("tenant")) {
    TenantSpec tenant = read_tenant(table);
    check_part_of(table, tenant.part_of, names);
    if (!tenant.name.empty() && ++names[tenant.name] == 2) {
      table.problem("name", fmt::format("there is another tenant '{}'", tenant.name));
    }
    table.finish();
    scenario.tenants.push_back(std::move(tenant));
  }
  return names;
}

std::vector<TableReader> read_clients(TableReader& root, Scenario& scenario) {
  const int gpus = number_of_gpus(scenario);
  std::map<std::string, int> names = read_tenants(root, scenario);
  std::vector<TableReader> tables = root.tables("client");
  for (TableReader& table : tables) {
    ClientSpec client = read_client(table);
    check_part_of(table, client.part_of, names);
    if (!client.name.empty() && ++names[client.name] == 2) {
      table.problem("name", fmt::format("there is another client '{}'", client.name));
    }
    if (const auto gpu = table.integer("gpu", 0, gpus - 1)) {
      client.gpu = static_cast<int>(*gpu);
    }
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
