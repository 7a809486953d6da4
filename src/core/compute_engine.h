#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/decision.h"
#include "core/state.h"

namespace nvshare::core {

// So many nanoseconds, as far as they can be added to a time: debts can take centuries to pay off.
// Who wakes up too early by that looks again.
constexpr Duration wait_of(Fixed nanoseconds) {
  constexpr Duration kLongest = 24h * 365 * 10;
  return Duration{static_cast<Duration::rep>(std::min<Fixed>(nanoseconds, kLongest.count()))};
}

// Decides which of the clients that could run do run, on one GPU, and bills them. The owner calls
// decide() at the end of every step in which it called anything else, with the same time; what was
// told in between takes effect there.
class ComputeEngine {
 public:
  virtual ~ComputeEngine() = default;

  virtual void attach(Share& share, Time now) = 0;
  virtual void detach(Share& share) = 0;  // has no clients and no parts
  // Around a change of its limits or those of a tenant that it is a part of. Before: parts come
  // before what they are parts of. After: the other way round.
  virtual void before_limits_change(Share& share, Time now) = 0;
  virtual void after_limits_change(Share& share, bool cores_changed, Time now) = 0;
  // The share has got parts, and what it had of clients is in `own` now. Comes after `own` was
  // attached and before after_limits_change() of it.
  virtual void become_parent(Share& share, Time now) = 0;

  virtual void make_ready(Client& client, Time now) = 0;    // Off -> Ready
  virtual void make_unready(Client& client, Time now) = 0;  // Ready -> Off
  // The client has work and waits for its memory, or does so no longer. It is Off.
  virtual void park(Client& client, bool parked, Time now) = 0;
  // Running -> Stopping. The drop is put into `out`.
  virtual void stop(Client& client, const Reason& why, Time now, Decisions& out) = 0;
  virtual void mark_overdue(Client& client, Time now) = 0;  // Stopping -> Overdue
  // Running, Stopping or Overdue -> Off. `used` is the meter's reading since the grant, `gaps` the
  // time in between in which the client had nothing on the GPU.
  virtual void release(Client& client, Duration used, Duration gaps, Time now) = 0;
  // A reading while it runs; never less than an earlier one.
  virtual void read_meter(Client& client, Duration used, Time now) = 0;

  // Whether clients' work can be on the GPU at the same time.
  virtual void set_overlap(bool) {}
  // While off, nothing is billed. Readings of the meter are taken note of all the same.
  virtual void set_billing(bool on, Time now) = 0;
  // Ready -> Running whatever the rules say (scheduling is switched off).
  virtual void grant_now(Client& client, const Reason& why, Time now, Decisions& out) = 0;

  virtual void decide(Time now, Decisions& out) = 0;
  // Clients told to stop since the last call.
  std::vector<Client*> take_stopped() { return std::exchange(stopped_, {}); }
  virtual std::optional<Time> next_wakeup() const = 0;
  virtual Reason explain(const Client& client, Time now) const = 0;

 protected:
  // The share and all that it is a part of.
  template <typename Function>
  static void each_level(Share& share, Function call) {
    for (Share* one = &share; one != nullptr; one = one->parent) call(*one);
  }
  // What every engine does to the records when a client changes its phase.
  static void enter_ready(Client& client, std::uint64_t seq);
  static void leave_ready(Client& client);
  static void enter_running(Client& client, std::uint64_t seq, std::optional<Duration> budget,
                            const Reason& why, Time now, Decisions& out);
  void enter_stopping(Client& client, const Reason& why, Time now, Decisions& out);
  static void enter_overdue(Client& client);
  static void leave_running(Client& client, Time now);

 private:
  std::vector<Client*> stopped_;
};

std::unique_ptr<ComputeEngine> make_engine(const Config& config, Time now);

}  // namespace nvshare::core
