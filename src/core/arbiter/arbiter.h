#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "core/arbiter/pressure.h"
#include "core/arbiter/task_class.h"
#include "core/ids.h"

namespace nvshare::core {

using LeaseId = StrongId<struct LeaseTag>;

struct ArbiterConfig {
  UsageRules usage;
  int slots = 4;     // leases on one GPU at a time
  int queue = 1024;  // requests that wait for one GPU; the last in line give way to higher classes
  std::vector<TaskClass> classes = default_classes();

  friend bool operator==(const ArbiterConfig&, const ArbiterConfig&) = default;
};
std::vector<std::string> problems(const ArbiterConfig& config);

// A service asks for a GPU. What is not said is the class's.
struct LeaseRequest {
  LeaseId lease;
  GpuId gpu;
  std::string task_class;
  std::optional<Duration> max_wait{};
  std::optional<Duration> hold_max{};  // no longer than the class's
  // Instead of waiting. A class that never waits does not for a request that wants to.
  std::optional<Refusal> refusal{};
  std::optional<Duration> audio{};     // hint: how much sound is to be worked on
  std::optional<Duration> gpu_hold{};  // hint: how long the lease will be held
  // The holder has memory on the GPU, or away from it: the lease is granted when it is there.
  bool has_memory = false;
};

// Preparing: the slot is taken, and the holder's memory is to come in. Another answer follows.
enum class Outcome { Acquired, Timeout, Skipped, FallbackCpu, QueueFull, Revoked, Preparing };
std::string_view name_of(Outcome outcome);  // "ACQUIRED", "TIMEOUT", ...

enum class LeaseReason {
  None,
  GpuUsageHigh,
  GpuUsageUnknown,
  GpuBusy,
  GpuMemory,  // the holder's memory did not come in in time
  GpuGone,
  Overdue,
};
std::string_view name_of(LeaseReason reason);  // "GPU_USAGE_HIGH", ...; empty for None

// What became of a request or of a lease.
struct Answer {
  LeaseId lease;
  Outcome outcome = Outcome::Acquired;
  LeaseReason reason = LeaseReason::None;
  Duration waited{};       // in the queue
  Time expires{};          // of an acquired lease
  Duration retry_after{};  // of a refused request: when a slot is expected
};
using Answers = std::vector<Answer>;

struct LeaseCounts {
  std::uint64_t acquired = 0;
  std::uint64_t timed_out = 0;
  std::uint64_t skipped = 0;
  std::uint64_t fell_back = 0;
  std::uint64_t queue_full = 0;
  std::uint64_t revoked = 0;
  std::uint64_t released = 0;
  Duration waited{};  // of the acquired ones, together
};

struct LeaseView {
  LeaseId lease;
  GpuId gpu;
  std::string task_class;
  int priority = 0;        // of the class
  bool active = false;     // or it waits
  bool preparing = false;  // active, and its holder's memory comes in
  Time asked{};
  Time acquired{};      // of an active one
  Time until{};         // an active one is revoked then, a waiting one gives up
  Time expected_end{};  // of an active one: by its hint, or by what its class usually takes
};

struct ArbiterGpuView {
  Admission state = Admission::Unknown;  // for the least of the classes that wait under pressure
  std::optional<double> usage;           // of the whole GPU, percent
  std::optional<Duration> age;           // of the sample
  Marks marks;
  std::optional<Time> raised_until;
  int active = 0;
  int waiting = 0;
};

// What keeps a request waiting, or what is known of a lease that is held.
struct LeaseWhy {
  LeaseView lease;
  Admission state = Admission::Unknown;  // for the lease's class
  std::optional<double> usage;           // percent that the class cannot push aside
  Marks marks;
  int active = 0;  // leases on the GPU
  int slots = 0;
  int class_active = 0;  // of them, of the class
  std::optional<int> class_slots;
  std::vector<std::pair<std::string, int>> ahead;  // requests that come first, by class
};
// One line: "waits for 1.20s: no slot is free (4 of 4 are taken); behind 2 ASR; gives up in 800ms".
std::string text_of(const LeaseWhy& why, Time now);

// Who of the services gets a lease on a GPU, and when. Pure: times and facts in, answers out.
// A GPU's waiters are served by class priority, then arrival. Each call first does what is due.
class Arbiter {
 public:
  explicit Arbiter(const ArbiterConfig& config = {}) : config_(config) {}

  const ArbiterConfig& config() const { return config_; }
  // The configuration has no problems(). Waiters and leases of classes that are gone stay.
  Answers set_config(const ArbiterConfig& config, Time now);

  void add_gpu(GpuId gpu);
  Answers remove_gpu(GpuId gpu, Time now);
  Answers take_sample(GpuId gpu, const UsageSample& sample, Time now);

