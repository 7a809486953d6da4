#include "cli/show/fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace nvshare::cli::fields {

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

std::int64_t integer(const Json* value) {
  if (value == nullptr) return 0;
  if (value->is_number_unsigned()) {
    constexpr std::uint64_t most = INT64_MAX;
    return static_cast<std::int64_t>(std::min(value->get<std::uint64_t>(), most));
  }
  if (value->is_number_integer()) return value->get<std::int64_t>();
  if (!value->is_number_float()) return 0;
  const double number = value->get<double>();
  return number > -9e18 && number < 9e18 ? static_cast<std::int64_t>(number) : 0;
}

std::optional<double> number(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

std::string text(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr || value->is_null()) return "";
  if (value->is_string()) return value->get<std::string>();
  return value->dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool flag(const Json& object, const char* key, bool otherwise) {
  const Json* value = find(object, key);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
}

long whole(const Json& object, const char* key) {
  return static_cast<long>(integer(find(object, key)));
}

std::optional<long> some_whole(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return static_cast<long>(integer(value));
}

std::string text_of(const Json& json) {
  return json.is_string() ? json.get<std::string>() : std::string();
}

std::vector<const Json*> elements(const Json& object, const char* key) {
  std::vector<const Json*> all;
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_array()) return all;
  for (const Json& one : *value) all.push_back(&one);
  return all;
}

Result<Json> answer_with(const std::string& json, const char* key) {
  Json answer = Json::parse(json, nullptr, false);
  if (find(answer, key) == nullptr) {
    return Error{std::string("the scheduler's answer lacks '") + key +
                 "': is it of another version?"};
  }
  return answer;
}

std::string line(const Json& request) {
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nvshare::cli::fields
