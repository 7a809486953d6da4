#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include "sim/gpu_model.h"
#include "sim/link.h"
#include "sim/process.h"
#include "sim/services.h"
#include "sim/simulator.h"

namespace nvshare::sim {

// What the scenario and the processes themselves bring about.
enum class Happening {
  Arrives,
  Leaves,
  Wakes,
  Starts,
  NextPhase,
  AllocatesNext,
  LimitsChange,
  MetersAreRead,
  AsksAgain,        // for a lease
  UsageIsMeasured,  // on all GPUs: meters are read
  UsageIsTaken      // by the arbiter, once the core has the meters
};

// How often the shell reads all meters, asked or not.
inline constexpr Duration kReadPeriod = 1s;

struct Timed {
  Time at{};
  std::uint64_t seq = 0;
  Happening what = Happening::Arrives;
  std::size_t process = 0;
  std::size_t step = 0;

  // The earliest is on top of a std::priority_queue. At one moment those who leave come first, so
  // that who arrives finds their place free; then the order in which they were made.
  bool operator<(const Timed& other) const {
    const bool stays = what != Happening::Leaves;
    const bool other_stays = other.what != Happening::Leaves;
    return std::tie(other.at, other_stays, other.seq) < std::tie(at, stays, seq);
  }
};

struct SimGpu {
  explicit SimGpu(Bytes link_per_second)
      : out(Lane::Direction::Out, link_per_second), in(Lane::Direction::In, link_per_second) {}

  // Enters in the books how much of the process's memory is on this GPU.
  void set_resident(Process& p, Bytes bytes) {
    resident += bytes - p.resident;
    p.resident = bytes;
    highest = std::max(highest, resident);
    note_swapped();
  }
  void set_allocated(Process& p, Bytes bytes) {
    allocated += bytes - p.allocated;
    p.allocated = bytes;
  }
  void note_swapped() { highest_swapped = std::max(highest_swapped, allocated - resident); }

  GpuModel model;
  Duration busy_seen{};  // of the model, when the usage was last measured
  Lane out;
  Lane in;
  Bytes resident{};
  Bytes highest{};
  Bytes allocated{};
  Bytes highest_swapped{};
};

// A scenario being played: the world around the core. Time, and what the core says, are in
// simulator.cpp; what the processes do is in simulator_processes.cpp, and how services come by
// their leases in simulator_leases.cpp.
class Simulator {
 public:
  Simulator(const Scenario& scenario, bool keep_spans, Observer* observer)
      : scenario_(scenario),
        keep_spans_(keep_spans),
        observer_(observer),
        core_(scenario.config, Time{}) {
    const auto it = scenario.lasts_under.find(scenario.config.policy);
    end_ = Time{it == scenario.lasts_under.end() ? scenario.lasts : it->second};
  }

  Result<Report> play();

 private:
  void set_up();
  void add_tenants();
  std::optional<Time> next_time() const;
  void advance(Time now);
  void play_moment();
  bool play_one();

  void tell(const core::Event& event);
  void obey(const core::Place& d);
  void obey(const core::Grant& d);
  void obey(const core::Drop& d);
  void obey(const core::SendOut& d);
  void obey(const core::BringIn& d);
  void obey(const core::WaitForMemory&) {}
  void obey(const core::MemoryAvailable& d);
  void obey(const core::MemoryGiven&) {}
  void obey(const core::MemoryWithdrawn&) {}
  void obey(const core::MemoryRefused& d);
  void obey(const core::Overdue& d);
  void obey(const core::Sleeps&) {}  // what moves is told by orders
  void obey(const core::ReadMeter& d);

  void at(Time time, Happening what, std::size_t process, std::size_t step = 0);
  void happen(const Timed& timed);
  void arrive(Process& p);
  void leave(Process& p);
  void note_end(Process& p);
  void next_phase(Process& p, std::size_t step);
  void allocate(Process& p, Bytes allocated);
  void ask_for_work(Process& p);
  void want_gpu(Process& p);
  void rest(Process& p);

  void read_meter(Process& p);
  void read_all_meters();
  void read_meters();

  // simulator_leases.cpp
  void ask_for_lease(Process& p, bool again);
  void give_back_lease(Process& p);
  void follow(const Services::Verdicts& verdicts);
  void follow(const Services::Verdict& verdict);
  void measure_usage();
  void take_usage();

  void settle(Process& p);
  void rewatch(Process& p);
  void reached(Process& p);
  void release(Process& p, bool more_work);
  void start_running(Process& p);
  void stop_running(Process& p);

  bool finish_piece(SimGpu& gpu, Lane& lane);

  Process& process_of(core::ClientId id) { return processes_[id.value - 1]; }
  SimGpu& gpu_of(const Process& p) { return gpus_[static_cast<std::size_t>(p.report.gpu)]; }
  Report report();

  const Scenario& scenario_;
  bool keep_spans_;
  Observer* observer_;
  core::Core core_;
  Time now_{};
  Time end_{};
  std::uint64_t next_seq_ = 0;
  std::size_t events_ = 0;
  int present_ = 0;
  int to_come_ = 0;
  std::optional<Error> failed_;
  std::vector<Process> processes_;
  std::vector<SimGpu> gpus_;
  std::optional<Services> services_;  // none: no client asks for leases
  std::priority_queue<Timed> timed_;
  std::deque<core::Event> told_;  // to be told to the core at this moment, in order
};

}  // namespace nvshare::sim
