#include "daemon/lease/request_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

namespace nvshare::daemon {
namespace {

constexpr std::int64_t kMostMilliseconds = 86'400'000;  // what a request may say: a day
// Of a body. Each key is compared with all before it, and each level takes stack, so that larger
// numbers let a request hold up all others (LeaseApi.ABodyIsSmallInside).
constexpr std::size_t kMostKeys = 64;
constexpr int kDeepest = 8;

}  // namespace

Result<Request> body_of(const std::string& text) {
  if (text.empty()) return Request::object();
  // The parser would take a NUL for the end of the text, and leave the rest unread.
  if (text.find('\0') != std::string::npos) return Error{"the body is not JSON"};
  std::size_t keys = 0;
  bool too_much = false;
  const auto look = [&](int depth, Request::parse_event_t event, Request&) {
    if (event == Request::parse_event_t::key) ++keys;
    too_much |= keys > kMostKeys || depth > kDeepest;
    return !too_much;
  };
  Request body = Request::parse(text, look, false);
  if (too_much) {
    return Error{
        fmt::format("the body has more than {} keys, or more than {} levels", kMostKeys, kDeepest)};
  }
  if (body.is_discarded()) return Error{"the body is not JSON"};
  if (!body.is_object()) return Error{"the body is not a JSON object"};
  return body;
}

Result<void> only(const Request& body, std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : body.items()) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    return Error{fmt::format("there is no '{}' in such a request", key)};
  }
  return {};
}

Result<void> take_time(const Request& body, const char* key, std::optional<Duration>& into,
                       std::int64_t least) {
  const auto value = number_in(body, key, least, kMostMilliseconds);
  if (!value) return value.error();
  if (*value) into = std::chrono::milliseconds(**value);
  return {};
}

Result<void> take_trace(const Request& body, std::string& into) {
  constexpr std::size_t kLongestTrace = 256;
  if (!body.contains("trace")) return {};
  auto text = text_in(body, "trace");
  if (!text) return Error{"trace: it is not a text"};
  if (text->size() > kLongestTrace) {
    return Error{fmt::format("trace: it has more than {} bytes", kLongestTrace)};
  }
  into = std::move(*text);
  return {};
}

}  // namespace nvshare::daemon
