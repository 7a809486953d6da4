#include "core/metered_engine.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace nvshare::core {
namespace {

constexpr std::int64_t kTurnsAbove = 950'000;  // ppm; together they want more than the GPU has
constexpr std::int64_t kTogetherBelow = 850'000;
constexpr int kLongestTurn = 10;    // at most so many times as long as configured
constexpr int kHandOverMemory = 8;  // turns
constexpr int kLongestBurst = 20;   // times `turn`, that is waited for to end
constexpr int kBurstMemory = 8;     // bursts
constexpr int kGapsOfBursts = 20;   // a gap is no less than this part of the burst
// Bursts below this do not disturb each other: the hardware lets each of its own turns take longer.
constexpr Duration kShortBurst = 2ms;
constexpr Duration kBurstsLast = 1s;  // after the last one
constexpr int kCalm = 3;              // times as long, at most, where there are none
// What a hand-over takes on a real GPU beside what is seen of it, at least, and as a multiple of
// that (docs/decisions/0007).
constexpr Duration kUnseen = 600us;
constexpr int kUnseenTimes = 3;
constexpr int kTurnsInOne = 2;  // that a tenant would have in a row, at most

}  // namespace

MeteredEngine::MeteredEngine(const Config& config, Time now)
    : config_(config), now_(now), whole_(next_domain_++, nullptr, now) {}

// --- the run queue -----------------------------------------------------------------------------

void MeteredEngine::enqueue_if_runnable(Share& share) {
  MeterAccount& account = share.meter;
  if (account.runnable || account.throttled) return;
  // A client that does not stop keeps the GPU for its tenant, which gets no further turn meanwhile.
  const bool idle = account.inner != nullptr ? account.inner->runnable() == 0 : !share.has_ready();
  if (idle || share.overdue > 0) return;
  account.domain->enqueue(share, tier_of(share), level_of(share), now_);
  if (Share* owner = account.domain->owner) enqueue_if_runnable(*owner);
}

void MeteredEngine::dequeue(Share& share) {
  MeterAccount& account = share.meter;
  if (!account.runnable) return;
  account.domain->dequeue(share, tier_of(share), now_);
  Share* owner = account.domain->owner;
  if (owner != nullptr && account.domain->runnable() == 0) dequeue(*owner);
}

// The highest priority, where waiting counts as well: nobody waits for ever.
int MeteredEngine::level_to_serve(const MeterDomain& domain, Time now) const {
  const bool one_level = (domain.occupied & (domain.occupied - 1)) == 0;
  if (one_level) return std::bit_width(domain.occupied) - 1;
  int best = -1;
  std::int64_t best_score = 0;
  domain.each_occupied([&](int i, const MeterLevel& level) {
    const std::int64_t score = i * config_.ageing.count() + (now - level.waiting_since).count();
    if (best < 0 || score >= best_score) {
      best = i;
      best_score = score;
    }
  });
  return best;
}

Share* MeteredEngine::first_in(const MeterDomain& domain, Time now) const {
  const int found = level_to_serve(domain, now);
  if (found < 0) return nullptr;
  const MeterLevel& level = domain.level(found);
  const auto owed = [&] {
    return !level.best_effort_was_ahead && best_effort_owed(domain, found) >= config_.turn;
  };
  const auto& [limited, best_effort] = level.queue;
  const bool limits_first = best_effort.empty() || (!limited.empty() && !owed());
  return (limits_first ? limited : best_effort).begin()->of;
}

Share* MeteredEngine::next_to_serve(Time now) const {
  Share* share = first_in(whole_, now);
  while (share != nullptr && share->meter.inner != nullptr) {
    share = first_in(*share->meter.inner, now);
  }
  return share;
}

// --- what the owner tells ----------------------------------------------------------------------

void MeteredEngine::attach(Share& share, Time now) {
  catch_up(now);
  share.meter.idle_since = now;
  share.meter.unlimited_since = now;
  enter_domain(share);
  take_over(share, now);
}

