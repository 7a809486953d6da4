// The metered policy's accounts: what each tenant may use, what it is entitled to, and how readings
// of the meter are charged.

#include <algorithm>

#include "core/metered_engine.h"

namespace nvshare::core {
namespace {

constexpr int kHandOversWorth = 20;
constexpr int kLongestResume = 4;  // times `turn`

// Wide in between: a gap may be years.
Duration percent_of(Duration value, int percent) {
  return Duration{static_cast<Duration::rep>(static_cast<Fixed>(value.count()) * percent / 100)};
}

}  // namespace

// --- allowance ---------------------------------------------------------------------------------

Duration MeteredEngine::cap_of(const Share& share) const {
  return std::max(percent_of(config_.burst_window, share.limit()), resume_level());
}

// A throttled tenant waits until one turn is worth the hand-overs: to it, and back to whom it
// stops.
Duration MeteredEngine::resume_level() const {
  return std::clamp(kTurnsPerHandOver * 2 * hand_over_, config_.turn,
                    kLongestResume * config_.turn);
}

// What is earned during a turn would be spent by ever shorter ones behind it.
Duration MeteredEngine::worth_handing_over() const {
  return std::min(kHandOversWorth * hand_over_, config_.turn / 2);
}

void MeteredEngine::catch_up(Time now) {
  refill_clock_ += (now - now_).count() * refill_rate_;
  now_ = now;
}

Duration MeteredEngine::allowance_now(const Share& share) const {
  const MeterAccount& account = share.meter;
  if (!account.active) return account.allowance;
  return account.allowance + from_fixed((refill_clock_ - account.mark) * share.limit() / 100);
}

// How long until the refill clock stands there.
Duration MeteredEngine::until_refilled(Fixed refill) const {
  const Fixed left = std::max<Fixed>(0, refill - refill_clock_);
  return wait_of((left + refill_rate_ - 1) / refill_rate_);
}

void MeteredEngine::settle(Share& share) {
  MeterAccount& account = share.meter;
  if (!account.active) return;
  // Whole nanoseconds go to the allowance; the mark keeps what is left of one.
  const Fixed refill = (refill_clock_ - account.mark) * share.limit() / 100;
  const Fixed whole = (refill >> kFixedBits) << kFixedBits;
  const Duration before = account.allowance;
  account.allowance += from_fixed(whole);
  // Without a limit there is nothing to save: only what is owed is paid off.
  if (!share.limited())
    account.allowance = std::min(account.allowance, std::max(before, config_.turn));
  account.mark = refill_clock_ - (refill - whole) * 100 / share.limit();
}

// GPU time used in proportion to what the tenant asked for. Only compared within its own tier.
VirtualTime MeteredEngine::virtual_time(const Share& share, Duration used) {
  return VirtualTime{used.count()} * 100 / share.limit();
}

Duration MeteredEngine::held_since_bill(const Client& client, Time now) {
  return now - std::max(client.granted_at, client.billed_at);
}

void MeteredEngine::add_virtual_time(Share& share, Duration used) {
  const bool queued = share.meter.runnable;
  if (queued) dequeue(share);
  share.meter.vtime += virtual_time(share, used);
  if (queued) enqueue_if_runnable(share);
}

// A client that nobody contended with may have run for long without being metered. Who joins does
// not wait for its bill: it starts where the runner stands now.
void MeteredEngine::charge_ahead(Client& client) {
  const Duration until_now = now_ - client.granted_at;
  const Duration charged = std::max(client.reported, client.charged_ahead);
  if (until_now <= charged) return;
  client.charged_ahead = until_now;
  Share& share = *client.share;
  add_virtual_time(share, until_now - charged);
  if (runnable_ == 0) raise_floor_of(tier_of(share), share.meter.vtime);
}

// Best effort is kept `best_effort_percent` of the time, whatever the limits have saved up.
Duration MeteredEngine::best_effort_owed() const {
  const Duration refill = percent_of(now_ - best_effort_mark_, config_.best_effort_percent);
  return std::min(best_effort_balance_ + refill, config_.turn);
}

// Having been served is what was owed. A kernel that went on beyond its turn is paid for in full
// before best effort goes ahead of limits again.
void MeteredEngine::charge_best_effort(const Client& client, Duration used, Time now) {
  Duration overrun = Duration::zero();
  if (client.phase == Phase::Stopping) {
    overrun = std::min(used, now - client.dropped_at);
  } else if (client.budget) {
    overrun = std::max(overrun, used - config_.turn);
  }
  best_effort_balance_ = std::min({best_effort_owed(), Duration::zero(), -overrun});
  best_effort_mark_ = now_;
}

// How long the tenant has had no limit, in all.
Duration MeteredEngine::unlimited_time(const Share& share) const {
  const MeterAccount& account = share.meter;
  return account.unlimited_before + (share.limited() ? 0ns : now_ - account.unlimited_since);
}

// The tenants that want the GPU have changed: limits that do not fit shrink in proportion.
void MeteredEngine::apply_load() {
  const int room = unlimited_active_ > 0 ? 100 - config_.best_effort_percent : 100;
  refill_rate_ = limited_sum_ > room ? kOne * room / limited_sum_ : kOne;
}

void MeteredEngine::activate(Share& share) {
  MeterAccount& account = share.meter;
  const Duration gap = now_ - account.idle_since;
  // A short gap is part of a bursty client's rhythm and loses nothing. After a long one it starts
  // afresh: debts are paid off, but nothing is saved up to run away with.
  const bool short_gap = !account.fresh && gap <= config_.burst_window;
  if (share.limited()) {
    const Duration saved = account.allowance + percent_of(gap, share.limit());
    account.allowance = short_gap ? std::min(saved, std::max(account.allowance, cap_of(share)))
                        : account.fresh ? resume_level()
                                        : std::min(saved, resume_level());
  }
  if (running_.size() == 1) charge_ahead(*running_.begin()->second);
  (share.limited() ? limited_sum_ : unlimited_active_) += share.limited() ? share.limit() : 1;
  const Duration lag = short_gap ? config_.burst_window : Duration::zero();
  const Tier tier = tier_of(share);
  const VirtualTime lowest = lowest_vtime_[tier];
  account.vtime = account.tier == tier ? std::max(account.vtime, lowest - lag.count()) : lowest;
  account.tier = tier;
  account.mark = refill_clock_;
  account.fresh = false;
  account.active = true;
  ++active_;
}

void MeteredEngine::deactivate(Share& share) {
  MeterAccount& account = share.meter;
  settle(share);
  account.idle_since = now_;
  account.active = false;
  --active_;
  (share.limited() ? limited_sum_ : unlimited_active_) -= share.limited() ? share.limit() : 1;
  if (account.throttled) {
    throttled_.erase({account.resumes_at, share.seq, &share});
    account.throttled = false;
  }
}

// A client that stops and wants more at the same moment was never idle: looked at in decide().
void MeteredEngine::deactivate_idle() {
  for (const auto& [seq, share] : std::exchange(maybe_idle_, {})) {
    if (share->wanting + share->parked == 0 && share->meter.active) deactivate(*share);
  }
}

// A tenant whose memory is not there yet goes on earning what it will use when it is. It has not
// fallen behind by that, or it would keep everybody else waiting.
void MeteredEngine::park(Client& client, bool parked, Time now) {
  catch_up(now);
  Share& share = *client.share;
  share.parked += parked ? 1 : -1;
  if (parked && !share.meter.active) activate(share);
  if (parked) return;
  maybe_idle_.emplace(share.seq, &share);
  const bool queued = share.meter.runnable;
  if (queued) dequeue(share);
  share.meter.vtime = std::max(share.meter.vtime, lowest_vtime_[tier_of(share)]);
  if (queued) enqueue_if_runnable(share);
}

// Moves a settled, active share to or from the throttled ones, as its allowance says.
void MeteredEngine::note_allowance(Share& share) {
  MeterAccount& account = share.meter;
  if (account.throttled) {
    throttled_.erase({account.resumes_at, share.seq, &share});
    account.throttled = false;
  } else if (account.allowance > worth_handing_over()) {
    return;
  }
  if (!share.limited() || account.allowance >= resume_level()) return;
  account.throttled = true;
  if (!share.first_throttle) share.first_throttle = now_;
  const Fixed missing = to_fixed(resume_level() - account.allowance);
  account.resumes_at = account.mark + missing * 100 / share.limit() + kOne;
  throttled_.emplace(account.resumes_at, share.seq, &share);
}

void MeteredEngine::resume_refilled() {
  while (!throttled_.empty() && std::get<0>(*throttled_.begin()) <= refill_clock_) {
    Share& share = *std::get<2>(*throttled_.begin());
    settle(share);
    throttled_.erase(throttled_.begin());
    share.meter.throttled = false;
    enqueue_if_runnable(share);
  }
}

// --- the meter ---------------------------------------------------------------------------------

// Of each client by itself: readings of several processes come together.
void MeteredEngine::note_duty(Client& client, Duration used, Time now) {
  const Duration passed = std::max(now - client.duty_at, used);
  client.duty_at = now;
  if (passed <= Duration::zero()) return;
  const Duration weight = std::min(passed, kDutyMemory);
  const std::int64_t sample =
      static_cast<std::int64_t>(static_cast<Fixed>(used.count()) * kFull / passed.count());
  const std::int64_t before = client.duty_ppm;
  client.duty_ppm += (sample - before) * weight.count() / kDutyMemory.count();
  if (client.phase != Phase::Off) duty_sum_ppm_ += client.duty_ppm - before;
}

// Charges what the meter shows beyond what was charged for this grant already.
void MeteredEngine::bill(Client& client, Duration used, Time now) {
  Share& share = *client.share;
  MeterAccount& account = share.meter;
  settle(share);
  const Duration new_use = used - client.reported;
  const Duration ahead = std::max(Duration::zero(), client.charged_ahead - client.reported);
  client.reported = used;
  client.charged_ahead = Duration::zero();
  if (!billing_) return;
  note_duty(client, new_use, now);
  Duration charge = new_use;
  if (client.phase == Phase::Stopping && config_.tail_billing_percent < 100) {
    const Duration tail = std::min(new_use, now - client.dropped_at);
    charge -= tail - percent_of(tail, config_.tail_billing_percent);
  }
  share.billed += to_fixed(charge);
  const bool queued = account.runnable;
  if (queued) dequeue(share);
  // Virtual time counts what others went without: a turn that was held and not used as well.
  const bool in_demand = contended(share) || has_turn(client);
  const Duration held = in_demand && turns_ ? held_since_bill(client, now) : Duration::zero();
  const Duration had = std::max(charge, held);
  account.vtime += virtual_time(share, had - ahead);
  client.had += std::min(had, now - client.had_since).count();
  client.billed_at = client.had_since = now;
  if (share.limited()) {
    const Duration before = account.allowance;
    // What it did in the part of this grant that had no limit is free.
    const Duration unlimited = unlimited_time(share) - client.unlimited_mark;
    client.unlimited_mark += unlimited;
    account.allowance -= std::max(Duration::zero(), charge - unlimited);
    const Duration overrun = std::min(Duration::zero(), account.allowance);
    if (before > Duration::zero() && config_.carryover_percent < 100) {
      account.allowance += percent_of(-overrun, 100 - config_.carryover_percent);
    }
    note_allowance(share);
  } else {
    charge_best_effort(client, new_use, now);
  }
  if (queued) enqueue_if_runnable(share);
}

}  // namespace nvshare::core
