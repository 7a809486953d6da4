// The metered policy's accounts: what each tenant may use, what it is entitled to, and how readings
// of the meter are charged.

#include <algorithm>

#include "base/pauses.h"
#include "core/metered_engine.h"

namespace nvshare::core {
namespace {

constexpr int kLongestResume = 4;  // times `turn`
constexpr int kLongestResumeCalm = 5;
constexpr Duration kBindsFor = 1s;  // after it was last seen to

// Wide in between: a gap may be years.
Duration percent_of(Duration value, int percent) {
  return Duration{static_cast<Duration::rep>(static_cast<Fixed>(value.count()) * percent / 100)};
}

}  // namespace

// --- allowance ---------------------------------------------------------------------------------

Duration MeteredEngine::cap_of(const Share& share) const {
  return std::max(percent_of(config_.burst_window, share.limit()), resume_level(share));
}

// When all is calm also most of a turn: with what it earns meanwhile that lasts for one.
Duration MeteredEngine::worth_coming_back(bool calm) const {
  const Duration two_hand_overs = worth(2 * kTurnsPerHandOver, kLongestResume, calm);
  if (!calm) return two_hand_overs;
  return std::max(two_hand_overs, worth(3 * kTurnsPerHandOver / 4, kLongestResumeCalm, true));
}

// A throttled tenant waits until one turn is worth the hand-overs: to it, and back to whom it
// stops. Where there is nobody else there are none, whatever they took before.
Duration MeteredEngine::resume_level(const Share& share) const {
  const int others = active_ - (share.meter.active ? 1 : 0);
  if (others == 0 && share.wanting <= 1) return config_.turn;
  return worth_coming_back(calm());
}

// What a tenant has that comes new, or after a long time. Where limits are all of the GPU little
// more is earned than spent, so it is of this that turns are made, also when all is calm later.
Duration MeteredEngine::level_afresh(const Share& share) const {
  return std::min(worth_coming_back(true), cap_of(share));
}

// How long its allowance lasts while no other limit waits, and it earns more: one turn, until
// somebody has refilled, instead of ever shorter ones by which what was earned in the last one is
// spent. A limit that has work in bursts may come back before that, and is not to find a long turn.
Duration MeteredEngine::lasts(const Share& share) const {
  const Duration has = share.meter.allowance;
  if (went_idle_ != share.seq && now_ - went_idle_at_ < config_.burst_window) return has;
  const Fixed all = kOne * 100;
  const Fixed spends = all - share.limit() * refill_rate_;
  Duration most = std::min(from_fixed(to_fixed(has) * all / spends), config_.burst_window);
  if (!throttled_.empty()) {
    most = std::min(most, until_refilled(std::get<0>(*throttled_.begin())));
  }
  return std::max(has, most);
}

// What is earned during a turn would be spent by ever shorter ones behind it, each of which begins
// with nothing queued.
Duration MeteredEngine::worth_a_turn() const {
  return config_.turn / 2;
}

void MeteredEngine::catch_up(Time now) {
  const Fixed refill = (now - now_).count() * refill_rate_;
  refill_clock_ += refill;
  if (slots_ > 0 && unlimited_holder_) {
    unlimited_held_[static_cast<std::size_t>(*unlimited_holder_)] += refill;
  }
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

// The part of the refill clock in which what a tenant earns is not kept beyond its cap: while a
// higher priority without a limit has the GPU, which can be for ever, and while who holds it does
// not use it, which adds up. What others use within their limits, or at its own priority, they will
// not use later; and who waits for its memory could not have used anything.
Fixed MeteredEngine::unkept(const Share& share) const {
  Fixed all = share.meter.parked > 0 ? 0 : held_unused_;
  for (int i = level_of(share) + 1; i < kLevels; ++i) {
    all += unlimited_held_[static_cast<std::size_t>(i)];
  }
  return all;
}

void MeteredEngine::settle(Share& share) {
  MeterAccount& account = share.meter;
  if (!account.active) return;
  // Whole nanoseconds go to the allowance; the mark keeps what is left of one.
  const Fixed refill = (refill_clock_ - account.mark) * share.limit() / 100;
  const Fixed whole = (refill >> kFixedBits) << kFixedBits;
  const Duration before = account.allowance;
  account.allowance += from_fixed(whole);
  const Fixed unkept_now = unkept(share);
  if (share.limited()) {
    const Fixed pushed_aside = (unkept_now - account.unkept_mark) * share.limit() / 100;
    const Duration kept = account.allowance - from_fixed(std::min(pushed_aside, whole));
    account.allowance = std::max(kept, std::min(account.allowance, cap_of(share)));
  } else {  // there is nothing to save: only what is owed is paid off
    account.allowance = std::min(account.allowance, std::max(before, config_.turn));
  }
  account.unkept_mark = unkept_now;
  account.mark = refill_clock_ - (refill - whole) * 100 / share.limit();
}

// GPU time used in proportion to what the tenant asked for. Only compared within its own tier.
VirtualTime MeteredEngine::virtual_time(const Share& share, Duration used) {
  return VirtualTime{used.count()} * 100 / share.limit();
}

// The part of a time that ends now in which clients took turns: virtual time counts what others
// went without, and while all run together nobody does.
Duration MeteredEngine::in_turns(Duration lately) const {
  return turns_ ? std::min(lately, now_ - turns_since_) : Duration::zero();
}

// Of what its meter has not told, what is in its tenant's virtual time already.
Duration MeteredEngine::charged_unread(const Client& client) {
  return std::max(Duration::zero(), client.meter.charged_ahead - client.meter.reported);
}

// Who joins starts where the last of those stands that it competes with. The holder moves on
// without a grant when nobody contends with it.
void MeteredEngine::raise_floor(const Share& holder) {
  Level& level = levels_[static_cast<std::size_t>(level_of(holder))];
  const Tier tier = tier_of(holder);
  VirtualTime last = holder.meter.vtime;
  if (!level.queue[tier].empty()) last = std::min(last, std::get<0>(*level.queue[tier].begin()));
  level.floor[tier] = std::max(level.floor[tier], last);
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
  if (!billing_) return;
  const Duration unread = in_turns(client.unread(now_));
  const Duration more = unread - charged_unread(client);
  if (more <= Duration::zero()) return;
  client.meter.charged_ahead = client.meter.reported + unread;
  add_virtual_time(*client.share, more);
  raise_floor(*client.share);
}

void MeteredEngine::charge_lone_runner() {
  if (running_.size() == 1) charge_ahead(*running_.begin()->second);
}

// Best effort is kept `best_effort_percent` of the time, whatever the limits have saved up. What it
// has to wait for longer than that buys it a turn is not lost, up to what a bursty tenant may save.
// Each priority by itself: what a higher one without a limit has is not held against it.
Duration MeteredEngine::best_effort_owed(const Level& level) const {
  const int percent = config_.best_effort_percent;
  const Duration most = std::max(config_.turn, percent_of(config_.burst_window, percent));
  return std::min(level.balance + percent_of(now_ - level.balance_at, percent), most);
}

// What it has ahead of limits is what was owed, and what goes beyond that is paid off before it
// goes ahead again. What limits left it is not held against it, but for the time in which they
// waited for its last kernel.
void MeteredEngine::charge_best_effort(const Client& client, Duration used, Time now) {
  Level& level = levels_[static_cast<std::size_t>(level_of(*client.share))];
  const Duration owed = best_effort_owed(level);
  Duration balance = owed - used;
  if (!client.meter.before_limits) {
    const bool stops = client.run.phase == Phase::Stopping;
    const Duration overrun = stops ? std::min(used, now - client.run.dropped_at) : Duration::zero();
    balance = std::max(balance, std::min(owed, Duration::zero()) - overrun);
  }
  level.balance = balance;
  level.balance_at = now_;
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
                        : account.fresh ? level_afresh(share)
                                        : std::min(saved, level_afresh(share));
  }
  charge_lone_runner();
  (share.limited() ? limited_sum_ : unlimited_active_) += share.limited() ? share.limit() : 1;
  const Duration lag = short_gap ? config_.burst_window : Duration::zero();
  const Tier tier = tier_of(share);
  const int level = level_of(share);
  VirtualTime floor = levels_[static_cast<std::size_t>(level)].floor[tier];
  // Of those that it competes with one may have waited for its allowance when the floor was raised:
  // who comes new does not have to wait until that one has caught up.
  if (!short_gap && running_.size() == 1) {
    const Share& holder = *running_.begin()->second->share;
    if (tier_of(holder) == tier && level_of(holder) == level) {
      floor = std::min(floor, holder.meter.vtime);
    }
  }
  const bool same_queue = account.tier == tier && account.level == level;
  account.vtime = same_queue ? std::max(account.vtime, floor - lag.count()) : floor;
  account.tier = tier;
  account.level = level;
  account.mark = refill_clock_;
  account.unkept_mark = unkept(share);
  account.fresh = false;
  account.active = true;
  ++active_;
}

void MeteredEngine::deactivate(Share& share) {
  MeterAccount& account = share.meter;
  settle(share);
  account.idle_since = now_;
  account.active = false;
  if (share.limited()) {
    went_idle_ = share.seq;
    went_idle_at_ = now_;
  }
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
    if (share->wanting + share->meter.parked == 0 && share->meter.active) deactivate(*share);
  }
}