void MeteredEngine::detach(Share& share) {
  std::erase(relimited_, &share);
  if (std::exchange(share.meter.maybe_idle, false)) std::erase(maybe_idle_, &share);
  if (unlimited_holder_ == &share) unlimited_holder_ = nullptr;
  if (share.meter.active) deactivate(share);
  leave_account(share);
  close_domain(share);
  close_bundles(share);
}

void MeteredEngine::become_parent(Share& share, Time now) {
  catch_up(now);
  if (unlimited_holder_ == &share) unlimited_holder_ = share.family().own.get();
  std::ranges::replace(relimited_, &share, share.family().own.get());
}

void MeteredEngine::before_limits_change(Share& share, Time now) {
  catch_up(now);
  // Here every share still stands where the runner has used its time.
  charge_lone_runner();
  dequeue(share);
  if (share.meter.active) deactivate(share);
  if (!share.limited()) share.meter.unlimited_before += now - share.meter.unlimited_since;
  share.meter.was_limited = share.limited();
  leave_domain(share);
  close_bundles(share);
}

// What was used stays used: debt goes over as it is and is paid off at the new rate from now. What
// was saved goes over as far as the new limit would have let it be saved.
void MeteredEngine::after_limits_change(Share& share, bool cores_changed, Time) {
  enter_domain(share);
  share.meter.allowance = std::min(share.meter.allowance, cap_of(share));
  if (!share.meter.was_limited || !share.limited()) share.meter.unlimited_since = now_;
  if (!share.has_parts && share.wanting + share.meter.parked > 0) {
    activate(share);
    if (share.limited()) note_allowance(share);
    enqueue_if_runnable(share);
  }
  if (cores_changed && share.running > 0 && !share.held.empty()) relimited_.push_back(&share);
}

void MeteredEngine::make_ready(Client& client, Time now) {
  catch_up(now);
  Share& share = *client.share;
  note_burst(client, now);
  note_duty(client, Duration::zero(), now);
  join_siblings(client);
  enter_ready(client, next_seq_++);
  duty_sum_ppm_ += client.meter.duty_ppm;
  if (!share.meter.active) activate(share);
  settle(share);
  if (!share.meter.throttled && share.limited()) note_allowance(share);
  enqueue_if_runnable(share);
}

// Turns of a tenant are not all of the same length. By the order in which they ask alone the same
// process would have the short one each time: who has had least is next.
void MeteredEngine::join_siblings(Client& client) {
  Share& share = *client.share;
  client.meter.had = std::max(client.meter.had, share.meter.least_had);
  if (share.has_ready()) return;
  // Nobody went without what the others had until now.
  for (const auto& [seq, sibling] : share.held) sibling->meter.had_since = now_;
}

void MeteredEngine::make_unready(Client& client, Time now) {
  catch_up(now);
  Share& share = *client.share;
  leave_ready(client);
  duty_sum_ppm_ -= client.meter.duty_ppm;
  if (!share.has_ready()) dequeue(share);
  note_maybe_idle(share);
}

void MeteredEngine::stop(Client& client, const Reason& why, Time now, Decisions& out) {
  catch_up(now);
  charge_ahead(client);
  running_.erase({client.run.grant_seq, &client});
  enter_stopping(client, why, now, out);
}

// It goes on using the GPU; nobody waits for it, and its tenant gets nothing more until it stops.
void MeteredEngine::mark_overdue(Client& client, Time now) {
  catch_up(now);
  bill(client, std::max(client.meter.reported, now - client.run.granted_at), now);
  enter_overdue(client);
  each_around(*client.share, [&](Share& one) {
    if (one.overdue > 0) dequeue(one);
  });
  --slots_;
}

