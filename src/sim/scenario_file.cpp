#include "sim/scenario_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "config/config_keys.h"
#include "config/reader.h"
#include "core/residency.h"
#include "sim/scenario_client.h"

namespace nvshare::sim {
namespace {

using config::Problems;
using config::TableReader;

constexpr Duration kShortestPlay = 1us;

void read_gpus(TableReader& root, Scenario& scenario) {
  int all = 0;
  for (TableReader& table : root.tables("gpu")) {
    GpuSpec gpu;
    gpu.memory = table.bytes("memory", mib(1), kLargestMemory).value_or(gpu.memory);
    gpu.count = static_cast<int>(table.integer("count", 1, kMostGpus).value_or(1));
    all += gpu.count;
    if (all > kMostGpus) {
      table.problem("count", fmt::format("more than {} GPUs in all", kMostGpus));
      all = 0;
    }
    table.finish();
    scenario.gpus.push_back(gpu);
  }
  if (scenario.gpus.empty()) scenario.gpus.push_back({});
}

// Each GPU's memory, counting those alike one by one.
std::vector<Bytes> memories(const Scenario& scenario) {
  std::vector<Bytes> all;
  for (const GpuSpec& gpu : scenario.gpus) {
    for (int i = 0; i < gpu.count && all.size() < kMostGpus; ++i) all.push_back(gpu.memory);
  }
  return all;
}

// What a client that is alone on the GPU can have, by the core's own rule.
Bytes usable(const core::Config& config, Bytes memory) {
  core::Residency gpu(config, memory);
  gpu.join();
  return gpu.safe_limit();
}

void check_memory(TableReader& table, const Scenario& scenario, const ClientSpec& client,
                  const std::vector<Bytes>& gpus) {
  const Bytes largest =
      client.gpu ? gpus[static_cast<std::size_t>(*client.gpu)] : *std::ranges::max_element(gpus);
  const Bytes limit = usable(scenario.config, largest);
  for (const MemoryStep& step : client.memory) {
    if (step.allocated <= limit) continue;
    table.problem("memory", fmt::format("{} fits on no GPU it may use: the largest has {}, of "
                                        "which {} can be used",
                                        to_text(step.allocated), to_text(largest), to_text(limit)));
    return;
  }
}

void read_clients(TableReader& root, Scenario& scenario, bool config_is_good) {
  const std::vector<Bytes> gpus = memories(scenario);
  std::map<std::string, int> names;
  for (TableReader& table : root.tables("client")) {
    ClientSpec client = read_client(table);
    if (!client.name.empty() && ++names[client.name] == 2) {
      table.problem("name", fmt::format("there is another client '{}'", client.name));
    }
    if (const auto gpu = table.integer("gpu", 0, static_cast<int>(gpus.size()) - 1)) {
      client.gpu = static_cast<int>(*gpu);
    }
    if (client.arrives >= scenario.lasts) {
      table.problem("arrives", fmt::format("{} is not before the end of the scenario ({})",
                                           to_text(client.arrives), to_text(scenario.lasts)));
    }
    if (config_is_good) check_memory(table, scenario, client, gpus);
    table.finish();
    scenario.clients.push_back(std::move(client));
  }
  const config::Value* listed = root.find("client");
  if (!listed || (listed->kind == config::Kind::Array && listed->items.empty())) {
    root.missing("client", "a scenario needs at least one [[client]]");
  }
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
  if (auto table = root.table("config")) {
    config::read_config(*table, scenario.config);
    table->finish();
  }
  read_gpus(root, scenario);
  read_clients(root, scenario, core::problems(scenario.config).empty());
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
