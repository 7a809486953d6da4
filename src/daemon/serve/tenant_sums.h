#pragma once

#include <optional>

#include "daemon/broker/broker.h"

namespace nvshare::daemon {

// What a tenant and its parts have, for people.
struct TenantSums {
  Bytes allocated{};
  Bytes fullest{};  // allocated, on the GPU with most of it
  Bytes resident{};
  Bytes swapped{};
  Bytes beyond{};
  Bytes pinned{};
  Bytes incoming{};
  Bytes outgoing{};
  Bytes to_leave{};  // of clients that sleep: still to move out
};
TenantSums sums_of(const Broker& broker, const TenantRecord& tenant);

// How the tenant sleeps; nothing when it is awake. A tenant with parts sleeps while all of them
// that have processes do.
std::optional<core::SleepView> sleep_of(const Broker& broker, const TenantRecord& tenant);

}  // namespace nvshare::daemon
