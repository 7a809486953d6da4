#include "daemon/settings_tables.h"

#include <fmt/format.h>

#include <algorithm>

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

// The tenant of a container, which the file gives by its id, the first letters of that, or its name
// under LXC. A text that is nearly an id is refused, because no container would have these limits.
Result<std::string> name_of_container(const std::string& key) {
  const std::string id =
      key.starts_with(kContainerPrefix) ? key.substr(kContainerPrefix.size()) : key;
  if (id.empty()) return Error{"the container's id is missing"};
  const bool only_hex = id.find_first_not_of("0123456789abcdefABCDEF") == id.npos;
  const bool looks_like_id = (only_hex && id.size() >= kShownIdLength) || id.size() == kIdLength;
  const bool is_short = id.size() == kShownIdLength && is_hex(id);
  if (looks_like_id && !is_short && !is_container_id(id)) {
    return Error{fmt::format(
        "is no container's id: that has {} letters of 0-9 and a-f; its first {} will do", kIdLength,
        kShownIdLength)};
  }
  return container_tenant(id).name;
}

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

template <typename Tables>
void print_kind(std::string& text, std::string_view kind, const Tables& tables) {
  for (const auto& [number, table] : tables) {
    text += fmt::format("\n[{}.{}]\n", kind, toml_text(table.key));
    if (table.limits.cores) text += fmt::format("cores = {}\n", *table.limits.cores);
    if (table.limits.memory) {
      text += fmt::format("memory = \"{}\"\n", config::exact_text(*table.limits.memory));
    }
    if (table.limits.priority) text += fmt::format("priority = {}\n", *table.limits.priority);
  }
}

}  // namespace

std::string toml_text(std::string_view text) {
  std::string whole = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') whole += '\\';
    if ((c >= 0 && c < ' ') || c == 0x7f) {
      whole += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      whole += c;
    }
  }
  return whole + '"';
}

LimitTables read_limit_tables(config::TableReader& file, config::Problems& problems,
                              const NameLookup& lookup) {
  LimitTables tables;
  read_kind(
      file, problems, "users",
      [&](const std::string& key) { return number_of(key, "user", lookup.user); }, tables.users);
  read_kind(
      file, problems, "groups",
      [&](const std::string& key) { return number_of(key, "group", lookup.group); }, tables.groups);
  read_kind(file, problems, "containers", &name_of_container, tables.containers,
            ": of an id only the first 12 letters count");
  return tables;
}

std::string to_file(const LimitTables& tables) {
  std::string text;
  print_kind(text, "users", tables.users);
  print_kind(text, "groups", tables.groups);
  print_kind(text, "containers", tables.containers);
  return text;
}

}  // namespace nvshare::daemon