// A tenant whose memory is not there yet goes on earning what it will use when it is. It has not
// fallen behind by that, or it would keep everybody else waiting.
void MeteredEngine::park(Client& client, bool parked, Time now) {
  catch_up(now);
  Share& share = *client.share;
  settle(share);
  share.meter.parked += parked ? 1 : -1;
  share.meter.unkept_mark = unkept(share);
  if (parked && !share.meter.active) activate(share);
  if (parked) return;
  maybe_idle_.emplace(share.seq, &share);
  charge_lone_runner();
  const bool queued = share.meter.runnable;
  if (queued) dequeue(share);
  const Level& level = levels_[static_cast<std::size_t>(level_of(share))];
  share.meter.vtime = std::max(share.meter.vtime, level.floor[tier_of(share)]);
  if (queued) enqueue_if_runnable(share);
}

// Moves a settled, active share to or from the throttled ones, as its allowance says.
void MeteredEngine::note_allowance(Share& share) {
  MeterAccount& account = share.meter;
  if (account.throttled) {
    throttled_.erase({account.resumes_at, share.seq, &share});
    account.throttled = false;
  } else if (account.allowance > worth_a_turn()) {
    return;
  }
  if (!share.limited() || account.allowance >= resume_level(share)) return;
  account.throttled = true;
  if (!share.first_throttle) share.first_throttle = now_;
  const Fixed missing = to_fixed(resume_level(share) - account.allowance);
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
  const Duration passed = std::max(now - client.meter.duty_at, used);
  client.meter.duty_at = now;
  if (passed <= Duration::zero()) return;
  const Duration weight = std::min(passed, kDutyMemory);
  const std::int64_t sample =
      static_cast<std::int64_t>(static_cast<Fixed>(used.count()) * kFull / passed.count());
  const std::int64_t before = client.meter.duty_ppm;
  client.meter.duty_ppm += (sample - before) * weight.count() / kDutyMemory.count();
  if (client.run.phase != Phase::Off) duty_sum_ppm_ += client.meter.duty_ppm - before;
}

