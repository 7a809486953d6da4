#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
#include "config/document.h"

namespace nvshare::config {

// Everything that is wrong with a document, in the order of its lines.
class Problems {
 public:
  explicit Problems(std::string source) : source_(std::move(source)) {}

  // `key` is the whole path ("client.cores").
  void add(Place place, std::string_view key, std::string_view what);
  bool empty() const { return found_.empty(); }
  // "SOURCE:LINE:COLUMN: KEY: what", by line and column.
  std::vector<std::string> lines() const;

 private:
  std::string source_;
  std::multimap<std::pair<int, int>, std::string> found_;  // by line and column
};

// A word of a document and what it stands for.
template <typename T>
using Choices = std::vector<std::pair<std::string_view, T>>;

// Reads the keys of one table. Each way to read answers nothing when the key is not there or its
// value is wrong; what is wrong goes to the problems. Whatever has not been asked for by the time
// of finish() is an unknown key.
class TableReader {
 public:
  // `table` and `problems` outlive the reader. A value that is no table is a problem, and the
  // reader is then empty. `path` names the table in messages; "" for the root.
  TableReader(const Value& table, std::string path, Problems& problems);

  std::optional<std::string> text(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high);
  // With or without a point.
  std::optional<double> number(std::string_view key);
  std::optional<Duration> duration(std::string_view key, Duration low, Duration high);
  std::optional<Bytes> bytes(std::string_view key, Bytes low, Bytes high);
  // As parse_memory_limit() takes it.
  std::optional<Bytes> memory_limit(std::string_view key);
  // A list of tables; empty when the key is not there.
  std::vector<TableReader> tables(std::string_view key);
  std::optional<TableReader> table(std::string_view key);
  // The value as it stands, of whatever kind.
  const Value* find(std::string_view key);

  template <typename T>
  std::optional<T> choice(std::string_view key, const Choices<T>& choices) {
    std::vector<std::string_view> words;
    for (const auto& [word, meaning] : choices) words.push_back(word);
    const auto index = word_index(key, words);
    return index ? std::optional<T>(choices[*index].second) : std::nullopt;
  }

  // A problem with the key's value, or, where the key is missing, with the table.
  void problem(std::string_view key, std::string_view what);
  void missing(std::string_view key, std::string_view what);
  bool has(std::string_view key) const { return entry(key) != nullptr; }
  std::string path_of(std::string_view key) const;
  // Reports the keys nobody has asked for.
  void finish();

 private:
  const Entry* entry(std::string_view key) const;
  const Value* find(std::string_view key, Kind kind, std::string_view example);
  std::optional<std::size_t> word_index(std::string_view key,
                                        const std::vector<std::string_view>& words);

  const Value* table_;
  std::string path_;
  Problems* problems_;
  std::vector<std::string> known_;
};

}  // namespace nvshare::config
