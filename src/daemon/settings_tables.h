#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "config/reader.h"

// The tables of scheduler.toml with limits of users, groups, pods, containers and cgroups.
namespace nvshare::daemon {

// Limits that one source says. A limit that is absent is left to the next source.
struct Declaration {
  std::optional<int> cores;     // 1 to 100; 100: no limit
  std::optional<Bytes> memory;  // 0: no limit
  std::optional<int> priority;

  bool empty() const { return !cores && !memory && !priority; }
  friend bool operator==(const Declaration&, const Declaration&) = default;
};

struct LimitTable {
  std::string key;  // as the file has it: a name, a number, an id or a path
  Declaration limits;

  friend bool operator==(const LimitTable&, const LimitTable&) = default;
};

struct LimitTables {
  std::map<std::uint32_t, LimitTable> users;   // by number
  std::map<std::uint32_t, LimitTable> groups;  // by number
  std::map<std::string, LimitTable> named;     // pods, containers and cgroups, by the tenant's name

  // The paths of the declared cgroups.
  std::vector<std::string> cgroups() const;

  friend bool operator==(const LimitTables&, const LimitTables&) = default;
};

// The number of a user or a group by its name; nothing where there is none. Handed in, so that
// tests need no users.
struct NameLookup {
  using Find = std::function<std::optional<std::uint32_t>(const std::string& name)>;
  Find user;
  Find group;
};

// Reads `users`, `groups`, `pods`, `containers` and `cgroups` of the file; problems go to the
// reader's.
LimitTables read_limit_tables(config::TableReader& file, config::Problems& problems,
                              const NameLookup& lookup);
// Why some of the tables do nothing on this machine; empty: all of them count. `cgroup` is the text
// of /proc/self/cgroup.
std::string without_effect(const LimitTables& tables, std::string_view cgroup);
// As read_limit_tables() takes them.
std::string to_file(const LimitTables& tables);

}  // namespace nvshare::daemon
