#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "config/arbiter_keys.h"
#include "core/arbiter/arbiter.h"
#include "core/config.h"
#include "core/event.h"
#include "daemon/host/host_memory.h"
#include "daemon/log.h"
#include "daemon/settings_tables.h"
#include "wire/messages.h"

namespace nvshare::daemon {

struct Settings {
  core::Config core;
  std::string run_directory;
  wire::WhenLost when_lost = wire::WhenLost::Run;
  Level log_level = Level::Info;
  int max_clients = 1024;
  int max_clients_per_user = 256;
  int default_cores = core::kNoCoreLimit;
  Bytes default_memory{0};  // 0: no limit
  int run_cores_max = core::kNoCoreLimit;
  int run_priority_max = core::kHighestPriority;
  std::string control_group = "nvshare";
  wire::Backend memory_backend = wire::Backend::Swap;
  ArenaLimit arena_limit{100, {}};
  bool run_cgroups = true;
  bool is_private = false;           // no setting: how the scheduler was started
  std::string state_file = "state";  // a path, or a file in the run directory
  LimitTables tables;                // of users, groups and containers
  core::ArbiterConfig arbiter;       // who of the services gets a lease
  Duration usage_sample_interval = config::kFirstUsageInterval;
  std::string http_listen = "127.0.0.1:9402";  // of a system scheduler; "off": no TCP
  std::string status_push_url = "off";         // receiver_url() takes it
  Duration status_push_interval = 5s;

  Settings();
  // Of a tenant that comes without a run.
  core::Limits default_limits() const;
  // The whole path of the state file.
  std::string state_path() const;
};

// One setting, of the core or of the scheduler's own: all that there is to know about it.
struct Setting {
  std::string name;
  std::vector<std::string> variables;  // of the environment; later ones win
  std::string range;
  std::string help;
  bool quoted = true;      // as a text in a file; numbers and truth values are not
  bool changeable = true;  // while the scheduler runs
};

// The one list of them.
const std::vector<Setting>& all_settings();
const Setting* find_setting(std::string_view name);
// "; did you mean 'turn'?" for a name that is none.
std::string suggest_setting(std::string_view name);

// From the text that files, the environment and `nvshare config` have; checks the range too. After
// an error nothing has changed.
Result<void> set_setting(Settings& settings, std::string_view name, std::string_view text);
// All of them or none: settings that bound one another change together.
using SettingTexts = std::vector<std::pair<std::string, std::string>>;
Result<void> set_settings(Settings& settings, const SettingTexts& texts);
// As set_setting() takes it.
std::string text_of(const Settings& settings, std::string_view name);

using Environment = std::function<const char*(const char* variable)>;

// The settings from a file's text (none: nullopt) and then the environment; every problem, one line
// each, when there are any.
struct Loaded {
  Settings settings;
  std::vector<std::string> problems;
};
Loaded load_settings(std::optional<std::string_view> file, const std::string& file_name,
                     const Environment& environment, const NameLookup& lookup = {});

// A file that load_settings() takes, with a comment for each setting.
std::string to_file(const Settings& settings);

}  // namespace nvshare::daemon