// Pauses too short to give a turn back for cost nothing, but for those whom they keep from the GPU:
// who has no limit waits for as long as there is allowance. Every program has some.
void MeteredEngine::charge_pauses(const Client& client, Duration gaps, Time now) {
  Share& share = *client.share;
  const auto waits = [](const Level& level) { return !level.queue[kBestEffort].empty(); };
  if (!turns_ || !billing_ || !share.limited() ||
      std::none_of(levels_.begin(), levels_.end(), waits))
    return;
  // Neither in what is billed already, nor in the part of the turn that had no limit.
  const Duration since = now - std::max(client.run.granted_at, share.meter.unlimited_since);
  const Duration unused = now - client.run.granted_at - client.meter.reported;
  const Duration pauses = std::min({gaps, since, unused});
  const auto used = static_cast<std::uint64_t>(client.meter.reported.count());
  const auto free = static_cast<Duration::rep>(kShortPause + free_pauses(used));
  const Duration more = pauses - Duration{free};
  if (more <= Duration::zero()) return;
  dequeue(share);
  share.meter.allowance -= more;
  note_allowance(share);
}

// A limit binds that stops its tenant, and one whose tenant is at work for most of the time that it
// is promised: running together it might be slower for that, and not have it.
void MeteredEngine::note_binding(Share& share, Duration at_work, Time now) {
  if (!overlap_ || !share.limited()) return;
  MeterAccount& account = share.meter;
  const Fixed most = (now - account.at_work_at).count() * refill_rate_ * share.limit() / 100;
  account.at_work_at = now;
  account.at_work =
      std::max(Duration::zero(), account.at_work + at_work - from_fixed(most) * 3 / 4);
  account.at_work = std::min(account.at_work, 2 * cap_of(share));
  if (account.throttled || account.at_work > cap_of(share)) limits_bind_until_ = now + kBindsFor;
}