void MeteredEngine::release(Client& client, Duration used, Duration gaps, Time now) {
  catch_up(now);
  Share& share = *client.share;
  client.meter.cut =
      client.run.phase != Phase::Running || (client.run.budget && used >= *client.run.budget);
  const bool was_overdue = client.run.phase == Phase::Overdue;
  if (was_overdue) {
    used = now - client.run.granted_at;  // nobody else could be sure of the GPU
  } else {
    --slots_;
    note_hand_over(client, used, gaps, now);
  }
  bill(client,
       std::clamp(used, client.meter.reported,
                  std::max(client.meter.reported, now - client.run.granted_at)),
       now);
  charge_pauses(client, gaps, now);
  client.meter.burst_so_far += client.meter.reported;
  if (client.meter.burst_so_far > kShortBurst) long_bursts_until_ = now + kBurstsLast;
  // A grant that was not used saves nothing beyond the cap.
  each_around(share, [&](Share& one) {
    if (one.meter.allowance <= one.meter.at_grant) return;
    const Duration most = std::max(cap_of(one), one.meter.at_grant);
    one.meter.allowance = std::min(one.meter.allowance, most);
  });
  running_.erase({client.run.grant_seq, &client});
  leave_running(client, now);
  duty_sum_ppm_ -= client.meter.duty_ppm;
  note_maybe_idle(share);
  enqueue_if_runnable(share);
  if (was_overdue) each_around(share, [&](Share& one) { enqueue_if_runnable(one); });
}

void MeteredEngine::read_meter(Client& client, Duration used, Time now) {
  catch_up(now);
  bill(client,
       std::clamp(used, client.meter.reported,
                  std::max(client.meter.reported, now - client.run.granted_at)),
       now);
}

void MeteredEngine::set_billing(bool on, Time now) {
  catch_up(now);
  billing_ = on;
}

// --- decisions ---------------------------------------------------------------------------------

// Somebody else could use the time that the holder's tenant has.
bool MeteredEngine::contended(const Share& holder) const {
  bool found = holder.has_ready();
  for (const Share* one = &holder; one != nullptr; one = one->meter.domain->owner) {
    // What else is inside a tenant that has to wait cannot run either.
    if (one != &holder && one->meter.throttled) found = false;
    found |= one->meter.domain->runnable() > (one->meter.runnable ? 1 : 0);
  }
  return found;
}

bool MeteredEngine::wants_turns() const {
  if (config_.share_mode != ShareMode::Auto) return config_.share_mode == ShareMode::Turns;
  if (limited_active_ > 0 && (!overlap_ || now_ < limits_bind_until_)) return true;
  if (overlap_) return false;          // what one does not use of the GPU another does
  if (whole_.leaves < 2) return true;  // one tenant: its processes take turns like anyone
  if (now_ < long_bursts_until_) return true;
  std::int64_t wanted = duty_sum_ppm_;
  if (running_.size() == 1) {  // not metered for long: take it for busy
    const Client& client = *running_.begin()->second;
    if (client.unread(now_) > kDutyMemory) wanted += kFull - client.meter.duty_ppm;
  }
  return wanted > (turns_ ? kTogetherBelow : kTurnsAbove);
}

// Nobody works in bursts, and would wait for long turns.
bool MeteredEngine::calm() const {
  return now_ - bursts_at_ >= kBurstsLast;
}

// As long as so many hand-overs, from `turn` to so many times that. When all is calm more, and with
// the GPU's own part of them, which is the larger one.
Duration MeteredEngine::worth(int hand_overs, int most_turns, bool calm) const {
  if (!calm) return std::clamp(hand_overs * hand_over_, config_.turn, most_turns * config_.turn);
  if (hand_over_ == Duration::zero()) return config_.turn;  // there was none
  const Duration takes = hand_over_ + std::max(kUnseenTimes * hand_over_, kUnseen);
  return std::clamp(hand_overs * takes, config_.turn, kCalm * most_turns * config_.turn);
}

