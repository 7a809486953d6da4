#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/arbiter/arbiter.h"
#include "core/arbiter/usage_meter.h"
#include "core/event.h"
#include "sim/process.h"
#include "sim/simulator.h"

namespace nvshare::sim {

// The scenario's arbiter, and what its services have of it: leases, lent priorities, reports. Knows
// nothing of the core; the simulator carries what is said from one to the other.
class Services {
 public:
  // A client asks for leases.
  static bool any(const Scenario& scenario);
  Services(const Scenario& scenario, std::size_t gpus, bool keep_spans);

  // What a process is told.
  struct Verdict {
    std::size_t process = 0;
    core::Answer answer;
  };
  using Verdicts = std::vector<Verdict>;

  // The process asks for its next lease; `again`: for one that it was refused. An error for a
  // request that makes no sense.
  Result<Verdicts> ask(Process& p, bool again, Time now);
  // The process gives its lease back, or does not wait for it any more.
  Verdicts give_back(Process& p, Time now);
  // `seen`: percent of the time since the last sample in which the GPU was busy.
  Verdicts sample(std::size_t gpu, const core::Snapshot& bills, int seen, Time now);
  Verdicts tick(Time now);
  std::optional<Time> next_wakeup() const { return arbiter_.next_wakeup(); }

  // What the core is to be told since the last call: holders have the priority of their class.
  std::vector<core::PriorityLent> take_lent() { return std::exchange(lent_now_, {}); }
  const core::Arbiter& arbiter() const { return arbiter_; }

  PressureReport pressure(std::size_t gpu, Time now);
  std::vector<ServiceReport> reports(Time now);

 private:
  struct Service {
    ServiceReport report;
    std::vector<Duration> waits;
  };
  // A request that waits, or a lease.
  struct Holder {
    Process* process = nullptr;
    core::GpuId gpu;
    int priority = 0;  // that it lends
    std::optional<Time> acquired{};
  };
  struct Gpu {
    core::UsageMeter meter;
    PressureReport report;
    PressureSpan now;
  };
  using Place = std::pair<core::TenantId, core::GpuId>;

  Verdicts take(const core::Answers& answers, Time now);
  void count(Service& service, const core::Answer& answer);
  void acquired(Holder& holder, Time now);
  void ended(core::LeaseId lease, Time now);
  void lend(const Place& place);
  void look(Time now);
  void look(std::size_t gpu, Time now);
  void close(Gpu& gpu, Time now);
  Service& service_of(const Process& p) {
    return services_.at(static_cast<std::size_t>(p.report.tenant));
  }

  const Scenario& scenario_;
  bool keep_spans_;
  core::Arbiter arbiter_;
  std::vector<Gpu> gpus_;
  std::map<std::size_t, Service> services_;  // by place in Scenario::clients
  std::map<core::LeaseId, Holder> holders_;
  std::map<Place, std::multiset<int>> held_;  // priorities of the leases there
  std::map<Place, int> lent_;
  std::vector<core::PriorityLent> lent_now_;
  std::uint64_t last_ = 0;
};

}  // namespace nvshare::sim