// Charges what the meter shows beyond what was charged for this grant already.
void MeteredEngine::bill(Client& client, Duration used, Time now) {
  Share& share = *client.share;
  MeterAccount& account = share.meter;
  const Duration new_use = used - client.meter.reported;
  const Duration held = client.unread(now);
  const Duration ahead = charged_unread(client);
  client.meter.reported = used;
  client.meter.charged_ahead = Duration::zero();
  client.meter.read_at = now;
  if (turns_ && held > new_use) held_unused_ += (held - new_use).count() * refill_rate_;
  settle(share);
  if (!billing_) return;
  note_duty(client, new_use, now);
  Duration charge = new_use;
  if (client.run.phase == Phase::Stopping && config_.tail_billing_percent < 100) {
    const Duration tail = std::min(new_use, now - client.run.dropped_at);
    charge -= tail - percent_of(tail, config_.tail_billing_percent);
  }
  share.billed += to_fixed(charge);
  const bool queued = account.runnable;
  if (queued) dequeue(share);
  // A turn that was held and not used counts as well. Likewise among the processes of a tenant, as
  // far as one of them waited.
  const bool in_demand = contended(share) || has_turn(client);
  const Duration had = in_turns(in_demand ? std::max(charge, held) : charge);
  if (turns_) account.vtime += virtual_time(share, had - ahead);
  if (!share.ready.empty()) client.meter.had += std::min(had, now - client.meter.had_since).count();
  client.meter.had_since = now;
  // What it did in the part of this grant that had no limit is free.
  const Duration unlimited = unlimited_time(share) - client.meter.unlimited_mark;
  client.meter.unlimited_mark += unlimited;
  if (share.limited()) {
    const Duration before = account.allowance;
    account.allowance -= std::max(Duration::zero(), charge - unlimited);
    const Duration overrun = std::min(Duration::zero(), account.allowance);
    if (before > Duration::zero() && config_.carryover_percent < 100) {
      account.allowance += percent_of(-overrun, 100 - config_.carryover_percent);
    }
    note_allowance(share);
    note_binding(share, held, now);
  } else {
    charge_best_effort(client, new_use, now);
  }
  if (queued) enqueue_if_runnable(share);
  raise_floor(share);
}

}  // namespace nvshare::core