// Long enough that handing over takes a hundredth of it: on a machine that is slow to wake programs
// up short turns would be little but hand-overs. And long enough for the burst of a client that
// will be idle behind it: others run in its gaps. Bursts cut into turns would all end at the same
// time, and then nobody would run.
Duration MeteredEngine::turn_of(const Client& client) const {
  const Duration turn = worth(kTurnsPerHandOver, kLongestTurn, calm());
  const Duration burst = std::max(client.meter.burst, client.meter.burst_so_far);
  if (burst > kLongestBurst * config_.turn) return turn;
  return std::max(turn, client.meter.burst + client.meter.burst / 4);
}

// It has been idle: what it did since the last time was a burst. Not when it was only cut off and
// asks again behind it, or when it was away for less than is worth waiting for.
void MeteredEngine::note_burst(Client& client, Time now) {
  const Duration idle = now - client.run.released_at;
  const Duration took = client.meter.burst_so_far;
  if (took == Duration::zero() || idle < took / kGapsOfBursts) return;
  if (client.meter.cut && idle < config_.turn) return;
  client.meter.burst_so_far = Duration::zero();
  bursts_at_ = now;
  client.meter.burst = took > client.meter.burst
                           ? took
                           : client.meter.burst - (client.meter.burst - took) / kBurstMemory;
}

// Who was cut off shows what a turn takes beside its work and the gaps in that. Of who had gone
// idle by itself only that it took no longer.
void MeteredEngine::note_hand_over(const Client& client, Duration used, Duration gaps, Time now) {
  if (!turns_ || !has_turn(client) || !contended(*client.share)) return;
  const Duration held = now - client.run.granted_at;
  const Duration work = std::min(used, held) + std::min(gaps, held);  // meters may lie
  const Duration rest = std::max(Duration::zero(), held - work);
  const Duration most = client.meter.cut ? kLongestTurn * config_.turn : hand_over_;
  hand_over_ += (std::min(rest, most) - hand_over_) / kHandOverMemory;
}

// A client of a higher priority waits: the holder keeps the shortest of turns.
bool MeteredEngine::outranked(const Client& holder) {
  for (const Share* one = holder.share; one != nullptr; one = one->meter.domain->owner) {
    if (one->meter.domain->is_occupied_above(level_of(*one))) return true;
  }
  return false;
}

// When the holder of the turn is told to stop, if it has not by itself. A client with a budget
// counts for itself; the double leaves room for gaps in its work and is the end for one that does
// not count.
std::optional<Time> MeteredEngine::turn_end(const Client& holder) const {
  if (contended(*holder.share)) {
    Duration most =
        has_turn(holder) ? 2 * std::max(config_.turn, *holder.run.budget) : holder.meter.turn;
    for (const Share* one = holder.share; one != nullptr; one = one->meter.domain->owner) {
      most = allowed_to_earn(holder, *one, most);
    }
    return holder.run.granted_at + (outranked(holder) ? std::min(most, config_.turn) : most);
  }
  if (!holder.run.budget) return std::nullopt;
  return holder.run.granted_at + 2 * *holder.run.budget + config_.turn;
}

// What a limit was to earn during the turn it was given for as long as no other limit is before it.
Duration MeteredEngine::allowed_to_earn(const Client& holder, const Share& share,
                                        Duration most) const {
  const Duration had = share.meter.at_grant;
  if (!share.limited() || !(holder.run.budget > had) || !other_limits_wait(share)) return most;
  const Duration unread = holder.unread(now_) - charged_unread(holder);
  const Duration first = now_ - holder.run.granted_at + stays_first(share, unread);
  return std::min(std::max({had, config_.turn, first}), holder.meter.turn);
}

