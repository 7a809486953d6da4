#include "daemon/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <span>
#include <type_traits>
#include <variant>

#include "base/suggest.h"
#include "config/arbiter_keys.h"
#include "config/backend.h"
#include "config/class_tables.h"
#include "config/config_keys.h"
#include "config/exact_text.h"
#include "config/memory_limit.h"
#include "daemon/http/receiver_url.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

using core::UsageRules;

constexpr int kMostClients = 16384;

// A setting of the scheduler's own: where it is kept and what it may be.
struct OwnKey {
  using Member =
      std::variant<int Settings::*, Bytes Settings::*, std::string Settings::*,
                   wire::WhenLost Settings::*, Level Settings::*, wire::Backend Settings::*,
                   ArenaLimit Settings::*, bool Settings::*, Duration Settings::*,
                   int core::ArbiterConfig::*, Duration core::UsageRules::*,
                   double core::UsageRules::*, bool core::UsageRules::*>;
  std::string_view name;
  Member member;
  int low = 0;  // of a number, or of a time in milliseconds; the arbiter knows its own ranges
  int high = 0;
  bool changeable = true;
  std::string_view help;
  // Of a text.
  std::string_view range = "a text";
  std::string_view when_empty{};  // what an empty one stands for; it is refused without this
};

constexpr std::array kDaemonKeys{
    OwnKey{"run_directory", &Settings::run_directory, 0, 0, false,
           "where the scheduler's sockets are"},
    OwnKey{"when_lost", &Settings::when_lost, 0, 0, true,
           "what programs do while the scheduler is away"},
    OwnKey{"log_level", &Settings::log_level, 0, 0, true, "the least that is logged"},
    OwnKey{"max_clients", &Settings::max_clients, 1, kMostClients, true,
           "connections of programs, in all"},
    OwnKey{"max_clients_per_user", &Settings::max_clients_per_user, 1, kMostClients, true,
           "programs of one user, pod or container, and as many runs"},
    OwnKey{"default_cores", &Settings::default_cores, 1, 100, true,
           "core limit of tenants that come without one, in percent; 100: none"},
    OwnKey{"default_memory", &Settings::default_memory, 0, 0, true,
           "memory limit of tenants that come without one; 0: none"},
    OwnKey{"run_cores_max", &Settings::run_cores_max, 1, 100, true,
           "the most that `nvshare run` can ask for"},
    OwnKey{"run_priority_max", &Settings::run_priority_max, core::kLowestPriority,
           core::kHighestPriority, true, "the highest that `nvshare run` can ask for"},
    OwnKey{"memory_backend", &Settings::memory_backend, 0, 0, true,
           "what becomes of memory that programs allocate, unless their run says otherwise"},
    OwnKey{"arena_limit", &Settings::arena_limit, 0, 0, false,
           "host memory for what is swapped out; percent: of what is to spare at the start"},
    OwnKey{"run_cgroups", &Settings::run_cgroups, 0, 0, false,
           "give each run a cgroup of its own, so that the run keeps its processes"},
    OwnKey{"state_file", &Settings::state_file, 0, 0, false,
           "where changes of people are kept; without a folder: in the run directory"},
    OwnKey{"control_group", &Settings::control_group, 0, 0, false,
           "the group that may use the control socket and all leases, beside root"},
    OwnKey{"http_listen", &Settings::http_listen, 0, 0, false,
           "where services ask for leases over TCP, beside the Unix socket; off: nowhere"},
    OwnKey{"status_push_url", &Settings::status_push_url, 0, 0, true,
           "where the status of the GPUs and leases is posted on change and from time to time",
           "http://HOST:PORT/PATH with a numeric HOST or localhost, or off", "off"},
    OwnKey{"status_push_interval", &Settings::status_push_interval, 100, 3'600'000, true,
           "how often the status is posted without a change"},
    OwnKey{config::kUsageInterval, &Settings::usage_sample_interval,
           static_cast<int>(config::kLeastUsageInterval / 1ms),
           static_cast<int>(config::kMostUsageInterval / 1ms), true,
           "how often the usage of the GPUs is looked at"},
};

// With the arbiter's, of which a scenario has the same.
const std::vector<OwnKey>& own_keys() {
  static const std::vector<OwnKey> keys = [] {
    std::vector<OwnKey> all(kDaemonKeys.begin(), kDaemonKeys.end());
    for (const config::ArbiterKey& key : config::arbiter_keys()) {
      const auto place = [](auto member) { return OwnKey::Member(member); };
      all.push_back({key.name, std::visit(place, key.member), 0, 0, true, key.help});
    }
    return all;
  }();
  return keys;
}

