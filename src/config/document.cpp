#include "config/document.h"

#include <fmt/format.h>

#if NVSHARE_HAVE_TOML
#include <toml++/toml.h>
#endif

namespace nvshare::config {

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::Text:
      return "a text";
    case Kind::Integer:
      return "a whole number";
    case Kind::Number:
      return "a number with a fraction";
    case Kind::Boolean:
      return "true or false";
    case Kind::Array:
      return "a list";
    case Kind::Table:
      return "a table";
    case Kind::Date:
      return "a date or time";
  }
  return "?";
}

#if NVSHARE_HAVE_TOML

namespace {

Place place_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

Value convert(const toml::node& node) {
  Value value;
  value.place = place_of(node.source());
  if (const auto* table = node.as_table()) {
    value.kind = Kind::Table;
    for (const auto& [key, child] : *table) {
      value.entries.push_back({std::string(key.str()), place_of(key.source()), convert(child)});
    }
  } else if (const auto* array = node.as_array()) {
    value.kind = Kind::Array;
    for (const toml::node& child : *array) value.items.push_back(convert(child));
  } else if (const auto* text = node.as_string()) {
    value.kind = Kind::Text;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = Kind::Integer;
    value.integer = integer->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = Kind::Boolean;
    value.boolean = boolean->get();
  } else {
    value.kind = node.is_floating_point() ? Kind::Number : Kind::Date;
  }
  return value;
}

}  // namespace

Result<Value> parse_toml(std::string_view toml, const std::string& source) {
  const toml::parse_result parsed = toml::parse(toml);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    const Place place = place_of(error.source());
    return Error{
        fmt::format("{}:{}:{}: {}", source, place.line, place.column, error.description())};
  }
  return convert(parsed.table());
}

#else

Result<Value> parse_toml(std::string_view, const std::string& source) {
  return Error{source + ": this build has no TOML support"};
}

#endif

}  // namespace nvshare::config
