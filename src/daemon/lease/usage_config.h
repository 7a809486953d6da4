#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "daemon/settings.h"

// The configuration of leases as JSON, in the shape and with the names of the requirement.
namespace nvshare::daemon {

nlohmann::ordered_json usage_config(const Settings& settings);

// The settings that a change says. An error, and no settings, when any of it is not understood.
Result<SettingTexts> settings_in(const nlohmann::ordered_json& change);

}  // namespace nvshare::daemon