// Where a setting is kept.
template <typename S, typename T>
auto& field(S& settings, T Settings::*member) {
  return settings.*member;
}
template <typename S, typename T>
auto& field(S& settings, T core::ArbiterConfig::*member) {
  return settings.arbiter.*member;
}
template <typename S, typename T>
auto& field(S& settings, T UsageRules::*member) {
  return settings.arbiter.usage.*member;
}

// All values that are out of their range, each line with the setting's name first.
std::vector<std::string> problems_of(const Settings& settings) {
  std::vector<std::string> found = core::problems(settings.core);
  for (std::string& one : core::problems(settings.arbiter)) found.push_back(std::move(one));
  if (settings.status_push_url != "off") {
    const auto url = receiver_url(settings.status_push_url);
    if (!url) found.push_back("status_push_url: " + url.error().message);
  }
  const auto stale = config::ttl_problem(settings.arbiter.usage, settings.usage_sample_interval);
  if (stale) found.push_back(*stale);
  return found;
}

// The names that the requirement has for some of them, and the unit in which those count.
struct Alias {
  std::string_view variable;
  std::string_view name;
  std::string_view unit;
};
constexpr std::array kAliases{
    Alias{"NVSHARE_RUN_DIR", "run_directory", ""},
    Alias{"NVSHARE_COMPUTE_WINDOW_MS", "window", "ms"},
    Alias{"NVSHARE_QUOTA_SAMPLE_INTERVAL_MS", "sample_interval", "ms"},
    Alias{"NVSHARE_QUOTA_CARRYOVER_PERCENT", "carryover_percent", ""},
    Alias{"NVSHARE_DROP_TAIL_BILLING_PERCENT", "tail_billing_percent", ""},
    Alias{"NVSHARE_SWITCH_TIME_MODE", "quantum_mode", ""},
    Alias{"NVSHARE_SWITCH_TIME_FIXED", "quantum_fixed", "s"},
    Alias{"NVSHARE_SWITCH_TIME_MULTIPLIER", "quantum_multiplier", ""},
    Alias{"NVSHARE_MEMORY_RESERVE_PERCENT", "reserve_percent", ""},
};

std::string own_variable(std::string_view name) {
  std::string variable = "NVSHARE_";
  for (const char c : name) variable += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return variable;
}

const OwnKey* find_own(std::string_view name) {
  const auto at = std::ranges::find(own_keys(), name, &OwnKey::name);
  return at == own_keys().end() ? nullptr : &*at;
}

Result<ArenaLimit> parse_arena_limit(std::string_view text) {
  if (!text.empty() && text.back() == '%') {
    const auto percent = parse_integer(text.substr(0, text.size() - 1), 1, 100);
    if (!percent) return percent.error();
    return ArenaLimit{static_cast<int>(*percent), {}};
  }
  const auto bytes = config::parse_memory_limit(text);
  if (!bytes) return bytes.error();
  return ArenaLimit{0, *bytes};
}

Result<Duration> parse_time(std::string_view text, const OwnKey& key) {
  const auto value = parse_duration(text);
  if (!value || key.high == 0) return value;
  const Duration low = std::chrono::milliseconds(key.low);
  const Duration high = std::chrono::milliseconds(key.high);
  if (*value >= low && *value <= high) return value;
  return Error{fmt::format("{} is not from {} to {}", text, to_text(low), to_text(high))};
}

