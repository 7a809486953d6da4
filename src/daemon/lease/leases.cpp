#include "daemon/lease/leases.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ranges>

namespace nvshare::daemon {
namespace {

constexpr std::string_view kOwnerGone = "OWNER_GONE";

// 128 bits of the kernel's randomness, in hexadecimal digits. Empty when there is none.
std::string random_name() {
  std::array<std::uint64_t, 2> bits{};
  if (getrandom(bits.data(), sizeof bits, 0) != sizeof bits) return "";
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

LeaseEvent event_of(const core::Answer& answer) {
  if (answer.outcome == core::Outcome::Acquired) {
    return {"lease_acquired", false, {}, {}, answer.waited};
  }
  if (answer.outcome == core::Outcome::Revoked) {
    return {"lease_revoked", true, {}, core::name_of(answer.reason)};
  }
  return {"lease_refused", true, core::name_of(answer.outcome), core::name_of(answer.reason),
          answer.waited};
}

}  // namespace

Leases::Leases(const core::ArbiterConfig& config, Now now, Reactor& reactor,
               const Processes& processes, Log& log)
    : now_(std::move(now)),
      log_(log),
      arbiter_(config),
      owners_(reactor, processes, [this](int pid) { owner_ended(pid); }) {}

void Leases::set_config(const core::ArbiterConfig& config) {
  if (config != arbiter_.config()) spread(arbiter_.set_config(config, now_()));
}

void Leases::take_sample(GpuId gpu, const core::UsageSample& sample) {
  spread(arbiter_.take_sample(gpu, sample, now_()));
}

Result<Leases::Asked> Leases::ask(LeaseAsk ask) {
  LeaseRecord record{LeaseId{++last_}, random_name(), std::move(ask)};
  record.ask.request.lease = record.id;
  if (record.name.empty()) return Error{"the kernel has no random numbers now; ask again"};
  const int owner = record.ask.owner;
  if (owner != 0 && !owners_.add(owner)) return Error{fmt::format("process {} is gone", owner)};
  if (owner != 0) {
    const LeaseHolder holder{*owners_.key_of(owner), record.ask.with_children, record.ask.uid};
    record.ask.request.has_memory = programs_.any(holder, record.ask.request.gpu);
  }
  const auto answers = arbiter_.ask(record.ask.request, now_());
  if (!answers) {
    if (owner != 0) owners_.remove(owner);
    return answers.error();
  }
  Asked asked{record, std::nullopt};
  for (const core::Answer& answer : *answers) {
    if (answer.lease == record.id) asked.answer = answer;
  }
  add(std::move(record));
  on_event_(asked.lease, {"lease_asked"});
  spread(*answers);
  if (asked.answer && asked.answer->outcome == core::Outcome::Preparing) {
    asked.answer = ready_at_once(asked.lease.id);
  }
  return asked;
}

// Mostly the memory is there already.
std::optional<core::Answer> Leases::ready_at_once(LeaseId lease) {
  const auto holder = holder_of(lease);
  const auto view = arbiter_.lease(lease);
  if (!holder || !view || !programs_.ready(*holder, view->gpu)) return std::nullopt;
  const auto answers = arbiter_.ready(lease, now_());
  if (!answers) return std::nullopt;
  std::optional<core::Answer> answer;
  for (const core::Answer& one : *answers) {
    if (one.lease == lease) answer = one;
  }
  spread(*answers);
  return answer;
}

bool Leases::look_at_preparing() {
  bool any = false;
  for (const LeaseId lease : std::vector(preparing_)) any |= ready_at_once(lease).has_value();
  std::erase_if(preparing_, [&](LeaseId lease) {
    const auto view = arbiter_.lease(lease);
    return !view || !view->preparing;
  });
  return any;
}

void Leases::add(LeaseRecord record) {
  ++changes_;
  used_.insert(record.ask.request.gpu);
  if (record.ask.owner != 0) by_owner_.emplace(record.ask.owner, record.id);
  by_name_.emplace(record.name, record.id);
  records_.emplace(record.id, std::move(record));
}

// Each answer ends a wait or a lease. A lease that was granted to a request that did not wait is
// told by ask().
void Leases::spread(const core::Answers& answers) {
  const auto active = [](const core::Answer& answer) {
    return answer.outcome == core::Outcome::Acquired || answer.outcome == core::Outcome::Revoked ||
           answer.outcome == core::Outcome::Preparing ||
           answer.reason == core::LeaseReason::GpuMemory;
  };
  if (!answers.empty()) ++changes_;
  if (std::ranges::any_of(answers, active)) on_change_();
  for (const core::Answer& answer : answers) {
    const auto at = records_.find(answer.lease);
    if (at == records_.end()) continue;
    const LeaseRecord record = at->second;
    if (answer.outcome == core::Outcome::Preparing) {
      preparing_.push_back(record.id);
      continue;
    }
    // Its holder has asked again.
    if (answer.outcome == core::Outcome::Acquired) forgive(record);
    if (answer.reason == core::LeaseReason::GpuMemory) call_for_a_while(record);
    on_event_(record, event_of(answer));
    if (answer.outcome == core::Outcome::Revoked) {
      if (answer.reason == core::LeaseReason::Overdue) note_overdue(record);
      log_.warn("lease_revoked", {{"class", record.ask.request.task_class},
                                  {"pid", record.ask.owner},
                                  {"reason", core::name_of(answer.reason)}});
      keep_past(record, core::name_of(answer.reason));
    }
    if (answer.outcome != core::Outcome::Acquired) forget(answer.lease);
    if (on_answer_ && answer.outcome != core::Outcome::Revoked) on_answer_(record, answer);
  }
}

void Leases::end(LeaseId lease, std::string_view reason) {
  const auto view = arbiter_.lease(lease);
  const LeaseRecord* const found = find(lease);
  // A request whose memory is on its way has its slot, and no answer.
  const bool waits = view && (!view->active || view->preparing);
  if (waits && found != nullptr && on_withdrawn_) on_withdrawn_(*found, reason);
  if (view && found != nullptr) {
    const bool is_usual = !waits && reason != kOwnerGone;
    on_event_(*found, {waits ? "lease_withdrawn" : "lease_released",
                       true,
                       {},
                       is_usual ? std::string_view() : reason});
  }
  const auto answers = arbiter_.release(lease, now_());
  forget(lease);
  on_change_();
  if (answers) spread(*answers);
}

Result<Time> Leases::renew(LeaseId lease, std::optional<Duration> hold) {
  const auto until = arbiter_.renew(lease, hold, now_());
  if (!until) return until;
  ++changes_;
  on_change_();
  return until;
}

// --- restarts ----------------------------------------------------------------------------------

std::vector<KeptLease> Leases::kept(const UuidOf& uuid) const {
  std::vector<KeptLease> all;
  for (const core::LeaseView& view : arbiter_.active()) {
    const LeaseRecord* record = find(view.lease);
    if (record == nullptr || view.preparing) continue;
    const int owner = record->ask.owner;
    const auto key = owners_.key_of(owner);
    if (owner != 0 && !key) continue;  // it has just ended
    all.push_back({record->name, view.task_class, uuid(view.gpu), record->ask.uid, owner,
                   key ? key->started : 0, record->ask.with_children, record->ask.trace,
                   record->ask.request.hold_max, view.acquired, view.until});
  }
  return all;
}

Result<void> Leases::restore(const KeptLease& kept, GpuId gpu) {
  LeaseRecord record{
      LeaseId{++last_}, kept.name, {{}, kept.uid, kept.pid, kept.with_children, kept.trace}};
  core::LeaseRequest& request = record.ask.request;
  request.lease = record.id;
  request.gpu = gpu;
  request.task_class = kept.task_class;
  request.hold_max = kept.hold;
  const auto gone = [&](std::string_view reason) {
    keep_past(record, reason);
    return Error{std::string(reason)};
  };
  if (by_name_.contains(kept.name)) return Error{"this lease is there already"};
  if (kept.expires <= now_()) return gone(core::name_of(core::LeaseReason::Overdue));
  if (kept.pid != 0 && !owners_.add(kept.pid, kept.started)) return gone(kOwnerGone);
  if (const auto done = arbiter_.restore(request, kept.acquired, kept.expires); !done) {
    if (kept.pid != 0) owners_.remove(kept.pid);
    return done;
  }
  const LeaseId id = record.id;
  add(std::move(record));
  on_event_(*find(id), {"lease_restored"});
  return {};
}

// --- leases that were held for too long -------------------------------------------------------

// One for each process and GPU, and so many of a user: nobody fills the list of all.
void Leases::add_late(std::vector<LateHolder>& to, const LeaseRecord& record, Time until) {
  const auto holder = holder_of(record.id);
  if (!holder) return;
  const GpuId gpu = record.ask.request.gpu;
  const auto is_same = [&](const LateHolder& one) {
    return one.holder.process == holder->process && one.gpu == gpu;
  };
  const auto is_users = [&](const LateHolder& one) { return one.holder.uid == holder->uid; };
  std::erase_if(to, is_same);
  if (std::ranges::count_if(to, is_users) >= kMostLate)
    to.erase(std::ranges::find_if(to, is_users));
  to.push_back({record.name, *holder, gpu, until});
}

void Leases::note_overdue(const LeaseRecord& record) {
  add_late(overdue_, record, Time::max());
}

// A request that did not wait finds its memory there when it comes again.
void Leases::call_for_a_while(const LeaseRecord& record) {
  add_late(called_, record, now_() + kCalledFor);
}

void Leases::forgive(const LeaseRecord& record) {
  if (overdue_.empty() && called_.empty()) return;
  const auto holder = holder_of(record.id);
  if (!holder) return;
  const auto is_its = [&](const LateHolder& one) {
    return one.holder.process == holder->process && one.gpu == record.ask.request.gpu;
  };
  std::erase_if(overdue_, is_its);
  std::erase_if(called_, is_its);
}

const LateHolder* Leases::find_overdue(const std::string& name) const {
  const auto at = std::ranges::find(overdue_, name, &LateHolder::name);
  return at == overdue_.end() ? nullptr : &*at;
}

void Leases::give_back_late(const std::string& name) {
  const auto known = [&](const LateHolder& one) { return one.name == name; };
  if (std::erase_if(overdue_, known) == 0) return;
  ++changes_;
  on_change_();
}

void Leases::look() {
  owners_.look();
  const auto is_over = [&](const LateHolder& one) {
    return one.until <= now_() || !owners_.lives(one.holder.process);
  };
  if (std::erase_if(overdue_, is_over) + std::erase_if(called_, is_over) == 0) return;
  ++changes_;
  on_change_();
}

void Leases::owner_ended(int pid) {
  std::vector<LeaseId> theirs;
  const auto [from, to] = by_owner_.equal_range(pid);
  for (auto at = from; at != to; ++at) theirs.push_back(at->second);
  // Those that wait first: a lease that ends would be granted to one of them.
  std::ranges::partition(theirs, [&](LeaseId lease) {
    const auto view = arbiter_.lease(lease);
    return view && !view->active;
  });
  for (const LeaseId lease : theirs) {
    const LeaseRecord* record = find(lease);
    if (record == nullptr) continue;
    keep_past(*record, kOwnerGone);
    end(lease, kOwnerGone);
  }
}

void Leases::forget(LeaseId lease) {
  ++changes_;
  const auto at = records_.find(lease);
  if (at == records_.end()) return;
  by_name_.erase(at->second.name);
  if (const int owner = at->second.ask.owner; owner != 0) {
    const auto [from, to] = by_owner_.equal_range(owner);
    for (auto one = from; one != to; ++one) {
      if (one->second != lease) continue;
      by_owner_.erase(one);
      break;
    }
    owners_.remove(owner);
  }
  records_.erase(at);
}

void Leases::keep_past(const LeaseRecord& record, std::string_view reason) {
  past_.push_back({record.name, record.ask.uid, reason});
  if (past_.size() > kMostPast) past_.pop_front();
}

std::optional<LeaseHolder> Leases::holder_of(LeaseId lease) const {
  const LeaseRecord* record = find(lease);
  if (record == nullptr || record->ask.owner == 0) return std::nullopt;
  const auto owner = owners_.key_of(record->ask.owner);
  if (!owner) return std::nullopt;
  return LeaseHolder{*owner, record->ask.with_children, record->ask.uid};
}

const LeaseRecord* Leases::find(LeaseId lease) const {
  const auto at = records_.find(lease);
  return at == records_.end() ? nullptr : &at->second;
}

const LeaseRecord* Leases::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : find(at->second);
}

const PastLease* Leases::find_past(const std::string& name) const {
  for (const PastLease& one : std::views::reverse(past_)) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

void Leases::end_of_turn() {
  const auto due = arbiter_.next_wakeup();
  // Memory may have come in the turn in which a wait for it ends.
  if (!preparing_.empty()) (void)look_at_preparing();
  if (due && *due <= now_()) spread(arbiter_.tick(now_()));
}

}  // namespace nvshare::daemon
