#include "core/window_engine.h"

#include <algorithm>
#include <utility>

namespace nvshare::core {
namespace {

Fixed percent_of(Fixed value, int percent) {
  return value * percent / 100;
}

}  // namespace

WindowEngine::WindowEngine(const Config& config, WindowPolicy policy, Time now)
    : config_(config),
      policy_(policy),
      rules_(policy({}, config)),
      clock_at_(now),
      window_start_(now) {}

// --- the bill ----------------------------------------------------------------------------------

// None: never stopped for its bill. Alone in its turn even a tenant without a limit has a quota, or
// nobody else would ever get one.
std::optional<Fixed> WindowEngine::quota_of(const Share& share) const {
  if (!share.limited() && (!rules_.serial || share.has_parts)) return std::nullopt;
  return quota_at(share.limit);
}

Fixed WindowEngine::quota_at(int limit) const {
  const Fixed quota = percent_of(to_fixed(config_.window), limit);
  return rules_.scale_quota && load_.limit_sum > 100 ? quota * 100 / load_.limit_sum : quota;
}

void WindowEngine::advance_clock(Time now) {
  Fixed passed = billing_ ? to_fixed(now - clock_at_) : 0;
  if (rules_.divide_bill && running_ > 1) passed /= running_;
  clock_ += passed;
  clock_at_ = now;
}

Fixed WindowEngine::billed_until_now(const Share& share) const {
  const WindowAccount& account = share.window;
  if (share.running == 0) return account.used;
  const int times = rules_.divide_bill ? share.running : 1;
  Fixed passed = (clock_ - account.mark) * times;
  const bool tail = share.stopping == share.running && share.overdue == 0;
  if (tail) passed = percent_of(passed, config_.tail_billing_percent);
  return account.used + passed;
}

void WindowEngine::settle(Share& share) {
  const Fixed used = billed_until_now(share);
  share.billed += used - share.window.used;
  share.window.used = used;
  share.window.mark = clock_;
}

void WindowEngine::unindex(Share& share) {
  if (!share.window.indexed) return;
  exhaustion_.erase({share.window.exhausts_at, share.seq, &share});
  share.window.indexed = false;
}

// Notes when the quota of a settled share will be spent, if it runs.
void WindowEngine::index(Share& share) {
  unindex(share);
  const auto quota = quota_of(share);
  if (!quota || share.running == share.stopping || share.window.throttled) return;
  const int times = rules_.divide_bill ? share.running : 1;
  const Fixed left = std::max<Fixed>(0, *quota - share.window.used);
  share.window.exhausts_at = clock_ + (left + times - 1) / times;
  share.window.indexed = true;
  exhaustion_.emplace(share.window.exhausts_at, share.seq, &share);
}

// --- windows -----------------------------------------------------------------------------------

Fixed WindowEngine::carry(Fixed used, Fixed quota) const {
  return percent_of(std::max<Fixed>(0, used - quota), config_.carryover_percent);
}

void WindowEngine::enter_window(Share& share) const {
  enter_window(share.window, quota_of(share).value_or(to_fixed(config_.window)));
}

// Brings an account that slept through window ends into the present window.
void WindowEngine::enter_window(WindowAccount& account, Fixed quota) const {
  std::int64_t steps = window_no_ - account.window;
  account.window = window_no_;
  if (steps == 0 || account.used == 0) return;
  if (config_.carryover_percent == 100) {
    const Fixed enough = account.used / quota + 1;
    account.used = enough <= steps ? 0 : account.used - quota * steps;
    return;
  }
  for (; steps > 0 && account.used > 0; --steps) {
    account.used = carry(account.used, quota);
  }
}

void WindowEngine::start_window(Time start, std::int64_t steps) {
  window_start_ = start;
  window_no_ += steps;
  for (const auto& [seq, share] : running_shares_) {
    settle(*share);
    enter_window(*share);
    index(*share);
  }
  unthrottle_where_possible();
}

// Under stretch_window a round that somebody with quota is still waiting for goes on.
bool WindowEngine::waits_for_round() const {
  return rules_.serial && rules_.stretch_window && !(eligible_.empty() && running_clients_.empty());
}

void WindowEngine::catch_up(Time now) {
  if (running_ == 0 && throttled_.empty() && now >= window_end()) {  // nothing happened meanwhile
    const std::int64_t steps = (now - window_start_) / config_.window;
    clock_at_ = now;
    start_window(window_start_ + steps * config_.window, steps);
    return;
  }
  while (now >= window_end() && !waits_for_round()) {
    const Time end = std::max(window_end(), clock_at_);
    advance_clock(end);
    collect_exhausted(end);
    // What is not billed changes nothing from one window to the next, however many have passed.
    const std::int64_t more = billing_ ? 0 : (now - end) / config_.window;
    start_window(end + more * config_.window, 1 + more);
  }
  advance_clock(now);
}

// --- throttling --------------------------------------------------------------------------------

void WindowEngine::throttle(Share& share, Time now) {
  settle(share);
  unindex(share);
  share.window.throttled = true;
  if (!share.first_throttle) share.first_throttle = now;
  throttled_.emplace(share.seq, &share);
  withdraw_all_in(share);
}

void WindowEngine::withdraw_all_in(const Share& share) {
  for (const auto& entry : share.ready) eligible_.erase(entry);
  for (const Share* part : share.family().parts) withdraw_all_in(*part);
}

// Lets a settled share's ready clients run, if it has quota, and all that it is a part of.
void WindowEngine::offer(Share& share) {
  if (share.overdue > 0) return;
  bool may_run = true;
  each_level(share, [&](Share& one) {
    if (one.window.throttled) may_run = false;
    const auto quota = quota_of(one);
    if (!may_run || !quota || one.window.used < *quota) return;
    throttle(one, clock_at_);
    may_run = false;
  });
  if (may_run) eligible_.insert(share.ready.begin(), share.ready.end());
}

void WindowEngine::offer_all_in(Share& share) {
  if (!share.ready.empty()) offer(share);
  if (!share.has_parts) return;
  for (Share* part : share.family().parts) offer_all_in(*part);
}

void WindowEngine::unthrottle(Share& share) {
  share.window.throttled = false;
  offer_all_in(share);
  index(share);
}

void WindowEngine::unthrottle_if_possible(Share& share) {
  settle(share);
  enter_window(share);
  const auto quota = quota_of(share);
  if (quota && share.window.used >= *quota) return;
  throttled_.erase({share.seq, &share});
  unthrottle(share);
}

void WindowEngine::unthrottle_where_possible() {
  for (auto it = throttled_.begin(); it != throttled_.end();)
    unthrottle_if_possible(*(it++)->second);
}

// Quotas that end at this very moment count as spent, also when a window ends with them.
void WindowEngine::collect_exhausted(Time now) {
  while (!exhaustion_.empty() && std::get<0>(*exhaustion_.begin()) <= clock_) {
    Share* share = std::get<2>(*exhaustion_.begin());
    throttle(*share, now);
    newly_exhausted_.emplace(share->seq, share);
  }
}

// --- what the owner tells ----------------------------------------------------------------------

void WindowEngine::make_ready(Client& client, Time now) {
  catch_up(now);
  Share& share = *client.share;
  each_level(share, [&](Share& one) {
    settle(one);
    enter_window(one);
  });
  const int before = share.wanting;
  enter_ready(client, next_seq_++);
  wanting_changed(share, before);
  offer(share);
}

void WindowEngine::make_unready(Client& client, Time now) {
  catch_up(now);
  eligible_.erase(client.ready_key());
  const int before = client.share->wanting;
  leave_ready(client);
  wanting_changed(*client.share, before);
}

void WindowEngine::grant_now(Client& client, const Reason& why, Time now, Decisions& out) {
  catch_up(now);
  Share& share = *client.share;
  eligible_.erase(client.ready_key());
  each_level(share, [&](Share& one) {
    settle(one);
    enter_window(one);
  });
  enter_running(client, next_seq_++, std::nullopt, why, now, out);
  running_clients_.emplace(client.run.grant_seq, &client);
  ++running_;
  ++slots_;
  each_level(share, [&](Share& one) {
    running_shares_.emplace(one.seq, &one);
    index(one);
  });
}

void WindowEngine::stop(Client& client, const Reason& why, Time now, Decisions& out) {
  catch_up(now);
  each_level(*client.share, [&](Share& one) { settle(one); });
  running_clients_.erase({client.run.grant_seq, &client});
  enter_stopping(client, why, now, out);
  each_level(*client.share, [&](Share& one) { index(one); });
}

// Its tenant gets nothing more until it has stopped.
void WindowEngine::mark_overdue(Client& client, Time now) {
  catch_up(now);
  each_level(*client.share, [&](Share& one) { settle(one); });
  enter_overdue(client);
  for (const auto& entry : client.share->ready) eligible_.erase(entry);
  --slots_;
}

void WindowEngine::release(Client& client, Duration, Duration, Time now) {
  catch_up(now);
  Share& share = *client.share;
  each_level(share, [&](Share& one) { settle(one); });
  if (client.run.phase != Phase::Overdue) --slots_;
  running_clients_.erase({client.run.grant_seq, &client});
  --running_;
  const int before = share.wanting;
  leave_running(client, now);
  wanting_changed(share, before);
  offer(share);
  each_level(share, [&](Share& one) {
    if (one.running == 0) running_shares_.erase({one.seq, &one});
    index(one);
  });
}

void WindowEngine::read_meter(Client&, Duration, Time now) {
  catch_up(now);
}

// The bill clock stands still.
void WindowEngine::set_billing(bool on, Time now) {
  catch_up(now);
  billing_ = on;
}

// --- decisions ---------------------------------------------------------------------------------

// The tenants that want the GPU have changed: bills so far follow the old rules, from here the new.
void WindowEngine::apply_load() {
  if (std::exchange(parts_changed_, false)) add_up_limits();
  if (load_changed_ == load_) return;
  const WindowRules rules = policy_(load_changed_, config_);
  if (rules == rules_ && !rules.scale_quota) {
    load_ = load_changed_;
    return;
  }
  for (const auto& [seq, share] : running_shares_) settle(*share);
  load_ = load_changed_;
  rules_ = rules;
  unthrottle_where_possible();
  for (const auto& [seq, share] : running_shares_) index(*share);
}

void WindowEngine::drop_exhausted(Time now, Decisions& out) {
  collect_exhausted(now);
  for (const auto& [seq, share] : std::exchange(newly_exhausted_, {})) {
    const Reason why{.why = Why::BudgetSpent,
                     .used = from_fixed(share->window.used),
                     .quota = from_fixed(quota_of(*share).value_or(0)),
                     .wait = until_quota(*share, share->window.used, now)};
    stop_all_in(*share, why, now, out);
  }
}

void WindowEngine::stop_all_in(Share& share, const Reason& why, Time now, Decisions& out) {
  while (!share.held.empty()) stop(*share.held.begin()->second, why, now, out);
  if (!share.has_parts) return;
  for (Share* part : share.family().parts) stop_all_in(*part, why, now, out);
}

void WindowEngine::keep_one_running(Time now, Decisions& out) {
  if (!rules_.serial || running_clients_.empty()) return;
  while (running_clients_.size() > 1) {
    stop(*running_clients_.rbegin()->second, {.why = Why::ModeChanged}, now, out);
  }
  Client& holder = *running_clients_.begin()->second;
  const bool over = rules_.turn > Duration::zero() && now >= holder.run.granted_at + rules_.turn;
  if (over && !eligible_.empty()) stop(holder, {.why = Why::TurnOver}, now, out);
}

void WindowEngine::grant_what_may_run(Time now, Decisions& out) {
  const bool slot_taken = rules_.serial && slots_ > 0;
  if (slot_taken) return;
  while (!eligible_.empty()) {
    grant_now(*std::get<Client*>(*eligible_.begin()), {.why = Why::HasBudget}, now, out);
    if (rules_.serial) return;
  }
}

void WindowEngine::decide(Time now, Decisions& out) {
  catch_up(now);
  apply_load();
  drop_exhausted(now, out);
  if (now >= window_end() &&
      !waits_for_round()) {  // the last of a stretched round has had its quota
    start_window(now, 1);
  }
  keep_one_running(now, out);
  grant_what_may_run(now, out);
  drop_exhausted(now, out);  // granted with nothing left, when a quota shrank to what was used
}

std::optional<Time> WindowEngine::next_wakeup() const {
  std::optional<Time> next;
  const auto at = [&](Time time) { bring_forward(next, time); };
  if (!exhaustion_.empty()) {
    Fixed left = std::get<0>(*exhaustion_.begin()) - clock_;
    if (rules_.divide_bill && running_ > 1) left *= running_;
    at(clock_at_ + from_fixed_up(std::max<Fixed>(0, left)));
  }
  if ((running_ > 0 || !throttled_.empty()) && !waits_for_round()) at(window_end());
  if (rules_.serial && rules_.turn > Duration::zero() && !running_clients_.empty() &&
      !eligible_.empty()) {
    at(running_clients_.begin()->second->run.granted_at + rules_.turn);
  }
  return next;
}

// A large overrun is waited off over several windows.
Duration WindowEngine::until_quota(const Share& share, Fixed used, Time now) const {
  const Fixed quota = std::max<Fixed>(1, quota_of(share).value_or(to_fixed(config_.window)));
  Fixed windows = 0;
  if (config_.carryover_percent == 100) {
    windows = std::max<Fixed>(0, used / quota - 1);
  } else {
    for (used = carry(used, quota); used >= quota; used = carry(used, quota)) ++windows;
  }
  return std::max(Duration::zero(), window_end() - now) + wait_of(windows * config_.window.count());
}

Reason WindowEngine::explain(const Client& client, Time now) const {
  const Share& share = *client.share;
  if (client.run.phase == Phase::Running) {
    return {.why = running_ == 1 && eligible_.empty() ? Why::RunningAlone : Why::Running};
  }
  if (share.overdue > 0) return {.why = Why::TenantOverdue};
  const Share* binds = nullptr;  // the outermost
  for (const Share* one = &share; one != nullptr; one = one->parent) {
    if (one->window.throttled) binds = one;
  }
  if (binds != nullptr) {
    return {.why = Why::BudgetSpent,
            .used = from_fixed(billed_until_now(*binds)),
            .quota = from_fixed(quota_of(*binds).value_or(0)),
            .wait = until_quota(*binds, billed_until_now(*binds), now),
            .level = level_that_binds(*binds, share)};
  }
  const auto me = eligible_.find(const_cast<Client&>(client).ready_key());
  return {
      .why = Why::WaitsForTurn,
      .count = me == eligible_.end() ? 0 : static_cast<int>(std::distance(eligible_.begin(), me))};
}

}  // namespace nvshare::core
