#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "core/config.h"
#include "core/decision.h"
#include "core/event.h"
#include "core/placement.h"
#include "core/reason.h"
#include "core/snapshot.h"

namespace nvshare::core {

struct Tenant;
struct Client;
class Gpu;

// The scheduler, as a function: events and their times go in, decisions come out. No clock, no
// threads, no input or output; the same events at the same times give the same decisions, in the
// daemon, in the simulator and in tests.
class Core {
 public:
  // `config` has no problems(). `now` is where time begins.
  explicit Core(const Config& config, Time now = Time{});
  ~Core();
  Core(Core&&) noexcept;
  Core& operator=(Core&&) noexcept;

  // Takes one event. Times never go back. An event that makes no sense (unknown or duplicate id, a
  // value out of range, a release without a grant) is refused with the reason, and nothing changes.
  Result<Decisions> step(const Event& event, Time now);

  // When a Tick is due, if nothing else happens before. Constant in the number of clients.
  std::optional<Time> next_wakeup() const;

  // Why the client runs or waits; and in words that can be shown.
  Result<Reason> reason(ClientId client, Time now) const;
  Result<std::string> explain(ClientId client, Time now) const;
  // to_text(), with the name of the reason's `level`.
  std::string text_of(const Reason& reason) const;
  // One client, or nothing when it is not known; all there is.
  std::optional<ClientView> view(ClientId client) const;
  Snapshot snapshot() const;
  // How the tenant sleeps; nothing when it is awake or not known.
  std::optional<SleepView> sleep_of(TenantId tenant) const;
  // What clients can have on the GPU together.
  std::optional<Bytes> safe_limit(GpuId gpu) const;
  // The same, whatever a client found in its way a moment ago: memory is promised by this.
  std::optional<Bytes> promised_limit(GpuId gpu) const;
  // What safe_limit() would be with that measurement.
  std::optional<Bytes> safe_limit_with(const OverheadMeasured& what) const;
  // How much more memory the client could have. Only step() refuses any.
  std::optional<MemoryRoom> memory_room(ClientId client) const;
  // What of a claim may be counted as being on the GPU: what nobody is counted with, within the
  // tenant's limit.
  Bytes claim_room(ClientId client) const;
  // What the client is to have of the host's memory (residency_host.cpp).
  HostNeed host_need(ClientId client) const;
  // The GPU for something new, by the rule that a client without a GPU is placed by (placement.h).
  // Changes nothing. Nothing when there is no GPU to choose from.
  std::optional<Placement> place(const PlaceWish& wish) const;
  const Config& config() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nvshare::core
