#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/arbiter/arbiter.h"
#include "daemon/broker/broker.h"
#include "daemon/lease/status_feed.h"
#include "daemon/lease/status_push.h"

// What services and dispatchers read of GPUs, times and classes.
namespace nvshare::daemon {

std::int64_t milliseconds(Duration duration);
// "2026-11-19T20:00:00.123Z" of milliseconds since 1970.
std::string utc_text(std::int64_t wall);
int index_of(const Broker& broker, GpuId gpu);
std::string key_of(const Broker& broker, GpuId gpu);
nlohmann::ordered_json counts_of(const core::LeaseCounts& counts);
// In one line. A text of a service may be no UTF-8.
std::string text_of(const nlohmann::ordered_json& body);

struct StatusSources {
  const core::Arbiter& arbiter;
  const Broker& broker;
  const std::function<std::int64_t(Time)>& wall_of;
  std::optional<PushCounts> push;
};
// Of all GPUs and classes.
StatusText status_text(const StatusSources& of, Time now);

}  // namespace nvshare::daemon
