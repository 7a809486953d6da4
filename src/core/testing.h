#pragma once

// A core with a hand on its clock, for tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/core.h"

namespace nvshare::core {

inline Config fixed_quantum() {
  Config config;
  config.quantum_mode = QuantumMode::Fixed;
  return config;
}

class TestCore {
 public:
  explicit TestCore(const Config& config = {}) : core(config) {}

  // Takes an event that must be taken.
  Decisions step(const Event& event) {
    auto result = core.step(event, now);
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return {};
    for (const Decision& d : *result) {
      if (const auto* out = std::get_if<SendOut>(&d.action)) told[out->client].out += out->bytes;
      if (const auto* in = std::get_if<BringIn>(&d.action)) told[in->client].in += in->bytes;
    }
    return *result;
  }
  // Takes an event that must be refused; the reason.
  std::string refused(const Event& event) {
    auto result = core.step(event, now);
    EXPECT_FALSE(result) << "was taken";
    return result ? "" : result.error().message;
  }
  // Lets time pass, ticking whenever the core asks for it; everything that was decided.
  Decisions pass(Duration duration) {
    const Time until = now + duration;
    Decisions all;
    while (core.next_wakeup() && *core.next_wakeup() <= until) {
      now = std::max(now, *core.next_wakeup());
      ++ticks;
      for (Decision& d : step(Tick{})) all.push_back(d);
    }
    now = until;
    return all;
  }
  void gpu(int id, Bytes total = gib(16)) {
    step(GpuAdded{GpuId{static_cast<std::uint64_t>(id)}, total});
  }
  void tenant(int id, int cores = 100) {
    step(TenantAdded{TenantId{static_cast<std::uint64_t>(id)},
                     "t" + std::to_string(id),
                     {.core_percent = cores, .memory = {}}});
  }
  // A tenant with one client, both called `id`, on GPU 0.
  void client(int id, int cores = 100) {
    tenant(id, cores);
    step(ClientAdded{cid(id), TenantId{static_cast<std::uint64_t>(id)}, GpuId{0}});
  }
  Decisions allocate(int id, Bytes bytes, Bytes pinned = {}) {
    return step(MemoryChanged{cid(id), bytes, pinned, view(id).resident});
  }
  // Two clients of 12 GiB on a GPU that can safely hold 14.4, of which the first runs.
  void two_that_do_not_fit() {
    gpu(0);
    client(1);
    client(2);
    allocate(1, gib(12));
    want(1);
    allocate(2, gib(12));
  }
  Decisions want(int id) { return step(WorkRequested{cid(id)}); }
  Decisions release(int id, Duration used, bool more = true) {
    return step(Released{cid(id), used, more});
  }
  // The client does what it was told with its memory, all at once.
  Decisions move_to(int id, Bytes resident, Duration took = 1ms) {
    return moved({cid(id), resident, took});
  }
  // What has moved, and what will not be, is no longer left of its orders.
  Decisions moved(MemoryMoved how) {
    const Bytes in = how.resident - core.view(how.client)->resident;
    Orders& left = told[how.client];
    left.out = std::max(Bytes{}, left.out + std::min(Bytes{}, in) - how.kept);
    left.in = std::max(Bytes{}, left.in - std::max(Bytes{}, in) - how.missing);
    how.out_left = left.out;
    how.in_left = left.in;
    return step(how);
  }
  // All move what they are told to.
  void obey(const Decisions& orders) {
    for (const Decision& d : orders) {
      if (const auto* out = std::get_if<SendOut>(&d.action)) {
        obey(moved({out->client, core.view(out->client)->resident - out->bytes, 1ms}));
      } else if (const auto* in = std::get_if<BringIn>(&d.action)) {
        obey(moved({in->client, core.view(in->client)->resident + in->bytes, 1ms}));
      }
    }
  }
  ClientView view(int id) const { return *core.view(cid(id)); }
  ClientState state(int id) const { return view(id).state; }
  std::string why(int id) const { return *core.explain(cid(id), now); }
  static ClientId cid(int id) { return ClientId{static_cast<std::uint64_t>(id)}; }

  struct Orders {
    Bytes out{};
    Bytes in{};
  };

  Core core;
  std::map<ClientId, Orders> told;  // to move, and not done
  Time now{};
  int ticks = 0;
};

// The decisions of one kind.
template <typename Action>
std::vector<Action> only(const Decisions& decisions) {
  std::vector<Action> found;
  for (const Decision& d : decisions) {
    if (const auto* action = std::get_if<Action>(&d.action)) found.push_back(*action);
  }
  return found;
}

}  // namespace nvshare::core
