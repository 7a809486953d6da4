#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <ostream>

#include "base/suggest.h"
#include "cli/commands/commands.h"
#include "sim/render.h"
#include "sim/scenario_file.h"
#include "sim/simulator.h"

namespace nvshare::cli {
namespace {

using core::ComputePolicy;
using sim::Report;
using sim::Scenario;

constexpr std::size_t kLargestFile = 16 << 20;

using Render = std::string (*)(const Scenario&, const std::vector<Report>&);

// What the command line asks for, once nothing is wrong with it.
struct Wanted {
  Scenario scenario;
  std::vector<ComputePolicy> policies;
  Render render = sim::to_table;
  bool spans = true;
};

int list(Streams streams) {
  std::size_t width = 0;
  for (const auto& one : sim::built_in_scenarios()) width = std::max(width, one.name.size());
  for (const auto& one : sim::built_in_scenarios()) {
    const auto parsed = sim::parse_scenario(one.toml, std::string(one.name));
    streams.out << fmt::format("{:<{}}  {}\n", one.name, width, parsed.scenario.about);
  }
  return kGood;
}

std::vector<std::string_view> built_in_names() {
  std::vector<std::string_view> names;
  for (const auto& one : sim::built_in_scenarios()) names.push_back(one.name);
  return names;
}

int show(const std::string& name, Streams streams) {
  const sim::BuiltIn* found = sim::find_built_in(name);
  if (!found) {
    streams.err << fmt::format("nvshare sim: no built-in scenario '{}'{} (--list shows them)\n",
                               name, did_you_mean(name, built_in_names()));
    return kBadInput;
  }
  streams.out << found->toml;
  return kGood;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kLargestFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) return Error{path + ": cannot be read"};
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kLargestFile) return Error{path + ": is larger than 16 MiB"};
  return text;
}

void read_scenario(const std::string& name, Wanted& wanted, std::vector<std::string>& errors) {
  sim::ParsedScenario parsed;
  if (const sim::BuiltIn* found = sim::find_built_in(name)) {
    parsed = sim::parse_scenario(found->toml, name);
  } else if (std::ifstream(name).good()) {
    const auto text = read_file(name);
    if (!text) {
      errors.push_back(text.error().message);
      return;
    }
    parsed = sim::parse_scenario(*text, name);
  } else {
    errors.push_back(
        fmt::format("nvshare sim: neither a built-in scenario nor a file that can be read: '{}'{} "
                    "(nvshare sim --list shows the built-in ones)",
                    name, did_you_mean(name, built_in_names())));
    return;
  }
  errors.insert(errors.end(), parsed.errors.begin(), parsed.errors.end());
  wanted.scenario = std::move(parsed.scenario);
}

// "all", or names with commas between.
void read_policies(const std::string& text, Wanted& wanted, std::vector<std::string>& errors) {
  if (text == "all") {
    wanted.policies.assign(core::kComputePolicies.begin(), core::kComputePolicies.end());
    return;
  }
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, end - at);
    at = end + 1;
    const auto policy = core::policy_by_name(name);
    if (!policy) {
      std::vector<std::string_view> names;
      for (ComputePolicy one : core::kComputePolicies) names.push_back(core::name_of(one));
      errors.push_back(
          fmt::format("nvshare sim: --policy: '{}' is not one of all, {}", name, join(names)));
    } else if (std::find(wanted.policies.begin(), wanted.policies.end(), *policy) ==
               wanted.policies.end()) {
      wanted.policies.push_back(*policy);
    }
  }
}

void read_format(const std::string& text, Wanted& wanted, std::vector<std::string>& errors) {
  if (text == "table") {
    wanted.render = sim::to_table;
  } else if (text == "json") {
    wanted.render = sim::to_json;
    wanted.spans = false;
  } else if (text == "svg") {
    wanted.render = sim::to_svg;
  } else {
    errors.push_back(
        fmt::format("nvshare sim: --format: '{}' is not one of table, json, svg", text));
  }
}

