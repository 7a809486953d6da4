#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "daemon/settings_tables.h"

// Values of a request on the control socket. A request is an object.
namespace nvshare::daemon {

using Request = nlohmann::ordered_json;

std::optional<std::string> text_in(const Request& request, const char* key);
// A whole number from `low` to `high`, if the key is there.
Result<std::optional<std::int64_t>> number_in(const Request& request, const char* key,
                                              std::int64_t low, std::int64_t high);
// A truth value; false when the key is not there.
Result<bool> flag_in(const Request& request, const char* key);
// The limits that a request says; `"memory": null` lifts the limit.
Result<Declaration> limits_in(const Request& request);

}  // namespace nvshare::daemon