Result<void> set_own(Settings& settings, const OwnKey& key, std::string_view text) {
  const auto set = [&](auto member) -> Result<void> {
    using T = std::remove_reference_t<decltype(field(settings, member))>;
    if constexpr (std::is_same_v<decltype(member), int core::ArbiterConfig::*>) {
      const auto value = parse_integer(text, INT_MIN, INT_MAX);
      if (!value) return value.error();
      field(settings, member) = static_cast<int>(*value);
    } else if constexpr (std::is_same_v<T, int>) {
      const auto value = parse_integer(text, key.low, key.high);
      if (!value) return value.error();
      settings.*member = static_cast<int>(*value);
    } else if constexpr (std::is_same_v<T, double>) {
      const auto value = parse_number(text);
      if (!value) return value.error();
      field(settings, member) = *value;
    } else if constexpr (std::is_same_v<T, Duration>) {
      const auto value = parse_time(text, key);
      if (!value) return value.error();
      field(settings, member) = *value;
    } else if constexpr (std::is_same_v<T, Bytes>) {
      const auto value = config::parse_memory_limit(text);
      if (!value) return value.error();
      settings.*member = *value;
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (text.empty() && key.when_empty.empty()) return Error{"must not be empty"};
      settings.*member = std::string(text.empty() ? key.when_empty : text);
    } else if constexpr (std::is_same_v<T, Level>) {
      const auto level = level_by_name(text);
      if (!level) return Error{fmt::format("'{}' is not one of info, warning, error", text)};
      settings.*member = *level;
    } else if constexpr (std::is_same_v<T, wire::Backend>) {
      const auto backend = config::backend_by_name(text);
      if (!backend) {
        return Error{fmt::format("'{}' is not one of {}", text, config::kBackendNames)};
      }
      settings.*member = *backend;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (text != "true" && text != "false") {
        return Error{fmt::format("'{}' is not one of true, false", text)};
      }
      field(settings, member) = text == "true";
    } else if constexpr (std::is_same_v<T, ArenaLimit>) {
      const auto limit = parse_arena_limit(text);
      if (!limit) return limit.error();
      settings.*member = *limit;
    } else {
      if (text != "run" && text != "wait") {
        return Error{fmt::format("'{}' is not one of run, wait", text)};
      }
      settings.*member = text == "run" ? wire::WhenLost::Run : wire::WhenLost::Wait;
    }
    return {};
  };
  const auto done = std::visit(set, key.member);
  if (!done) return done.error().with_context(std::string(key.name));
  return {};
}

std::string text_of_own(const Settings& settings, const OwnKey& key) {
  return std::visit(
      [&](auto member) -> std::string {
        using T = std::remove_cvref_t<decltype(field(settings, member))>;
        if constexpr (std::is_same_v<T, int>) return std::to_string(field(settings, member));
        if constexpr (std::is_same_v<T, double>) return fmt::to_string(field(settings, member));
        if constexpr (std::is_same_v<T, Duration>) {
          return config::exact_text(field(settings, member));
        }
        if constexpr (std::is_same_v<T, Bytes>) return config::exact_text(settings.*member);
        if constexpr (std::is_same_v<T, std::string>) return settings.*member;
        if constexpr (std::is_same_v<T, Level>) return std::string(name_of(settings.*member));
        if constexpr (std::is_same_v<T, wire::Backend>) {
          return std::string(config::name_of(settings.*member));
        }
        if constexpr (std::is_same_v<T, bool>) return field(settings, member) ? "true" : "false";
        if constexpr (std::is_same_v<T, ArenaLimit>) {
          const ArenaLimit& limit = settings.*member;
          return limit.percent > 0 ? fmt::format("{}%", limit.percent)
                                   : config::exact_text(limit.bytes);
        }
        if constexpr (std::is_same_v<T, wire::WhenLost>) {
          return settings.*member == wire::WhenLost::Run ? "run" : "wait";
        }
      },
      key.member);
}

// The arbiter alone knows the range, so that it is asked about a value outside of any.
template <typename Member>
std::string range_in_arbiter(std::string_view name, Member member) {
  Settings outside;
  field(outside, member) = std::remove_reference_t<decltype(field(outside, member))>{-1};
  constexpr std::string_view kFrom = " is not from ";
  for (const std::string& problem : core::problems(outside.arbiter)) {
    const std::size_t from = problem.find(kFrom);
    if (problem.starts_with(std::string(name) + ": ") && from != problem.npos) {
      return problem.substr(from + kFrom.size());
    }
  }
  return "above 0";
}

// A truth value or a number stands in a file without quotes.
bool is_quoted(const OwnKey& key) {
  return std::visit(
      [](auto member) {
        using T = std::remove_cvref_t<decltype(field(std::declval<Settings&>(), member))>;
        return !std::is_same_v<T, int> && !std::is_same_v<T, bool> && !std::is_same_v<T, double>;
      },
      key.member);
}