void read_lasts(const std::string& text, Wanted& wanted, std::vector<std::string>& errors) {
  const auto lasts = parse_duration(text);
  if (!lasts || *lasts < 1us || *lasts > 8784h) {
    errors.push_back(fmt::format(
        "nvshare sim: --lasts: {}",
        lasts ? fmt::format("{} is not from 1us to 366 days", text) : lasts.error().message));
    return;
  }
  wanted.scenario.lasts = *lasts;
  wanted.scenario.lasts_under.clear();
}

Wanted read_wanted(const Arguments& arguments, std::vector<std::string>& errors) {
  Wanted wanted;
  read_scenario(arguments.positionals()[0], wanted, errors);
  wanted.policies = {wanted.scenario.config.policy};
  if (const auto policy = arguments.value("policy")) {
    wanted.policies.clear();
    read_policies(*policy, wanted, errors);
  }
  if (const auto format = arguments.value("format")) read_format(*format, wanted, errors);
  if (arguments.has("brief") && wanted.render == sim::to_table) wanted.spans = false;
  if (const auto lasts = arguments.value("lasts")) read_lasts(*lasts, wanted, errors);
  return wanted;
}

Result<std::vector<Report>> play(Wanted& wanted) {
  std::vector<Report> reports;
  for (ComputePolicy policy : wanted.policies) {
    wanted.scenario.config.policy = policy;
    auto report = sim::run(wanted.scenario, wanted.spans);
    if (!report) return report.error().with_context(std::string(core::name_of(policy)));
    reports.push_back(std::move(*report));
  }
  return reports;
}

int write(const std::string& text, const std::optional<std::string>& path, Streams streams) {
  if (!path || *path == "-") {
    streams.out << text;
    return kGood;
  }
  std::ofstream file(*path, std::ios::binary | std::ios::trunc);
  file << text;
  if (!file.flush()) {
    streams.err << fmt::format("nvshare sim: cannot write {}\n", *path);
    return kFailed;
  }
  return kGood;
}

int run(const Arguments& arguments, Streams streams) {
  if (arguments.has("list")) return list(streams);
  if (const auto name = arguments.value("show")) return show(*name, streams);
  if (arguments.positionals().empty()) {
    streams.err << "nvshare sim: SCENARIO is missing (--list shows the built-in ones)\n";
    return kBadInput;
  }
  std::vector<std::string> errors;
  Wanted wanted = read_wanted(arguments, errors);
  if (!errors.empty()) {
    for (const std::string& error : errors) streams.err << error << "\n";
    return kBadInput;
  }
  const auto reports = play(wanted);
  if (!reports) {
    streams.err << fmt::format("nvshare sim: {}: {}\n", wanted.scenario.name,
                               reports.error().message);
    return kFailed;
  }
  return write(wanted.render(wanted.scenario, *reports), arguments.value("output"), streams);
}

}  // namespace

Command sim_command() {
  CommandSpec spec;
  spec.name = "sim";
  spec.summary = "Play a scenario with the scheduler's own code in virtual time";
  spec.positionals = {{"SCENARIO", "a built-in scenario's name, or a TOML file", false}};
  spec.options = {
      {"list", 'l', "", "the built-in scenarios and what they show"},
      {"show", 0, "NAME", "print a built-in scenario, to copy and change"},
      {"policy", 'p', "P", "instead of the scenario's: a policy, several with commas, or all"},
      {"format", 'f', "F", "table (default), json or svg"},
      {"brief", 'b', "", "tables only, no timelines; several policies are only compared"},
      {"output", 'o', "FILE", "write there instead of to standard output"},
      {"lasts", 0, "TIME", "play this long, such as 10s, instead of the scenario's time"},
  };
  spec.more =
      "examples:\n"
      "  nvshare sim seed-000-2 --policy all\n"
      "  nvshare sim workstation --format svg -o workstation.svg\n"
      "  nvshare sim --show workstation > mine.toml";
  return {spec, run};
}

}  // namespace nvshare::cli
