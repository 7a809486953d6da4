#pragma once

#include <optional>

#include "base/units.h"
#include "core/event.h"
#include "core/ids.h"

namespace nvshare::properties {

enum class Held { No, Yes, Told, Overdue };  // Told: to drop, and has not answered

// A client as anybody can know it who has seen the events and the decisions.
struct ShadowClient {
  core::ClientId id;
  core::TenantId tenant;
  core::GpuId gpu;
  bool asked = false;
  core::ClientLease lease = core::ClientLease::None;
  Held held = Held::No;
  std::optional<Duration> budget;
  Time granted_at{};
  Time dropped_at{};
  Duration reported{};  // by Usage, of this grant
  Time read_at{};       // when it last was
  Bytes allocated{};
  Bytes pinned{};
  Bytes resident{};
  Bytes awaits{};    // pinned, asked for and not given
  Bytes incoming{};  // told to bring in and not reported
  Bytes outgoing{};  // told to send out and not reported
  Bytes in_left{};   // of orders, also where what they were for has been freed
  Bytes out_left{};
  bool failed = false;  // it did not move what it was told to, and was not told again to send out

  bool waits() const { return (asked || awaits.count > 0 || is_called()) && held == Held::No; }
  bool is_called() const { return lease == core::ClientLease::Held && !complete(); }
  Bytes absent() const { return allocated - resident - awaits; }
  bool complete() const { return resident == allocated && outgoing.count == 0; }
};

}  // namespace nvshare::properties
