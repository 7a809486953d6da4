#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <sstream>

#include "base/suggest.h"
#include "cli/commands/commands.h"
#include "cli/commands/control_session.h"
#include "cli/run/limits.h"
#include "cli/show/answers.h"
#include "cli/show/lease_text.h"
#include "cli/show/render.h"

namespace nvshare::cli {
namespace {

const Positional kName{"NAME", "whose: see nvshare status", true};

// A change that holds now, and could not be written for later.
void warn_if_not_kept(std::string_view command, const std::string& json, Streams streams) {
  if (read_kept(json)) return;
  streams.err << fmt::format(
      "nvshare {}: done, but a restart of the scheduler would undo it: its state could not be "
      "written (see its log)\n",
      command);
}

// Asks for a change of a tenant, and prints what it is then.
int change_tenant(std::string_view command, const std::string& name, const std::string& request,
                  Streams streams) {
  const Asked asked = ask_scheduler(command, request, streams);
  if (!asked.json) return asked.code;
  if (const auto absent = read_why(*asked.json); absent && absent->declared) {
    streams.out << why_text(name, *absent);
    warn_if_not_kept(command, *asked.json, streams);
    return kGood;
  }
  const auto tenant = read_tenant(*asked.json);
  if (!tenant) return complain(command, tenant.error().message, kFailed, streams);
  streams.out << tenant_line(*tenant);
  warn_if_not_kept(command, *asked.json, streams);
  return kGood;
}

int run_limit(const Arguments& arguments, Streams streams) {
  std::vector<std::string> wrong;
  const std::string& name = arguments.positionals()[0];
  const LimitWish wish = read_limits(arguments, wrong);
  const bool reset = arguments.has("reset");
  if (wrong.empty() && wish.empty() && !reset) {
    wrong.push_back("give --cores, --mem, --priority or --reset");
  }
  if (reset && !wish.empty()) wrong.push_back("--reset: goes without new limits");
  if (!wrong.empty()) {
    return complain("limit", join({wrong.begin(), wrong.end()}, "; "), kBadInput, streams);
  }
  return change_tenant("limit", name, reset ? reset_request(name) : limit_request(name, wish),
                       streams);
}

int run_pause(const Arguments& arguments, Streams streams) {
  const std::string& name = arguments.positionals()[0];
  return change_tenant("pause", name, pause_request(name, true), streams);
}

int run_resume(const Arguments& arguments, Streams streams) {
  const std::string& name = arguments.positionals()[0];
  return change_tenant("resume", name, pause_request(name, false), streams);
}

// The owner of a lease may ask, and need not be an administrator. Nothing: there is no such lease
// for this caller, and `wrong` says why.
std::optional<std::string> why_lease(const std::string& id, std::string& wrong, Streams streams) {
  std::ostringstream complaints;
  const Asked asked = ask_api("why", {"GET", "/v1/leases/" + id, ""}, {streams.out, complaints});
  wrong = complaints.str();
  if (!asked.json) return std::nullopt;
  const auto lease = read_lease(*asked.json);
  return lease ? lease_why_text(*lease) : lease.error().message + "\n";
}

int run_why(const Arguments& arguments, Streams streams) {
  const std::string& name = arguments.positionals()[0];
  std::string no_lease;
  std::ostringstream no_tenant;
  if (is_lease_id(name)) {
    if (const auto text = why_lease(name, no_lease, streams)) {
      streams.out << *text;
      return kGood;
    }
  }
  const Asked asked = ask_scheduler("why", why_request(name), {streams.out, no_tenant});
  // Of a name that could be a lease's, the answer about leases says more.
  if (!asked.json) streams.err << (no_lease.empty() ? no_tenant.str() : no_lease);
  if (!asked.json) return asked.code;
  const auto why = read_why(*asked.json);
  if (!why) return complain("why", why.error().message, kFailed, streams);
  streams.out << why_text(name, *why);
  return kGood;
}

int set_scheduling(const std::string& value, Streams streams) {
  if (value != "on" && value != "off") {
    return complain("config", fmt::format("scheduling: '{}' is not one of on, off", value),
                    kBadInput, streams);
  }
  const Asked asked = ask_scheduler("config", scheduling_request(value == "on"), streams);
  if (!asked.json) return asked.code;
  streams.out << fmt::format("scheduling = {}\n", value);
  warn_if_not_kept("config", *asked.json, streams);
  return kGood;
}

int set(const std::string& key, const std::string& value, bool json, Streams streams) {
  if (key == "scheduling") return set_scheduling(value, streams);
  const Asked asked = ask_scheduler("config", set_request(key, value), streams);
  if (!asked.json) return asked.code;
  if (json) {
    streams.out << bare_answer(*asked.json, false) << "\n";
    return kGood;
  }
  const auto settings = read_settings(*asked.json);
  if (!settings) return complain("config", settings.error().message, kFailed, streams);
  for (const SettingInfo& one : *settings) {
    streams.out << fmt::format("{} = {}\n", one.name, one.value);
  }
  warn_if_not_kept("config", *asked.json, streams);
  return kGood;
}

int show_one(const std::vector<SettingInfo>& settings, const std::string& key, Streams streams) {
  std::vector<std::string_view> names;
  for (const SettingInfo& one : settings) {
    if (one.name == key) {
      streams.out << fmt::format("{}\n", one.value);
      return kGood;
    }
    names.push_back(one.name);
  }
  return complain("config", fmt::format("'{}': no such setting{}", key, did_you_mean(key, names)),
                  kBadInput, streams);
}

int run_config(const Arguments& arguments, Streams streams) {
  const bool json = arguments.has("json");
  const auto& given = arguments.positionals();
  if (!given.empty()) {
    const std::size_t equals = given[0].find('=');
    if (equals == 0) return complain("config", "the name is missing", kBadInput, streams);
    if (equals != given[0].npos) {
      return set(given[0].substr(0, equals), given[0].substr(equals + 1), json, streams);
    }
  }
  const Asked asked = ask_scheduler("config", config_request(), streams);
  if (!asked.json) return asked.code;
  if (json && given.empty()) {
    streams.out << bare_answer(*asked.json, false) << "\n";
    return kGood;
  }
  const auto settings = read_settings(*asked.json);
  if (!settings) return complain("config", settings.error().message, kFailed, streams);
  if (!given.empty()) return show_one(*settings, given[0], streams);
  streams.out << settings_text(*settings, wants_colour());
  return kGood;
}

}  // namespace

Command limit_command() {
  CommandSpec spec;
  spec.name = "limit";
  spec.summary = "Change what a program, a user, a container or a pod may have";
  spec.positionals = {kName};
  spec.options = limit_options();
  spec.options.push_back(
      {"reset", 0, "", "the limits that it has without nvshare limit: from its run or the file"});
  spec.more =
      "Takes effect at once; what is not given stays as it is. It outlasts a restart of the\n"
      "scheduler. The limits of a user hold for all its runs together, and can be set before\n"
      "the first comes: NAME may be user-1000, or the user's name. So can those of a container\n"
      "(container-3f2a9c01d4e7) and of a pod (pod-UID); they are forgotten after 24 hours without\n"
      "a process. A run has no limit above its user's, nor above that of the run around it. Where\n"
      "a run has a user's name, user-1000/alice is the run.\n\n"
      "examples:\n"
      "  nvshare limit train --cores 60\n"
      "  nvshare limit train --mem 8Gi --priority 2\n"
      "  nvshare limit train --mem none\n"
      "  nvshare limit train --reset\n"
      "  nvshare limit alice --cores 40";
  return {spec, run_limit};
}

Command why_command() {
  CommandSpec spec;
  spec.name = "why";
  spec.summary = "Say why a program or a request for a lease waits";
  spec.positionals = {
      {"NAME", "whose: see nvshare status; or a lease: see nvshare lease list", true}};
  spec.more =
      "Of a lease or a request for one: why it waits, or since when it is held and when it ends.\n"
      "A lease is told to its owner and to administrators.\n\n"
      "A last line tells what host memory is needed, used and possible for swapping, where GPU\n"
      "memory is short.\n\n"
      "examples:\n"
      "  nvshare why train\n"
      "  nvshare why 5f0c9e8d7b6a5f4e3d2c1b0a99887766";
  return {spec, run_why};
}

Command pause_command() {
  CommandSpec spec;
  spec.name = "pause";
  spec.summary = "Let a program submit no more GPU work for a while";
  spec.positionals = {kName};
  spec.more = "examples:\n  nvshare pause train\n  nvshare resume train";
  return {spec, run_pause};
}

Command resume_command() {
  CommandSpec spec;
  spec.name = "resume";
  spec.summary = "Let a paused program go on";
  spec.positionals = {kName};
  spec.more = "examples:\n  nvshare resume train";
  return {spec, run_resume};
}

Command config_command() {
  CommandSpec spec;
  spec.name = "config";
  spec.summary = "Show or change the scheduler's settings";
  spec.positionals = {
      {"KEY=VALUE", "the change, or KEY alone to see it; default: show all", false}};
  spec.options = {{"json", 'j', "", "for programs: what the scheduler answers"}};
  spec.more =
      "A change goes before the file and the environment, also after a restart of the scheduler.\n"
      "The value that those say ends it. scheduling=off lets everyone run at once, without limits\n"
      "of time.\n\n"
      "examples:\n"
      "  nvshare config\n"
      "  nvshare config turn=10ms\n"
      "  nvshare config scheduling=off";
  return {spec, run_config};
}

}  // namespace nvshare::cli
