#include "daemon/settings_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/run_name.h"
#include "config/exact_text.h"
#include "core/config.h"
#include "core/event.h"
#include "daemon/tenant_names.h"

namespace nvshare::daemon {
namespace {

Declaration read_declaration(config::TableReader table) {
  Declaration limits;
  if (const auto cores = table.integer("cores", 1, core::kNoCoreLimit)) {
    limits.cores = static_cast<int>(*cores);
  }
  limits.memory = table.memory_limit("memory");
  const auto priority = table.integer("priority", core::kLowestPriority, core::kHighestPriority);
  if (priority) limits.priority = static_cast<int>(*priority);
  table.finish();
  return limits;
}

// The number of a user or group, which the file gives by its name or its number.
Result<std::uint32_t> number_of(const std::string& key, std::string_view what,
                                const NameLookup::Find& find) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!key.empty() && std::all_of(key.begin(), key.end(), is_digit)) {
    // The largest number stands for nobody.
    const auto number = parse_integer(key, 0, UINT32_MAX - 1);
    if (!number) return number.error();
    return static_cast<std::uint32_t>(*number);
  }
  const auto number = find ? find(key) : std::nullopt;
  if (!number) return Error{fmt::format("this machine has no {} '{}'", what, key)};
  return *number;
}

// The kinds that a table names by more than a number.
struct NamedKind {
  std::string_view key;
  std::string_view prefix;  // of the tenants' names
  Result<TenantName> (*named)(const std::string& text);
  std::string_view same_because;
};
constexpr std::array<NamedKind, 3> kNamedKinds{
    {{"pods", kPodPrefix, &pod_named, ""},
     {"containers", kContainerPrefix, &container_named,
      ": of an id only the first 12 letters count"},
     {"cgroups", kCgroupPrefix, &cgroup_named,
      ": both have the same tenant, whose name is the path with '-' for '/'"}}};

// The tables below one key of the file, such as `users`.
template <typename Number, typename NumberOf>
void read_kind(config::TableReader& file, config::Problems& problems, std::string_view kind,
               NumberOf number_of_key, std::map<Number, LimitTable>& tables,
               std::string_view same_because = "") {
  const config::Value* all = file.find(kind);
  if (all == nullptr) return;
  config::TableReader reader(*all, std::string(kind), problems);
  for (const config::Entry& entry : all->entries) {
    auto table = reader.table(entry.key);
    if (!table) continue;
    LimitTable found{entry.key, read_declaration(std::move(*table))};
    const Result<Number> number = number_of_key(entry.key);
    if (!number) {
      problems.add(entry.place, reader.path_of(entry.key), number.error().message);
      continue;
    }
    const auto [at, is_new] = tables.try_emplace(*number, std::move(found));
    if (is_new) continue;
    problems.add(entry.place, reader.path_of(entry.key),
                 fmt::format("is the same as {}.{}{}", kind, at->second.key, same_because));
  }
}

void print_table(std::string& text, std::string_view kind, const LimitTable& table) {
  text += fmt::format("\n[{}.{}]\n", kind, config::toml_text(table.key));
  if (table.limits.cores) text += fmt::format("cores = {}\n", *table.limits.cores);
  if (table.limits.memory) {
    text += fmt::format("memory = \"{}\"\n", config::exact_text(*table.limits.memory));
  }
  if (table.limits.priority) text += fmt::format("priority = {}\n", *table.limits.priority);
}

}  // namespace

LimitTables read_limit_tables(config::TableReader& file, config::Problems& problems,
                              const NameLookup& lookup) {
  LimitTables tables;
  read_kind(
      file, problems, "users",
      [&](const std::string& key) { return number_of(key, "user", lookup.user); }, tables.users);
  read_kind(
      file, problems, "groups",
      [&](const std::string& key) { return number_of(key, "group", lookup.group); }, tables.groups);
  for (const NamedKind& kind : kNamedKinds) {
    read_kind(
        file, problems, kind.key,
        [&](const std::string& key) -> Result<std::string> {
          const auto tenant = kind.named(key);
          if (!tenant) return tenant.error();
          return tenant->name;
        },
        tables.named, kind.same_because);
  }
  return tables;
}

std::vector<std::string> LimitTables::cgroups() const {
  std::vector<std::string> paths;
  for (const auto& [name, table] : named) {
    if (name.starts_with(kCgroupPrefix)) paths.push_back(table.key);
  }
  return paths;
}

std::string without_effect(const LimitTables& tables, std::string_view cgroup) {
  if (tables.cgroups().empty() || group_in_cgroup(cgroup)) return {};
  return "the [cgroups] tables do nothing: this machine has cgroup v1 alone, and they need cgroup2";
}

std::string to_file(const LimitTables& tables) {
  std::string text;
  for (const auto& [number, table] : tables.users) print_table(text, "users", table);
  for (const auto& [number, table] : tables.groups) print_table(text, "groups", table);
  for (const NamedKind& kind : kNamedKinds) {
    for (const auto& [name, table] : tables.named) {
      if (name.starts_with(kind.prefix)) print_table(text, kind.key, table);
    }
  }
  return text;
}

}  // namespace nvshare::daemon
