#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"
#include "daemon/serve/request.h"

// What the bodies of HTTP requests say, and what is wrong with them.
namespace nvshare::daemon {

// The object that a body is; an empty body is an empty object.
Result<Request> body_of(const std::string& text);
// An error for a key that is none of these.
Result<void> only(const Request& body, std::initializer_list<std::string_view> keys);
// Milliseconds, from `least` to a day, if the key is there.
Result<void> take_time(const Request& body, const char* key, std::optional<Duration>& into,
                       std::int64_t least = 0);
Result<void> take_trace(const Request& body, std::string& into);

}  // namespace nvshare::daemon
