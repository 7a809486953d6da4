#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nvshare::config {

// Where something stands in a file, counted from 1; 0 when that is not known.
struct Place {
  int line = 0;
  int column = 0;
};

enum class Kind { Text, Integer, Number, Boolean, Array, Table, Date };

// "a text", "a whole number", ...: for messages.
std::string_view name_of(Kind kind);

struct Entry;

// A value of a configuration document, free of the library that read it. Only the member that
// belongs to `kind` means anything; a Number has its text. A Date has no value, because no setting
// takes one.
struct Value {
  Kind kind = Kind::Table;
  Place place;
  std::string text;
  std::int64_t integer = 0;
  bool boolean = false;
  std::vector<Value> items;
  std::vector<Entry> entries;
};

// A value as it would stand in the environment; nothing for a kind that no setting has.
std::optional<std::string> as_text(const Value& value);

struct Entry {
  std::string key;
  Place place;  // of the key
  Value value;
};

// The document's root table, or what is wrong with its syntax: "SOURCE:LINE:COLUMN: what". A build
// without a TOML library answers every document with one error that says so.
Result<Value> parse_toml(std::string_view toml, const std::string& source);

}  // namespace nvshare::config
