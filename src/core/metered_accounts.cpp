// The metered policy's accounts: what each tenant may use, what it is entitled to, and how readings
// of the meter are charged.

#include <algorithm>
#include <utility>

#include "base/pauses.h"
#include "core/metered_engine.h"

namespace nvshare::core {
namespace {

constexpr int kLongestResume = 4;  // times `turn`
constexpr int kLongestResumeCalm = 5;
constexpr Duration kBindsFor = 1s;  // after it was last seen to

Fixed hundredth(Fixed value) {
  return divided(value, 100);
}

// Wide in between: a gap may be years.
Duration percent_of(Duration value, int percent) {
  return Duration{
      static_cast<Duration::rep>(hundredth(static_cast<Fixed>(value.count()) * percent))};
}

}  // namespace

// --- allowance ---------------------------------------------------------------------------------

Duration MeteredEngine::cap_of(const Share& share) const {
  return std::max(percent_of(config_.burst_window, share.limit), resume_level(share));
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
  const MeterDomain* inner = share.meter.inner;
  const int own = inner != nullptr ? inner->leaves : share.meter.active ? 1 : 0;
  if (whole_.leaves == own && share.wanting <= 1) return config_.turn;
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
  const bool other_idle = went_idle_ != share.meter.last_idle;
  if (other_idle && now_ - went_idle_at_ < config_.burst_window) return has;
  const MeterDomain& domain = *share.meter.domain;
  const Fixed all = kOne * 100;
  const Fixed spends = all - share.limit * domain.whole_rate();
  Duration most = std::min(from_fixed(to_fixed(has) * all / spends), config_.burst_window);
  if (const Fixed due = domain.first_due(); due != kNever) most = std::min(most, domain.until(due));
  return std::max(has, most);
}

// What is earned during a turn would be spent by ever shorter ones behind it, each of which begins
// with nothing queued.
Duration MeteredEngine::worth_a_turn() const {
  return config_.turn / 2;
}

void MeteredEngine::catch_up(Time now) {
  const Fixed refill = (now - now_).count() * whole_.rate;
  whole_.clock += refill;
  now_ = now;
  if (slots_ == 0 || unlimited_holder_ == nullptr) return;
  MeterDomain& domain = *best_effort_of(*unlimited_holder_).meter.domain;
  const Fixed before = domain.clock;
  domain.catch_up(now_);
  const bool whole = &domain == &whole_;
  const int level = level_of(*unlimited_holder_);
  domain.note_unlimited_held(level, whole ? refill : domain.clock - before);
  highest_held_ = std::max(highest_held_, level);
}

Duration MeteredEngine::allowance_now(const Share& share) const {
  const MeterAccount& account = share.meter;
  if (!account.active) return account.allowance;
  const Fixed passed = account.domain->clock_now() - account.mark;
  return account.allowance + from_fixed(hundredth(passed * share.limit));
}

// The part of the refill clock in which what a tenant earns is not kept beyond its cap: while a
// higher priority without a limit has the GPU, which can be for ever, and while the client that
// holds the GPU does not use it, which adds up. What others use within their limits, or at its own
// priority, they will not use later. A tenant that waits for its memory could use nothing.
Fixed MeteredEngine::unkept(const Share& share) const {
  Fixed all = share.meter.parked > 0 ? 0 : held_unused_;
  if (level_of(share) >= highest_held_) return all;  // nor above any share around it
  for (const Share* one = &share; one != nullptr; one = one->meter.domain->owner) {
    all += one->meter.domain->unlimited_held_above(level_of(*one));
  }
  return all;
}

// Hundredths of a percent of the tenant's limit that its parts cannot use. It is not kept beyond
// the cap: a part that comes later would have it at once, however long that was.
int MeteredEngine::unusable_part(const Share& share) {
  return share.meter.inner == nullptr ? 0 : share.limit * 100 - share.meter.entitled;
}

void MeteredEngine::settle(Share& share) {
  MeterAccount& account = share.meter;
  if (!account.active) return;
  account.domain->catch_up(now_);
  const Fixed clock = account.domain->clock;
  const Fixed unkept_since = unkept(share) - account.unkept_mark;
  account.unkept_mark += unkept_since;
  if (clock == account.mark) return;
  // Whole nanoseconds go to the allowance; the mark keeps what is left of one.
  const Fixed refill = hundredth((clock - account.mark) * share.limit);
  const Fixed whole = (refill >> kFixedBits) << kFixedBits;
  const Duration before = account.allowance;
  account.allowance += from_fixed(whole);
  const int unusable = unusable_part(share);
  if (!share.limited()) {  // there is nothing to save: only what is owed is paid off
    account.allowance = std::min(account.allowance, std::max(before, config_.turn));
  } else if (unkept_since != 0 || unusable != 0) {
    const Fixed usable = unkept_since * (share.limit * 100 - unusable);
    const Fixed not_kept = hundredth(hundredth(usable + (clock - account.mark) * unusable));
    const Duration kept = account.allowance - from_fixed(std::min(not_kept, whole));
    account.allowance = std::max(kept, std::min(account.allowance, cap_of(share)));
  }
  account.mark = clock - divided((refill - whole) * 100, share.limit);
}

// GPU time used in proportion to what the tenant asked for. Only compared within its own tier.
VirtualTime MeteredEngine::virtual_time(const Share& share, Duration used) {
  const VirtualTime time{used.count()};
  return share.limited() ? divided(time * 100, share.limit) : time;
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
  MeterLevel& level = holder.meter.domain->level(level_of(holder));
  const MeterTier tier = tier_of(holder);
  VirtualTime last = holder.meter.vtime;
  if (!level.queue[tier].empty()) last = std::min(last, level.queue[tier].begin()->at);
  level.floor[tier] = std::max(level.floor[tier], last);
}

void MeteredEngine::add_virtual_time(Share& share, Duration used) {
  share.meter.domain->add_virtual_time(share, tier_of(share), virtual_time(share, used));
}

// A client that nobody contended with may have run for long without being metered. Who joins does
// not wait for its bill: it starts where the runner stands now.
void MeteredEngine::charge_ahead(Client& client) {
  if (!billing_) return;
  const Duration unread = in_turns(client.unread(now_));
  const Duration more = unread - charged_unread(client);
  if (more <= Duration::zero()) return;
  client.meter.charged_ahead = client.meter.reported + unread;
  each_around(*client.share, [&](Share& share) {
    add_virtual_time(share, more);
    raise_floor(share);
  });
}

void MeteredEngine::charge_lone_runner() {
  if (running_.size() == 1) charge_ahead(*running_.begin()->second);
}

// Best effort is kept `best_effort_percent` of the time, whatever the limits have saved up. What it
// has to wait for longer than that buys it a turn is not lost, up to what a bursty tenant may save.
// Each priority by itself: what a higher one without a limit has is not held against it.
Duration MeteredEngine::best_effort_owed(const MeterDomain& domain, int number) const {
  const MeterLevel& level = domain.level(number);
  const int percent = config_.best_effort_percent;
  const Duration most = std::max(config_.turn, percent_of(config_.burst_window, percent));
  Duration of_domain = now_ - level.balance_at;
  if (domain.owner != nullptr) {  // has its limit of the time, and less where limits shrink
    const Fixed shrunk = hundredth(domain.outer()->whole_rate() * domain.capacity());
    of_domain = from_fixed(of_domain.count() * shrunk);
  }
  return std::min(level.balance + percent_of(of_domain, percent), most);
}

// What it has ahead of limits is what was owed, and what goes beyond that is paid off before it
// goes ahead again. What limits left it is not held against it, but for the time in which they
// waited for its last kernel.
void MeteredEngine::charge_best_effort(const Client& client, Duration used, Time now) {
  const Share& competes = best_effort_of(*client.share);
  MeterDomain& domain = *competes.meter.domain;
  MeterLevel& level = domain.level(level_of(competes));
  const Duration owed = best_effort_owed(domain, level_of(competes));
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

// The tenants that want the GPU have changed.
void MeteredEngine::apply_load() {
  const int percent = config_.best_effort_percent;
  if (std::exchange(best_effort_applied_, percent) != percent) {
    for (auto& [id, domain] : domains_) domain.apply_load(percent, now_);
  }
  for (MeterDomain* domain : changed_) domain->apply_load(percent, now_);
  changed_.clear();
  whole_.apply_load(percent, now_);
}

// The domain follows its load, and those around it what is due in it, before the next decision.
void MeteredEngine::note_change(MeterDomain& domain) {
  if (domain.owner != nullptr && !std::exchange(domain.changed, true)) changed_.push_back(&domain);
}

// The owner of the domain counts in the domain around it as what its parts can use of its limit.
void MeteredEngine::load_changed(MeterDomain& domain) {
  Share* owner = domain.owner;
  if (owner == nullptr || domain.is_bundle()) return;
  if (!domain.is_at_full_rate(best_effort_applied_)) note_change(domain);
  if (!owner->meter.active || owner->meter.entitled == domain.entitled()) return;
  settle(*owner);  // by what its parts could use until now
  MeterDomain& around = *owner->meter.domain;
  around.limited_sum += domain.entitled() - owner->meter.entitled;
  owner->meter.entitled = domain.entitled();
  load_changed(around);
}

void MeteredEngine::count_leaf(MeterDomain& domain, int change) {
  for (MeterDomain* one = &domain; one != nullptr; one = one->outer()) one->leaves += change;
}

void MeteredEngine::activate(Share& share) {
  MeterAccount& account = share.meter;
  MeterDomain& domain = *account.domain;
  const Duration gap = now_ - account.idle_since;
  // A short gap is part of a bursty client's rhythm and loses nothing. After a long one it starts
  // afresh: debts are paid off, but nothing is saved up to run away with.
  const bool short_gap = !account.fresh && gap <= config_.burst_window;
  if (share.limited()) {
    const Duration saved = account.allowance + percent_of(gap, share.limit);
    account.allowance = short_gap ? std::min(saved, std::max(account.allowance, cap_of(share)))
                        : account.fresh ? level_afresh(share)
                                        : std::min(saved, level_afresh(share));
  }
  charge_lone_runner();
  const Duration lag = short_gap ? config_.burst_window : Duration::zero();
  const MeterTier tier = tier_of(share);
  const int level = level_of(share);
  VirtualTime floor = domain.level(level).floor[tier];
  // Of those that it competes with one may have waited for its allowance when the floor was raised:
  // a tenant that comes new does not have to wait until that one has caught up.
  if (!short_gap && running_.size() == 1) {
    const Share* holder = share_in(domain, *running_.begin()->second->share);
    // Not its own client, which it holds while its limit changes or it gets parts: what it has in
    // another queue, or has not had in this one, says nothing.
    const bool competes = holder != nullptr && holder != &share;
    if (competes && tier_of(*holder) == tier && level_of(*holder) == level) {
      floor = std::min(floor, holder->meter.vtime);
    }
  }
  const bool same_queue =
      account.tier == tier && account.level == level && account.queue == domain.id;
  account.vtime = same_queue ? std::max(account.vtime, floor - lag.count()) : floor;
  account.tier = tier;
  account.level = level;
  account.queue = domain.id;
  if (account.fresh) take_place(share);
  domain.catch_up(now_);
  account.mark = domain.clock;
  account.unkept_mark = unkept(share);
  account.fresh = false;
  account.active = true;
  ++domain.active;
  if (!share.has_parts) count_leaf(domain, 1);
  if (share.limited()) {
    ++limited_active_;
    account.entitled = account.inner != nullptr ? account.inner->entitled() : share.limit * 100;
    domain.limited_sum += account.entitled;
  } else {
    ++domain.unlimited_active;
  }
  Share* owner = domain.owner;
  if (owner != nullptr && !owner->meter.active) {
    activate(*owner);
    note_allowance(*owner);
  }
  load_changed(domain);
}

void MeteredEngine::deactivate(Share& share) {
  MeterAccount& account = share.meter;
  MeterDomain& domain = *account.domain;
  settle(share);
  account.idle_since = now_;
  account.active = false;
  --domain.active;
  if (!share.has_parts) count_leaf(domain, -1);
  if (share.limited()) {
    --limited_active_;
    domain.limited_sum -= std::exchange(account.entitled, 0);
    const bool by_a_part = account.last_idle == went_idle_ && went_idle_at_ == now_;
    if (!by_a_part) {
      went_idle_ = share.seq;
      went_idle_at_ = now_;
      each_around(share, [&](Share& one) { one.meter.last_idle = share.seq; });
    }
  } else {
    --domain.unlimited_active;
  }
  stop_throttling(share);
  if (domain.owner != nullptr && domain.active == 0) deactivate(*domain.owner);
  load_changed(domain);
}

// Once for each share, because nobody looks at them while scheduling is off.
void MeteredEngine::note_maybe_idle(Share& share) {
  if (!std::exchange(share.meter.maybe_idle, true)) maybe_idle_.push_back(&share);
}

// A client that stops and wants more at the same moment was never idle: looked at in decide().
void MeteredEngine::deactivate_idle() {
  std::ranges::sort(maybe_idle_, {}, &Share::seq);
  for (Share* share : maybe_idle_) {
    share->meter.maybe_idle = false;
    if (share->has_parts) continue;
    if (share->wanting + share->meter.parked == 0 && share->meter.active) deactivate(*share);
  }
  maybe_idle_.clear();
}

// A tenant whose memory is not there yet goes on earning what it will use when it is. It has not
// fallen behind by that, or it would keep everybody else waiting.
void MeteredEngine::park(Client& client, bool parked, Time now) {
  catch_up(now);
  Share& share = *client.share;
  for (Share* one = &share; one != nullptr; one = one->parent) {
    settle(*one);
    one->meter.parked += parked ? 1 : -1;
    one->meter.unkept_mark = unkept(*one);
  }
  if (parked && !share.meter.active) activate(share);
  if (parked) return;
  note_maybe_idle(share);
  charge_lone_runner();
  each_around(share, [&](Share& one) {
    const bool queued = one.meter.runnable;
    if (queued) dequeue(one);
    const MeterLevel& level = one.meter.domain->level(level_of(one));
    one.meter.vtime = std::max(one.meter.vtime, level.floor[tier_of(one)]);
    if (queued) enqueue_if_runnable(one);
  });
}

void MeteredEngine::stop_throttling(Share& share) {
  MeterAccount& account = share.meter;
  if (!account.throttled) return;
  // Those around the domain look at what is due first in it, and at nothing else.
  ShareTimes& times = account.domain->throttled;
  if (account.resumes == times.begin()) note_change(*account.domain);
  times.erase(account.resumes);
  account.throttled = false;
}

// Moves a settled, active share to or from the throttled ones, as its allowance says.
void MeteredEngine::note_allowance(Share& share) {
  MeterAccount& account = share.meter;
  if (!account.throttled && (account.allowance > worth_a_turn() || !share.limited())) return;
  const Duration missing = resume_level(share) - account.allowance;
  ShareTimes& times = account.domain->throttled;
  if (!share.limited() || missing <= Duration::zero()) return stop_throttling(share);
  const bool was_first = account.throttled && account.resumes == times.begin();
  if (!share.first_throttle) share.first_throttle = now_;
  const Fixed at = account.mark + divided(to_fixed(missing) * 100, share.limit) + kOne;
  account.resumes = account.throttled ? moved(times, account.resumes, at)
                                      : times.insert({at, share.seq, &share}).first;
  account.throttled = true;
  if (was_first || account.resumes == times.begin()) note_change(*account.domain);
}

void MeteredEngine::resume_refilled(MeterDomain& domain) {
  domain.catch_up(now_);
  while (!domain.throttled.empty() && domain.throttled.begin()->at <= domain.clock) {
    Share& share = *domain.throttled.begin()->of;
    settle(share);
    stop_throttling(share);
    enqueue_if_runnable(share);
  }
  while (!domain.inside.empty() && domain.inside.begin()->at <= domain.clock) {
    MeterDomain& inner = *domain.inside.begin()->of;
    resume_refilled(inner);
    inner.note_due();
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

// Pauses too short to give a turn back for cost nothing, unless they keep tenants without a limit
// from the GPU, which wait for as long as there is allowance. Every program has some pauses.
void MeteredEngine::charge_pauses(const Client& client, Duration gaps, Time now) {
  if (!turns_ || !billing_) return;
  const auto used = static_cast<std::uint64_t>(client.meter.reported.count());
  const auto free = static_cast<Duration::rep>(kShortPause + free_pauses(used));
  const Duration unused = now - client.run.granted_at - client.meter.reported;
  each_around(*client.share, [&](Share& share) {
    if (!share.limited() || share.meter.domain->waiting[kBestEffort] == 0) return;
    // Neither in what is billed already, nor in the part of the turn that had no limit.
    const Duration since = now - std::max(client.run.granted_at, share.meter.unlimited_since);
    const Duration more = std::min({gaps, since, unused}) - Duration{free};
    if (more <= Duration::zero()) return;
    dequeue(share);
    share.meter.allowance -= more;
    note_allowance(share);
    if (share.has_parts) enqueue_if_runnable(share);
  });
}

// A limit binds that stops its tenant, and one whose tenant is at work for most of the time that it
// is promised: running together it might be slower for that, and not have it.
void MeteredEngine::note_binding(Share& share, Duration at_work, Time now) {
  if (!overlap_ || !share.limited()) return;
  MeterAccount& account = share.meter;
  const Fixed most =
      (now - account.at_work_at).count() * share.meter.domain->whole_rate() * share.limit / 100;
  account.at_work_at = now;
  account.at_work =
      std::max(Duration::zero(), account.at_work + at_work - from_fixed(most) * 3 / 4);
  account.at_work = std::min(account.at_work, 2 * cap_of(share));
  if (account.throttled || account.at_work > cap_of(share)) limits_bind_until_ = now + kBindsFor;
}

void MeteredEngine::charge_limit(Share& share, Duration charge, Duration held, Time now) {
  MeterAccount& account = share.meter;
  const Duration before = account.allowance;
  account.allowance -= std::max(Duration::zero(), charge);
  const Duration overrun = std::min(Duration::zero(), account.allowance);
  if (before > Duration::zero() && config_.carryover_percent < 100) {
    account.allowance += percent_of(-overrun, 100 - config_.carryover_percent);
  }
  note_allowance(share);
  note_binding(share, held, now);
}

// All tenants that the client's is a part of pay as well, for what they allow.
void MeteredEngine::charge_around(const Client& client, Duration charge, Duration had,
                                  Duration held, Time now) {
  for (Share* tenant = &client.share->of_tenant(); tenant != nullptr; tenant = tenant->parent) {
    tenant->billed += to_fixed(charge);
  }
  Share* owner = client.share->meter.domain->owner;
  if (owner == nullptr) return;
  each_around(*owner, [&](Share& share) {
    settle(share);
    if (share.limited()) {
      const Duration free = share.meter.unlimited_since - (now - held);
      charge_limit(share, charge - std::max(Duration::zero(), free), held, now);
      if (share.meter.throttled) dequeue(share);
    }
    if (turns_) add_virtual_time(share, had);
    enqueue_if_runnable(share);
    raise_floor(share);
  });
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
  if (turns_ && held > new_use) held_unused_ += (held - new_use).count() * whole_.rate;
  settle(share);
  if (!billing_) return;
  note_duty(client, new_use, now);
  Duration charge = new_use;
  if (client.run.phase == Phase::Stopping && config_.tail_billing_percent < 100) {
    const Duration tail = std::min(new_use, now - client.run.dropped_at);
    charge -= tail - percent_of(tail, config_.tail_billing_percent);
  }
  const bool queued = account.runnable;
  if (queued) dequeue(share);
  // A turn that was held and not used counts as well. The same holds among the processes of a
  // tenant, as far as one of them waited.
  const bool in_demand = contended(share) || has_turn(client);
  const Duration had = in_turns(in_demand ? std::max(charge, held) : charge);
  if (turns_) account.vtime += virtual_time(share, had - ahead);
  if (share.has_ready()) client.meter.had += std::min(had, now - client.meter.had_since).count();
  client.meter.had_since = now;
  // What it did in the part of this grant that had no limit is free.
  const Duration unlimited = unlimited_time(share) - client.meter.unlimited_mark;
  client.meter.unlimited_mark += unlimited;
  if (share.limited()) {
    charge_limit(share, charge - unlimited, held, now);
  } else {
    charge_best_effort(client, new_use, now);
  }
  charge_around(client, charge, had - ahead, held, now);
  if (queued) enqueue_if_runnable(share);
  raise_floor(share);
}

}  // namespace nvshare::core
