#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/arbiter/arbiter.h"
#include "daemon/lease/owner_watch.h"
#include "daemon/log.h"
#include "daemon/serve/reactor.h"
#include "daemon/state.h"

namespace nvshare::daemon {

using core::GpuId;
using core::LeaseId;

// What a service asks for, and for whom.
struct LeaseAsk {
  core::LeaseRequest request;  // its lease's number is given here
  std::optional<std::uint32_t> uid{};
  int owner = 0;               // the process with which the lease ends; 0: none
  bool with_children = false;  // processes below the owner hold the lease, too
  std::string trace{};
};

struct LeaseRecord {
  LeaseId id;
  std::string name;  // cannot be guessed
  LeaseAsk ask;
};

// A process that holds a lease, or held one.
struct LeaseHolder {
  ProcessKey process;
  bool with_children = false;  // processes below it hold the lease, too
  // Whose programs can be meant: those of root's leases are anybody's.
  std::optional<std::uint32_t> uid{};
};

// A holder after the end of its lease or request.
struct LateHolder {
  std::string name;  // of the lease
  LeaseHolder holder;
  GpuId gpu;
  Time until{};
};

// A lease that was taken away: its holder is told so when it asks.
struct PastLease {
  std::string name;
  std::optional<std::uint32_t> uid;
  std::string_view reason;
};

// What has become of a request or a lease, for `nvshare trace`.
struct LeaseEvent {
  std::string_view name;  // a literal: "lease_asked"
  bool ends = false;      // the last one of this lease
  std::string_view outcome{};
  std::string_view reason{};
  std::optional<Duration> waited{};
};

// The arbiter with names, owners and time. The arbiter decides; here answers find their way.
class Leases {
 public:
  // An answer to a request that has waited.
  using OnAnswer = std::function<void(const LeaseRecord&, const core::Answer&)>;

  // A request that waited is withdrawn: by DELETE, or because its owner has ended.
  using OnWithdrawn = std::function<void(const LeaseRecord&, std::string_view reason)>;

  using OnEvent = std::function<void(const LeaseRecord&, const LeaseEvent&)>;

  using Now = std::function<Time()>;

  // The reactor tells when owners end.
  Leases(const core::ArbiterConfig& config, Now now, Reactor& reactor, const Processes& processes,
         Log& log);

  void on_answer(OnAnswer call) { on_answer_ = std::move(call); }
  void on_withdrawn(OnWithdrawn call) { on_withdrawn_ = std::move(call); }
  void on_event(OnEvent call) { on_event_ = std::move(call); }
  void add_gpu(GpuId gpu) { arbiter_.add_gpu(gpu); }
  void set_config(const core::ArbiterConfig& config);
  void take_sample(GpuId gpu, const core::UsageSample& sample);

  // The lease, with the answer unless the request waits. An error for a request that makes no
  // sense, or whose owner is gone.
  struct Asked {
    LeaseRecord lease;
    std::optional<core::Answer> answer;
  };
  Result<Asked> ask(LeaseAsk ask);
  // Called when active leases come, go or are renewed.
  void on_change(std::function<void()> call) { on_change_ = std::move(call); }
  // The active ones, as they outlast a restart; `uuid` names their GPUs.
  using UuidOf = std::function<Uuid(GpuId)>;
  std::vector<KeptLease> kept(const UuidOf& uuid) const;
  // A lease of a scheduler before this one, on a GPU that is there. Its owner may be gone.
  Result<void> restore(const KeptLease& lease, GpuId gpu);

  // Gives the lease back, or withdraws the request.
  void release(LeaseId lease) { end(lease, "WITHDRAWN"); }
  Result<Time> renew(LeaseId lease, std::optional<Duration> hold);

  // Nothing for a lease without an owner.
  std::optional<LeaseHolder> holder_of(LeaseId lease) const;

  // What of programs under nvshare matters for leases.
  struct Programs {
    // The holder has a program on the GPU; all the memory of its programs is there.
    std::function<bool(const LeaseHolder&, GpuId)> any;
    std::function<bool(const LeaseHolder&, GpuId)> ready;
  };
  void use_programs(Programs programs) { programs_ = std::move(programs); }
  // Holders of leases that were held for too long. They stay off the GPU while others hold leases
  // there or wait for one.
  const std::vector<LateHolder>& overdue() const { return overdue_; }
  const LateHolder* find_overdue(const std::string& name) const;
  // Holders whose request was refused because their memory was away. It comes in for a while.
  const std::vector<LateHolder>& called() const { return called_; }
  static constexpr Duration kCalledFor = 10s;
  static constexpr std::ptrdiff_t kMostLate = 64;  // of one user
  // True: something was answered.
  bool look_at_preparing();
  // Its holder knows that this lease is over, and gives it back late.
  void give_back_late(const std::string& name);
  // A lease or request is owned by a process.
  bool any_owned() const { return !by_owner_.empty(); }
  const LeaseRecord* find(const std::string& name) const;
  const LeaseRecord* find(LeaseId lease) const;
  const PastLease* find_past(const std::string& name) const;
  const core::Arbiter& arbiter() const { return arbiter_; }
  bool empty() const { return records_.empty(); }
  // A lease was there, or asked for, since the scheduler has started.
  bool used(GpuId gpu) const { return used_.contains(gpu); }
  // Another number means that leases or requests may have come, gone or changed.
  std::uint64_t changes() const { return changes_; }

  // What is due now.
  void end_of_turn();
  std::optional<Time> next_wakeup() const { return arbiter_.next_wakeup(); }
  // About once a second.
  void look();

  static constexpr std::size_t kMostPast = 4096;

 private:
  void add(LeaseRecord record);
  void spread(const core::Answers& answers);
  std::optional<core::Answer> ready_at_once(LeaseId lease);
  void add_late(std::vector<LateHolder>& to, const LeaseRecord& record, Time until);
  void call_for_a_while(const LeaseRecord& record);
  void note_overdue(const LeaseRecord& record);
  void forgive(const LeaseRecord& record);
  void end(LeaseId lease, std::string_view reason);
  void owner_ended(int pid);
  void forget(LeaseId lease);
  void keep_past(const LeaseRecord& record, std::string_view reason);

  Now now_;
  Log& log_;
  core::Arbiter arbiter_;
  OwnerWatch owners_;
  OnAnswer on_answer_;
  OnWithdrawn on_withdrawn_;
  std::function<void()> on_change_ = [] {};
  OnEvent on_event_ = [](const LeaseRecord&, const LeaseEvent&) {};
  std::unordered_map<LeaseId, LeaseRecord> records_;
  std::unordered_map<std::string, LeaseId> by_name_;
  std::multimap<int, LeaseId> by_owner_;
  std::deque<PastLease> past_;
  std::vector<LateHolder> overdue_;
  std::vector<LateHolder> called_;
  std::vector<LeaseId> preparing_;
  Programs programs_{[](const auto&, GpuId) { return false; },
                     [](const auto&, GpuId) { return true; }};
  std::set<GpuId> used_;
  std::uint64_t last_ = 0;
  std::uint64_t changes_ = 0;
};

}  // namespace nvshare::daemon