std::string range_of_own(const OwnKey& key) {
  if (const auto* member = std::get_if<int core::ArbiterConfig::*>(&key.member)) {
    return range_in_arbiter(key.name, *member);
  }
  if (const auto* member = std::get_if<double UsageRules::*>(&key.member)) {
    return range_in_arbiter(key.name, *member);
  }
  if (const auto* member = std::get_if<Duration UsageRules::*>(&key.member)) {
    return range_in_arbiter(key.name, *member);
  }
  if (std::holds_alternative<Duration Settings::*>(key.member)) {
    return fmt::format("{} to {}", to_text(Duration(std::chrono::milliseconds(key.low))),
                       to_text(Duration(std::chrono::milliseconds(key.high))));
  }
  if (std::holds_alternative<int Settings::*>(key.member)) {
    return fmt::format("{} to {}", key.low, key.high);
  }
  if (std::holds_alternative<Bytes Settings::*>(key.member)) {
    return "0 to " + nvshare::to_text(core::kMostMemory);
  }
  if (std::holds_alternative<Level Settings::*>(key.member)) return "info, warning, error";
  if (std::holds_alternative<wire::WhenLost Settings::*>(key.member)) return "run, wait";
  if (std::holds_alternative<wire::Backend Settings::*>(key.member)) {
    return std::string(config::kBackendNames);
  }
  if (std::holds_alternative<bool Settings::*>(key.member) ||
      std::holds_alternative<bool UsageRules::*>(key.member)) {
    return "true, false";
  }
  if (std::holds_alternative<ArenaLimit Settings::*>(key.member)) return "a size, or 1% to 100%";
  return std::string(key.range);
}

std::vector<Setting> make_settings() {
  std::vector<Setting> all;
  for (const config::ConfigKey& key : config::config_keys()) {
    Setting one;
    one.name = key.name;
    one.range = config::range_of(key);
    one.help = key.help;
    one.quoted = !std::holds_alternative<int core::Config::*>(key.member) &&
                 !std::holds_alternative<bool core::Config::*>(key.member);
    one.changeable = key.name != "policy" && key.name != "window";  // as the core says
    all.push_back(std::move(one));
  }
  for (const OwnKey& key : own_keys()) {
    Setting one;
    one.name = key.name;
    one.range = range_of_own(key);
    one.help = key.help;
    one.quoted = is_quoted(key);
    one.changeable = key.changeable;
    all.push_back(std::move(one));
  }
  for (Setting& one : all) {
    for (const Alias& alias : kAliases) {
      if (alias.name == one.name) one.variables.emplace_back(alias.variable);
    }
    one.variables.push_back(own_variable(one.name));
  }
  return all;
}

// The text is understood; whether the value is in its range is looked at once all are there, for
// two settings can bound one another.
Result<void> assign(Settings& settings, std::string_view name, std::string_view text) {
  if (const OwnKey* own = find_own(name)) return set_own(settings, *own, text);
  const config::ConfigKey* key = config::find_config_key(name);
  if (key == nullptr) {
    return Error{fmt::format("there is no setting '{}'{}", name, suggest_setting(name))};
  }
  return config::set_from_text(settings.core, *key, text);
}

std::vector<std::string> new_problems(const std::vector<std::string>& before, const Settings& now) {
  std::vector<std::string> found = problems_of(now);
  std::erase_if(found, [&](const std::string& one) {
    return std::find(before.begin(), before.end(), one) != before.end();
  });
  return found;
}

// A message begins with the name of its setting; a file's problem has it already.
std::string without_name(std::string_view message, std::string_view name) {
  if (message.substr(0, name.size()) == name && message.substr(name.size(), 2) == ": ") {
    message.remove_prefix(name.size() + 2);
  }
  return std::string(message);
}

void load_file(std::string_view text, const std::string& name, const NameLookup& lookup,
               Loaded& loaded) {
  const auto document = config::parse_toml(text, name);
  if (!document) {
    loaded.problems.push_back(document.error().message);
    return;
  }
  config::Problems problems(name);
  config::TableReader table(*document, "", problems);
  for (const Setting& setting : all_settings()) {
    const config::Value* value = table.find(setting.name);
    if (value == nullptr) continue;
    const auto given =
        value->kind == config::Kind::Number ? std::optional(value->text) : config::as_text(*value);
    if (!given) {
      table.problem(setting.name,
                    fmt::format("is {}, not {}", config::name_of(value->kind), setting.range));
      continue;
    }
    const auto set = assign(loaded.settings, setting.name, *given);
    if (!set) table.problem(setting.name, without_name(set.error().message, setting.name));
  }
  loaded.settings.arbiter.classes = config::read_classes(table, problems);
  for (const std::string& problem : problems_of(loaded.settings)) {
    const std::string key = problem.substr(0, problem.find(':'));
    table.problem(key, without_name(problem, key));
  }
  loaded.settings.tables = read_limit_tables(table, problems, lookup);
  table.finish();
  for (std::string& line : problems.lines()) loaded.problems.push_back(std::move(line));
}

