#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/broker/records.h"

// The names that the scheduler gives to users and containers. Runs have names of their own.
namespace nvshare::daemon {

// Letters of a container's id. Every runtime but LXC has ids of this length.
inline constexpr std::size_t kIdLength = 64;
// Letters of an id in its tenant's name, as the runtimes show it.
inline constexpr std::size_t kShownIdLength = 12;

// Only 0-9 and a-f.
bool is_hex(std::string_view text);
bool is_container_id(std::string_view text);

// "user-1000".
TenantName user_tenant(std::uint32_t uid);
// "container-" and the first letters of the id, or the name under LXC.
TenantName container_tenant(std::string_view id, std::uint32_t uid = 0);
// The user or container that is called so. Nothing for every other name.
std::optional<TenantName> tenant_called(const std::string& name, std::uint32_t uid = 0);

}  // namespace nvshare::daemon
