#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

// Fields of the scheduler's JSON. None of them throws: a field that is missing or of another kind
// has its default.
namespace nvshare::cli::fields {

using Json = nlohmann::ordered_json;

// Null when `object` is no object or lacks the key.
const Json* find(const Json& object, const char* key);
// Numbers of any kind; what is no number, or does not fit, is 0. `value` may be null.
std::int64_t integer(const Json* value);
std::optional<double> number(const Json& object, const char* key);
// Text; other values as they are written in JSON.
std::string text(const Json& object, const char* key);
bool flag(const Json& object, const char* key, bool otherwise);
long whole(const Json& object, const char* key);
std::optional<long> some_whole(const Json& object, const char* key);
// The text itself; empty when it is none.
std::string text_of(const Json& json);
std::vector<const Json*> elements(const Json& object, const char* key);

template <typename T>
std::vector<T> list(const Json& object, const char* key, T (*read)(const Json&)) {
  std::vector<T> all;
  for (const Json* one : elements(object, key)) all.push_back(read(*one));
  return all;
}

// The answer, when it has `key`.
Result<Json> answer_with(const std::string& json, const char* key);

// One line. What is not UTF-8 comes from the command line; the scheduler will not know it.
std::string line(const Json& request);

}  // namespace nvshare::cli::fields
