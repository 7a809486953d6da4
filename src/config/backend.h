#pragma once

#include <optional>
#include <string_view>

#include "wire/messages.h"

namespace nvshare::config {

// What they are called by people.
inline constexpr std::string_view kBackendNames = "native, swap, managed";
std::string_view name_of(wire::Backend backend);
// Nothing for what is none of kBackendNames.
std::optional<wire::Backend> backend_by_name(std::string_view name);

}  // namespace nvshare::config
