#pragma once

#include <cstdint>
#include <vector>

#include "daemon/settings_tables.h"

namespace nvshare::daemon {

// The users and groups that this machine knows. An answer may come from the network, and take as
// long as that takes.
NameLookup system_names();
// The numbers of all groups that the user is in; none for a user that the machine does not know.
std::vector<std::uint32_t> groups_of_user(std::uint32_t uid);

}  // namespace nvshare::daemon