// Best effort does not finish its turn when a tenant with a promise has work again, unless it is
// owed: short bursts would wait longer than they run. Nor does a tenant finish its turn when one
// that has had far less of its due comes back. Tenants are compared where their ways part.
bool MeteredEngine::gives_way(const Client& holder) const {
  const Share* share = share_in(whole_, *holder.share);
  const Share* next = first_in(whole_, now_);
  while (next == share && share->meter.inner != nullptr) {
    share = share_in(*next->meter.inner, *holder.share);
    next = first_in(*next->meter.inner, now_);
  }
  if (next == nullptr || next == share) return false;
  const MeterDomain& domain = *share->meter.domain;
  if (level_of(*next) < level_of(*share)) return false;
  const Duration unread = holder.unread(now_);
  if (tier_of(*next) != tier_of(*share)) {
    const Duration owed = best_effort_owed(domain, level_of(*share));
    const bool is_owed = owed >= config_.turn && owed > unread;
    const bool outranks = level_of(*next) > level_of(*share);
    return tier_of(*next) == kLimited && (outranks || !is_owed);
  }
  const VirtualTime stands =
      share->meter.vtime + virtual_time(*share, unread - charged_unread(holder));
  return next->meter.vtime + 4 * virtual_time(*next, holder.meter.turn) < stands;
}

Reason MeteredEngine::why_over(const Client& holder) const {
  if (contended(*holder.share) || !holder.run.budget) return {.why = Why::TurnOver};
  return {
      .why = Why::BudgetSpent, .used = now_ - holder.run.granted_at, .quota = *holder.run.budget};
}

// Processes of a tenant do not keep it from its own.
bool MeteredEngine::other_limits_wait(const Share& share) {
  const bool stands = share.meter.runnable && share.limited();
  return share.meter.domain->waiting[kLimited] > (stands ? 1 : 0);
}

// How long a tenant with a limit would stay the first in line if it ran: until it has had as much
// of its due as the next one, and a moment more. `unread`: what is not in its virtual time yet.
// Only where none but limits of its own priority wait: others have their own rules.
Duration MeteredEngine::stays_first(const Share& share, Duration unread) const {
  const MeterDomain& domain = *share.meter.domain;
  const Share* next = nullptr;
  bool others = domain.waiting[kBestEffort] > 0;
  domain.each_occupied([&](int, const MeterLevel& level) {
    const auto& queue = level.queue[kLimited];
    const auto other =
        std::find_if(queue.begin(), queue.end(), [&](const auto& one) { return one.of != &share; });
    if (other == queue.end()) return;
    next = other->of;
    others |= level_of(*next) != level_of(share);
  });
  if (next == nullptr || others) return Duration::zero();
  const VirtualTime lead = next->meter.vtime - share.meter.vtime - virtual_time(share, unread);
  if (lead <= 0) return Duration::zero();
  return Duration{static_cast<Duration::rep>(lead * share.limit / 100)} + config_.turn;
}

// The same for the share and all around it, where others wait.
Duration MeteredEngine::stays_first_around(Share& share) const {
  std::optional<Duration> least;
  each_around(share, [&](Share& one) {
    if (one.meter.domain->runnable() == (one.meter.runnable ? 1 : 0)) return;
    const Duration first = one.limited() ? stays_first(one, Duration::zero()) : Duration::zero();
    least = std::min(least.value_or(first), first);
  });
  return least.value_or(Duration::zero());
}

// What the limits of the share and of those around it leave; none without a limit.
std::optional<Duration> MeteredEngine::budget_of(Share& share, Duration first) const {
  std::optional<Duration> least;
  each_around(share, [&](Share& one) {
    if (!one.limited()) return;
    const Duration budget = !other_limits_wait(one)
                                ? lasts(one)
                                : std::max(one.meter.allowance, std::min(first, lasts(one)));
    least = std::min(least.value_or(budget), budget);
  });
  return least;
}

