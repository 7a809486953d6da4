#pragma once

#include <optional>

#include "base/units.h"

// systemd's notifications, as sd_notify(3) describes them.
namespace nvshare::daemon {

// "READY=1" and the like, to whom NOTIFY_SOCKET names; nothing without it.
void notify_manager(const char* state);

// How often the manager wants to hear "WATCHDOG=1" from this process: half of what it allows.
// Nothing when it does not ask.
std::optional<Duration> watchdog_period();

}  // namespace nvshare::daemon