std::string_view unit_of(std::string_view variable) {
  for (const Alias& alias : kAliases) {
    if (alias.variable == variable) return alias.unit;
  }
  return "";
}

// "5000m" with its unit behind it would be five seconds.
bool ends_in_a_digit(std::string_view text) {
  return text.back() >= '0' && text.back() <= '9';
}

void load_environment(const Environment& environment, Loaded& loaded) {
  const auto before = problems_of(loaded.settings);
  std::map<std::string_view, std::string_view> set_by;  // setting -> variable
  for (const Setting& setting : all_settings()) {
    for (const std::string& variable : setting.variables) {
      const char* value = environment(variable.c_str());
      if (value == nullptr || *value == 0) continue;
      const std::string_view unit = unit_of(variable);
      const Result<void> set =
          unit.empty() || ends_in_a_digit(value)
              ? assign(loaded.settings, setting.name, value + std::string(unit))
              : Error{"it has a unit"};
      if (set) {
        set_by[setting.name] = variable;
      } else if (unit.empty()) {
        loaded.problems.push_back(
            fmt::format("{}: {}", variable, without_name(set.error().message, setting.name)));
      } else {
        loaded.problems.push_back(fmt::format("{}: '{}' is not a number of {} ({} is {})", variable,
                                              value, unit, setting.name, setting.range));
      }
    }
  }
  for (const std::string& problem : new_problems(before, loaded.settings)) {
    const std::string key = problem.substr(0, problem.find(':'));
    const auto from = set_by.find(key);
    loaded.problems.push_back(
        from == set_by.end() ? problem + " (from the environment)"
                             : fmt::format("{}: {}", from->second, without_name(problem, key)));
  }
}

}  // namespace

Settings::Settings() : run_directory(wire::kSystemRunDirectory) {}

core::Limits Settings::default_limits() const {
  core::Limits limits;
  limits.core_percent = default_cores;
  if (default_memory.count > 0) limits.memory = default_memory;
  // Users of one machine do not go before one another. In a private scheduler there are no others.
  limits.priority = is_private ? core::kHighestPriority : 0;
  return limits;
}

std::string Settings::state_path() const {
  return state_file.find('/') == state_file.npos ? run_directory + "/" + state_file : state_file;
}

const std::vector<Setting>& all_settings() {
  static const std::vector<Setting> all = make_settings();
  return all;
}

const Setting* find_setting(std::string_view name) {
  for (const Setting& one : all_settings()) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

std::string suggest_setting(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Setting& one : all_settings()) names.push_back(one.name);
  return did_you_mean(name, names);
}

Result<void> set_setting(Settings& settings, std::string_view name, std::string_view text) {
  return set_settings(settings, {{std::string(name), std::string(text)}});
}

Result<void> set_settings(Settings& settings, const SettingTexts& texts) {
  Settings changed = settings;
  for (const auto& [name, text] : texts) {
    if (const auto set = assign(changed, name, text); !set) return set;
  }
  const auto problems = new_problems(problems_of(settings), changed);
  if (!problems.empty()) return Error{problems.front()};
  settings = changed;
  return {};
}

std::string text_of(const Settings& settings, std::string_view name) {
  if (const OwnKey* own = find_own(name)) return text_of_own(settings, *own);
  const config::ConfigKey* key = config::find_config_key(name);
  return key == nullptr ? "" : config::text_of(settings.core, *key);
}

Loaded load_settings(std::optional<std::string_view> file, const std::string& file_name,
                     const Environment& environment, const NameLookup& lookup) {
  Loaded loaded;
  if (file) load_file(*file, file_name, lookup, loaded);
  load_environment(environment, loaded);
  return loaded;
}

std::string to_file(const Settings& settings) {
  std::string text = "# Settings of nvshare-scheduler.\n";
  for (const Setting& one : all_settings()) {
    const std::string value = text_of(settings, one.name);
    text += fmt::format("\n# {} ({})\n", one.help, one.range);
    text += fmt::format("{} = {}\n", one.name, one.quoted ? config::toml_text(value) : value);
  }
  return text + config::to_file(settings.arbiter.classes) + to_file(settings.tables);
}

}  // namespace nvshare::daemon
