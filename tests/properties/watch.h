#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bills.h"
#include "core/core.h"
#include "shadow.h"

namespace nvshare::properties {

// What must hold after every event, whoever sends it. One test each (events_test.cpp).
enum class Rule {
  Memory,    // no decision puts more on a GPU than is safe, or gives a tenant more than its limit
  Grants,    // asked, granted, told to drop, released: in this order, each once
  Serial,    // where clients take turns, one at a time
  Books,     // what the core shows is what it was told and what it decided
  Bills,     // time billed is time used, to the nanosecond
  Wakeups,   // never due in the past once the tick was given, never spinning
  Explains,  // whoever waits is told why
  Refused,   // a refused event changes nothing
  Sleep,     // a sleeper does not run, sends out what it can, and wakes when it asks
};

struct Broken {
  Rule rule;
  std::string what;
};

// Follows a core from outside, through events and decisions alone, and compares. Cheap enough for
// the fuzzer: linear in the clients that are there.
class Watch {
 public:
  Watch(const core::Config& config, Time begin);

  void after(const core::Event& event, Time now, const Result<core::Decisions>& result,
             const core::Core& core);

  void expect(bool holds, Rule rule, const std::string& what) {
    if (!holds) fail(rule, what);
  }

  // The first of each rule, in the order found.
  const std::vector<Broken>& broken() const { return broken_; }
  const std::map<core::ClientId, ShadowClient>& clients() const { return clients_; }
  bool scheduling() const { return scheduling_; }
  const core::Snapshot& seen() const { return seen_; }

 private:
  void fail(Rule rule, const std::string& what);
  void note(const core::GpuRemoved& e, Time now);
  void note(const core::TenantAdded& e, Time now);
  void note(const core::TenantRemoved& e, Time now);
  void note(const core::ClientAdded& e, Time now);
  void note(const core::ClientGone& e, Time now);
  void note(const core::ClientLeased& e, Time now);
  void note(const core::WorkRequested& e, Time now);
  void note(const core::Released& e, Time now);
  void note(const core::Usage& e, Time now);
  void note(const core::MemoryChanged& e, Time now);
  void note(const core::MemoryFound& e, Time now);
  void note(const core::MemoryMoved& e, Time now);
  void note(const core::SchedulingSwitched& e, Time now);
  void note(const core::ConfigChanged& e, Time now);
  void note(const auto&, Time) {}  // the others change no client

  void obey(ShadowClient& client, const core::Place& d, Time now);
  void obey(ShadowClient& client, const core::Grant& d, Time now);
  void obey(ShadowClient& client, const core::Drop& d, Time now);
  void obey(ShadowClient& client, const core::SendOut& d, Time now);
  void obey(ShadowClient& client, const core::BringIn& d, Time now);
  void obey(ShadowClient& client, const core::WaitForMemory& d, Time now);
  void obey(ShadowClient& client, const core::MemoryAvailable& d, Time now);
  void obey(ShadowClient& client, const core::MemoryGiven& d, Time now);
  void obey(ShadowClient& client, const core::MemoryWithdrawn& d, Time now);
  void obey(ShadowClient& client, const core::MemoryRefused& d, Time now);
  void obey(ShadowClient& client, const core::Overdue& d, Time now);
  void obey(ShadowClient& client, const core::Sleeps& d, Time now);
  void obey(ShadowClient& client, const core::ReadMeter& d, Time now);

  void check_state(const core::Core& core, const core::Snapshot& snapshot, const core::Event& event,
                   Time now);
  void check_sleepers(const core::Snapshot& now);
  void check_client(const core::ClientView& view);
  void check_memory(const core::Snapshot& now, const core::Event& event);
  void check_limits(const core::Snapshot& now, core::ClientId asked);
  const core::TenantView* tenant_of(core::TenantId id) const;
  bool is_paused(core::TenantId id) const;
  void check_waits(const core::Core& core, Time now);
  void count_ticks(const core::Event& event, Time now, const core::Core& core);
  void must_be_unchanged(const core::Core& core);
  void forget(core::ClientId id, Time now);

  core::Config config_;
  bool scheduling_ = true;
  std::map<core::ClientId, ShadowClient> clients_;
  Bills bills_;
  core::Snapshot seen_;
  std::vector<core::TenantView> tenants_;  // after the present event
  std::optional<Time> wakeup_;
  std::optional<core::ClientId> asked_for_memory_;  // by the present event
  Bytes unreserved_{};  // what has come in by the present event, and had no room kept for it
  std::size_t next_to_explain_ = 0;
  Time quiet_since_{};
  Duration shortest_{};  // of what recurs by itself, as configured since quiet_since_
  int ticks_ = 0;
  std::vector<Broken> broken_;
};

// "grants: ...", one line each.
std::string to_lines(const std::vector<Broken>& broken);

}  // namespace nvshare::properties
