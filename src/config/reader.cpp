#include "config/reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/suggest.h"
#include "config/memory_limit.h"

namespace nvshare::config {

void Problems::add(Place place, std::string_view key, std::string_view what) {
  found_.emplace(std::pair{place.line, place.column},
                 key.empty() ? std::string(what) : fmt::format("{}: {}", key, what));
}

std::vector<std::string> Problems::lines() const {
  std::vector<std::string> lines;
  for (const auto& [place, text] : found_) {
    lines.push_back(fmt::format("{}:{}:{}: {}", source_, place.first, place.second, text));
  }
  return lines;
}

TableReader::TableReader(const Value& table, std::string path, Problems& problems)
    : table_(&table), path_(std::move(path)), problems_(&problems) {
  if (table.kind != Kind::Table) {
    problems.add(table.place, path_, fmt::format("is {}, not a table", name_of(table.kind)));
  }
}

const Entry* TableReader::entry(std::string_view key) const {
  const auto at = std::find_if(table_->entries.begin(), table_->entries.end(),
                               [&](const Entry& one) { return one.key == key; });
  return at == table_->entries.end() ? nullptr : &*at;
}

std::string TableReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const Value* TableReader::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const Entry* found = entry(key);
  return found ? &found->value : nullptr;
}

const Value* TableReader::find(std::string_view key, Kind kind, std::string_view example) {
  const Value* value = find(key);
  if (!value || value->kind == kind) return value;
  problem(key, fmt::format("is {}, not {}{}", name_of(value->kind), name_of(kind), example));
  return nullptr;
}

std::optional<std::string> TableReader::text(std::string_view key) {
  const Value* value = find(key, Kind::Text, "");
  return value ? std::optional(value->text) : std::nullopt;
}

std::optional<bool> TableReader::boolean(std::string_view key) {
  const Value* value = find(key, Kind::Boolean, "");
  return value ? std::optional(value->boolean) : std::nullopt;
}

std::optional<std::int64_t> TableReader::integer(std::string_view key, std::int64_t low,
                                                 std::int64_t high) {
  const Value* value = find(key, Kind::Integer, "");
  if (!value) return std::nullopt;
  if (value->integer < low || value->integer > high) {
    problem(key, fmt::format("{} is not from {} to {}", value->integer, low, high));
    return std::nullopt;
  }
  return value->integer;
}

std::optional<double> TableReader::number(std::string_view key) {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if (value->kind == Kind::Integer) return static_cast<double>(value->integer);
  if (value->kind != Kind::Number) {
    problem(key, fmt::format("is {}, not a number", name_of(value->kind)));
    return std::nullopt;
  }
  const auto parsed = parse_number(value->text);
  if (parsed) return *parsed;
  problem(key, parsed.error().message);
  return std::nullopt;
}

std::optional<Duration> TableReader::duration(std::string_view key, Duration low, Duration high) {
  const Value* value = find(key, Kind::Text, " such as \"10ms\"");
  if (!value) return std::nullopt;
  const auto parsed = parse_duration(value->text);
  if (!parsed) {
    problem(key, parsed.error().message);
    return std::nullopt;
  }
  if (*parsed < low || *parsed > high) {
    problem(key,
            fmt::format("{} is not from {} to {}", to_text(*parsed), to_text(low), to_text(high)));
    return std::nullopt;
  }
  return *parsed;
}

std::optional<Bytes> TableReader::bytes(std::string_view key, Bytes low, Bytes high) {
  const Value* value = find(key, Kind::Text, " such as \"4Gi\"");
  if (!value) return std::nullopt;
  const auto parsed = parse_bytes(value->text);
  if (!parsed) {
    problem(key, parsed.error().message);
    return std::nullopt;
  }
  if (*parsed < low || *parsed > high) {
    problem(key,
            fmt::format("{} is not from {} to {}", to_text(*parsed), to_text(low), to_text(high)));
    return std::nullopt;
  }
  return *parsed;
}

std::optional<Bytes> TableReader::memory_limit(std::string_view key) {
  const Value* value = find(key, Kind::Text, " such as \"4Gi\"");
  if (!value) return std::nullopt;
  const auto parsed = parse_memory_limit(value->text);
  if (parsed) return *parsed;
  problem(key, parsed.error().message);
  return std::nullopt;
}

std::vector<TableReader> TableReader::tables(std::string_view key) {
  std::vector<TableReader> readers;
  const Value* value = find(key, Kind::Array, " of tables");
  if (!value) return readers;
  for (const Value& item : value->items) readers.emplace_back(item, path_of(key), *problems_);
  return readers;
}

std::optional<TableReader> TableReader::table(std::string_view key) {
  const Value* value = find(key, Kind::Table, "");
  if (!value) return std::nullopt;
  return TableReader(*value, path_of(key), *problems_);
}

std::optional<std::size_t> TableReader::word_index(std::string_view key,
                                                   const std::vector<std::string_view>& words) {
  const Value* value = find(key, Kind::Text, "");
  if (!value) return std::nullopt;
  const auto at = std::find(words.begin(), words.end(), value->text);
  if (at == words.end()) {
    problem(key, fmt::format("'{}' is not one of {}", value->text, join(words)));
    return std::nullopt;
  }
  return static_cast<std::size_t>(at - words.begin());
}

void TableReader::problem(std::string_view key, std::string_view what) {
  const Entry* found = entry(key);
  problems_->add(found ? found->value.place : table_->place, path_of(key), what);
}

void TableReader::missing(std::string_view key, std::string_view what) {
  if (table_->kind != Kind::Table) return;  // has been reported
  problems_->add(table_->place, path_of(key), fmt::format("is missing: {}", what));
}

void TableReader::finish() {
  std::vector<std::string_view> known(known_.begin(), known_.end());
  for (const Entry& one : table_->entries) {
    if (std::find(known.begin(), known.end(), one.key) != known.end()) continue;
    std::string what = "unknown key";
    if (const auto meant = closest(one.key, known)) {
      what += fmt::format("; did you mean '{}'?", *meant);
    } else {
      what += fmt::format(" (known: {})", join(known));
    }
    problems_->add(one.place, path_of(one.key), what);
  }
}

}  // namespace nvshare::config