void MeteredEngine::grant_next_of(Share& share, bool in_turns, Time now, Decisions& out) {
  each_around(share, [&](Share& one) {
    settle(one);
    one.meter.domain->level(one.meter.level).waiting_since = now;
  });
  dequeue(share);
  each_around(share, [&](Share& one) { raise_floor(one); });
  Client& client = *std::get<Client*>(*share.ready.begin());
  const bool last = share.ready.size() == 1 && !anyone_runnable();
  client.meter.turn = turn_of(client);
  const bool cut = in_turns && !last;
  // Turns that it would have in a row are one.
  const Duration first = calm() ? stays_first_around(share) : Duration::zero();
  std::optional<Duration> budget = budget_of(share, first);
  if (budget) {
    if (share.ready.size() == 1) {
      const Duration longest = kCalm * kLongestTurn * config_.turn;
      const Duration most = std::min(kTurnsInOne * client.meter.turn, longest + longest / 2);
      client.meter.turn = std::max(client.meter.turn, std::min(first, most));
    }
    bool comes_first = true;
    each_around(share, [&](Share& one) { comes_first &= !other_limits_wait(one); });
    // What a turn leaves of that would be a sliver of its own, with nobody else in between.
    if (cut && comes_first && *budget < client.meter.turn + client.meter.turn / 2) {
      client.meter.turn = std::max(client.meter.turn, *budget);
    }
  }
  if (cut) budget = std::min(budget.value_or(client.meter.turn), client.meter.turn);
  // A budget of nothing would mean none.
  if (budget) budget = std::max(*budget, Duration{1});
  start(client, budget, {.why = Why::HasBudget}, now, out);
}

void MeteredEngine::start(Client& client, std::optional<Duration> budget, const Reason& why,
                          Time now, Decisions& out) {
  Share& share = *client.share;
  each_around(share, [](Share& one) {
    MeterLevel& level = one.meter.domain->level(level_of(one));
    level.best_effort_was_ahead = !one.limited() && !level.queue[kLimited].empty();
    one.meter.at_grant = one.meter.allowance;
  });
  const Share& competes = best_effort_of(share);
  client.meter.before_limits =
      competes.meter.domain->level(level_of(competes)).best_effort_was_ahead;
  client.meter.unlimited_mark = unlimited_time(share);
  client.meter.reported = Duration::zero();
  client.meter.charged_ahead = Duration::zero();
  client.meter.read_at = now;
  client.meter.had_since = now;
  share.meter.least_had = std::max(share.meter.least_had, client.meter.had);
  client.meter.duty_at = now;  // waiting for others says nothing of what it wants
  enter_running(client, next_seq_++, budget, why, now, out);
  running_.emplace(client.run.grant_seq, &client);
  ++slots_;
  unlimited_holder_ = share.limited() ? nullptr : &share;
  enqueue_if_runnable(share);
}

void MeteredEngine::grant_now(Client& client, const Reason& why, Time now, Decisions& out) {
  catch_up(now);
  dequeue(*client.share);
  client.meter.turn = turn_of(client);
  start(client, std::nullopt, why, now, out);
}

void MeteredEngine::take_turns(Time now, Decisions& out) {
  while (running_.size() > 1) {
    stop(*running_.rbegin()->second, {.why = Why::ModeChanged}, now, out);
  }
  if (!running_.empty()) {
    Client& holder = *running_.begin()->second;
    const auto end = turn_end(holder);
    if (end && now >= *end) {
      stop(holder, why_over(holder), now, out);
    } else if (gives_way(holder)) {
      stop(holder, {.why = Why::GivesWay}, now, out);
    }
  }
  if (slots_ > 0) return;
  if (Share* share = next_to_serve(now)) grant_next_of(*share, true, now, out);
}

void MeteredEngine::run_together(Time now, Decisions& out) {
  while (Share* share = next_to_serve(now)) grant_next_of(*share, false, now, out);
  std::vector<Client*> over;
  for (const auto& [seq, client] : running_) {
    const bool ignores = client->run.budget &&
                         now >= client->run.granted_at + 2 * *client->run.budget + config_.turn;
    if (is_throttled(*client->share) || ignores) over.push_back(client);
  }
  for (Client* client : over) stop(*client, why_over(*client), now, out);
  const bool watched = running_.size() > 1 || limited_active_ > 0;
  if (!watched || running_.empty() || now < sample_due_) return;
  for (const auto& [seq, client] : running_) {
    out.push_back({ReadMeter{client->id}, {.why = Why::SampleDue}});
  }
  sample_due_ = now + config_.sample_interval;
}