  // The answer to the request is among the answers, unless it waits. Refused, with nothing changed:
  // an unknown class or GPU, an id that is there already, a time out of its range.
  Result<Answers> ask(const LeaseRequest& request, Time now);
  // The lease is given back, or the request withdrawn. Refused: an unknown lease.
  Result<Answers> release(LeaseId lease, Time now);
  // The memory of a preparing lease's holder is on the GPU. Refused: a lease that is not preparing.
  Result<Answers> ready(LeaseId lease, Time now);
  // The lease may be held for so much longer from now on; none: for as long as at first. When it
  // is revoked now. Refused: an unknown lease, one that waits, one that is overdue.
  Result<Time> renew(LeaseId lease, std::optional<Duration> hold, Time now);
  // A lease that an arbiter before this one granted. Counts even where there are no slots for it.
  Result<void> restore(const LeaseRequest& request, Time acquired, Time expires);
  Answers tick(Time now);
  std::optional<Time> next_wakeup() const;

  // The GPU with most room for a class: one with a free slot first, then one that is normal, then
  // the fewest leases and waiters.
  std::optional<GpuId> roomiest(const TaskClass& task_class, Time now) const;
  const TaskClass* find_class(std::string_view name) const;

  std::optional<ArbiterGpuView> gpu(GpuId gpu, Time now) const;
  Admission state(GpuId gpu, const TaskClass& task_class, Time now) const;
  std::optional<LeaseView> lease(LeaseId lease) const;
  // Why the request waits, or how the lease stands. Nothing for an unknown lease.
  std::optional<LeaseWhy> explain(LeaseId lease, Time now) const;
  // The active ones, however many wait.
  std::vector<LeaseView> active() const;
  // Active ones first, then the waiting ones in the order in which they are served.
  std::vector<LeaseView> leases() const;
  const std::map<std::string, LeaseCounts>& counts() const { return counts_; }

 private:
  struct Record {
    LeaseRequest request;
    TaskClass task_class;  // as it was when the request came
    bool sheds = false;    // leaves the queue under high pressure
    bool active = false;
    bool preparing = false;
    std::uint64_t order = 0;
    Time asked{};
    Time acquired{};
    Time until{};
    Time expected_end{};
  };
  // Waiters that are held back by the same things. The first one stands for all.
  struct QueueKey {
    std::string task_class;
    bool sheds = false;
    friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
  };
  struct Queue {
    TaskClass task_class;
    std::map<std::uint64_t, LeaseId> waiters;  // by arrival
  };
  struct Gpu {
    Pressure pressure;
    std::map<QueueKey, Queue> queues;
    std::set<LeaseId> active;
    std::map<std::string, int> active_of;  // by class
    int waiting = 0;
  };
  enum class Due { LeaseEnds, WaitEnds };  // a lease that ends makes room before a wait is over
  using Timer = std::tuple<Time, Due, LeaseId>;

  Gpu& gpu_of(const Record& record) { return gpus_.at(record.request.gpu); }
  Timer timer_of(const Record& record) const;
  std::optional<Error> check(const LeaseRequest& request) const;
  bool slot_free(const Gpu& gpu, const TaskClass& task_class) const;
  bool may_enter(const Gpu& gpu, const Queue& queue, Time now) const;
  LeaseReason why_not(const Gpu& gpu, const TaskClass& task_class, Time now) const;
  Duration retry_after(const Gpu& gpu, LeaseReason reason, Time now) const;

  void advance(Time now, Answers& answers);
  void serve(Gpu& gpu, Time now, Answers& answers);
  void shed(Gpu& gpu, Time now, Answers& answers);
  void take_slot(Record& record);
  void lasts(Record& record, Time acquired, Time until);
  void hold(Record& record, Time now, Answers& answers);
  Answer not_ready(const Record& record, Time now) const;
  void grant(LeaseId lease, Time now, Answers& answers);
  void refuse(LeaseId lease, Outcome outcome, LeaseReason reason, Time now, Answers& answers);
  void refuse_at_once(LeaseId lease, Time now, Answers& answers);
  LeaseId last_in_line(const Gpu& gpu) const;
  void end_lease(LeaseId lease, Time now);
  void leave_queue(const Record& record);
  Duration usual_hold(const TaskClass& task_class) const;
  LeaseView view(LeaseId lease, const Record& record) const;

  ArbiterConfig config_;
  std::map<GpuId, Gpu> gpus_;
  std::unordered_map<LeaseId, Record> records_;
  std::set<Timer> timers_;
  std::map<std::string, LeaseCounts> counts_;
  std::map<std::string, Duration> usual_hold_;
  std::uint64_t arrivals_ = 0;
  Time now_{};  // of the last call
};

}  // namespace nvshare::core