void MeteredEngine::decide(Time now, Decisions& out) {
  catch_up(now);
  deactivate_idle();
  apply_load();
  resume_refilled(whole_);
  std::ranges::sort(relimited_, {}, &Share::seq);
  for (Share* share : relimited_) {
    while (!share->held.empty()) {
      stop(*share->held.begin()->second, {.why = Why::LimitsChanged}, now, out);
    }
  }
  relimited_.clear();
  const bool turns = wants_turns();
  if (turns && !turns_) turns_since_ = now;
  turns_ = turns;
  if (turns_) {
    take_turns(now, out);
  } else {
    run_together(now, out);
  }
}

std::optional<Time> MeteredEngine::next_wakeup() const {
  std::optional<Time> next;
  const auto at = [&](Time time) { bring_forward(next, time); };
  if (const Fixed due = whole_.first_due(); due != kNever) at(now_ + whole_.until(due));
  if (turns_ && !running_.empty()) {
    if (const auto end = turn_end(*running_.begin()->second)) at(*end);
  }
  const bool watched = running_.size() > 1 || (limited_active_ > 0 && !running_.empty());
  if (!turns_ && watched) at(std::max(sample_due_, now_));
  return next;
}

// The share or the one around it that has used up its limit; the outermost of them, because what is
// inside it waits for it in any case.
const Share* MeteredEngine::throttled_around(const Share& share) {
  const Share* found = nullptr;
  for (const Share* one = &share; one != nullptr; one = one->meter.domain->owner) {
    if (one->meter.throttled) found = one;
  }
  return found;
}

// Tenants that go before the share in its domain.
int MeteredEngine::count_before(const Share& share) {
  int before = 0;
  share.meter.domain->each_occupied([&](int i, const MeterLevel& level) {
    if (i < share.meter.level) return;
    const bool own = i == share.meter.level;
    for (MeterTier tier : {kLimited, kBestEffort}) {
      for (const auto& [vtime, seq, other] : level.queue[tier]) {
        if (other == &share) continue;
        const bool own_tier = own && tier == tier_of(share);
        if (own_tier ? vtime < share.meter.vtime : !own || tier < tier_of(share)) ++before;
      }
    }
  });
  return before;
}

Reason MeteredEngine::explain(const Client& client, Time now) const {
  const Share& share = *client.share;
  if (client.run.phase == Phase::Running) {
    const bool alone = running_.size() == 1 && !anyone_runnable() && whole_.first_due() == kNever;
    return {.why = alone ? Why::RunningAlone : Why::Running};
  }
  for (const Share* one = &share; one != nullptr; one = one->meter.domain->owner) {
    if (one->overdue > 0) return {.why = Why::TenantOverdue};
  }
  if (const Share* binds = throttled_around(share)) {
    const MeterDomain& domain = *binds->meter.domain;
    const Duration debt = -std::min(Duration::zero(), allowance_now(*binds));
    // A limit that shrinks does so for that of its tenant.
    const bool shrunk = domain.owner != nullptr && domain.rate < kOne;
    return {.why = Why::OverLimit,
            .used = debt,
            .wait = domain.until(binds->meter.resumes->at) - (now - now_),
            .count = static_cast<int>((binds->limit * domain.whole_rate() + kOne / 2) / kOne),
            .level = shrunk ? domain.owner->tenant->id : level_that_binds(*binds, share)};
  }
  int before = 0;
  for (const Share* one = &share; one != nullptr; one = one->meter.domain->owner) {
    before += count_before(*one);
  }
  const auto me = share.ready.find(const_cast<Client&>(client).ready_key());
  if (me != share.ready.end()) {
    before += static_cast<int>(std::distance(share.ready.begin(), me));
  }
  return {.why = Why::WaitsForTurn, .count = before + slots_};
}

}  // namespace nvshare::core
