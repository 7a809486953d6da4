#include "sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>

#include "sim/gpu_model.h"
#include "sim/process.h"

namespace nvshare::sim {
namespace {

using core::ClientId;
using core::GpuId;
using core::TenantId;

constexpr Bytes kPiece = gib(1);  // progress of a move is reported this often

enum class Happening { Arrives, Leaves, Wakes, NextPhase, AllocatesNext, LimitsChange };

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

// One direction of a GPU's link: moves are made one piece after the other.
struct Lane {
  std::deque<std::size_t> queue;
  std::optional<Time> piece_done;
  Bytes piece{};
  Duration took{};
};

struct SimGpu {
  GpuModel model;
  Lane out;
  Lane in;
  Bytes resident{};
  Bytes highest{};
};

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
  void obey(const core::MemoryRefused& d);
  void obey(const core::Overdue& d);
  void obey(const core::ReadMeter& d);

  void at(Time time, Happening what, std::size_t process, std::size_t step = 0);
  void happen(const Timed& timed);
  void arrive(Process& p);
  void leave(Process& p);
  void note_end(Process& p);
  void note_wait(Process& p);
  void next_phase(Process& p, std::size_t step);
  void allocate(Process& p, Bytes allocated);
  void ask_for_work(Process& p);

  void settle(Process& p);
  void rewatch(Process& p);
  void reached(Process& p);
  void release(Process& p, bool more_work);
  void stop_running(Process& p);

  void start_piece(Lane& lane, bool inward);
  bool finish_piece(SimGpu& gpu, Lane& lane, bool inward);

  Process& process_of(ClientId id) { return processes_[id.value - 1]; }
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
  std::priority_queue<Timed> timed_;
  std::deque<core::Event> told_;  // to be told to the core at this moment, in order
};

// --- time
// -----------------------------------------------------------------------------------------

void Simulator::at(Time time, Happening what, std::size_t process, std::size_t step) {
  timed_.push({time, next_seq_++, what, process, step});
}

void Simulator::set_up() {
  for (const GpuSpec& spec : scenario_.gpus) {
    for (int i = 0; i < spec.count; ++i) {
      told_.push_back(core::GpuAdded{GpuId{gpus_.size()}, spec.memory});
      gpus_.emplace_back();
    }
  }
  for (std::size_t t = 0; t < scenario_.clients.size(); ++t) {
    const ClientSpec& spec = scenario_.clients[t];
    told_.push_back(core::TenantAdded{TenantId{t + 1}, spec.name, spec.limits});
    for (std::size_t i = 0; i < spec.changes.size(); ++i) {
      at(Time{spec.changes[i].at}, Happening::LimitsChange, t, i);
    }
    for (int i = 0; i < spec.processes; ++i) {
      Process p;
      p.spec = &spec;
      p.id = processes_.size();
      p.client = ClientId{p.id + 1};
      p.tenant = TenantId{t + 1};
      p.report.tenant = static_cast<int>(t);
      p.report.name = spec.processes == 1 ? spec.name : fmt::format("{}/{}", spec.name, i + 1);
      at(Time{spec.arrives}, Happening::Arrives, p.id);
      processes_.push_back(std::move(p));
      ++to_come_;
    }
  }
}

std::optional<Time> Simulator::next_time() const {
  std::optional<Time> next = core_.next_wakeup();
  const auto earlier = [&](std::optional<Time> time) {
    if (time && (!next || *time < *next)) next = time;
  };
  if (!timed_.empty()) earlier(timed_.top().at);
  for (const SimGpu& gpu : gpus_) {
    earlier(gpu.model.next());
    earlier(gpu.in.piece_done);
    earlier(gpu.out.piece_done);
  }
  return next;
}

void Simulator::advance(Time now) {
  now_ = now;
  for (SimGpu& gpu : gpus_) gpu.model.advance(now);
}

// One thing that happens at this moment; the order of things at one moment is fixed: the world
// first, the core's own timer last.
bool Simulator::play_one() {
  if (!told_.empty()) {
    const core::Event event = std::move(told_.front());
    told_.pop_front();
    tell(event);
    return true;
  }
  if (!timed_.empty() && timed_.top().at <= now_) {
    const Timed timed = timed_.top();
    timed_.pop();
    happen(timed);
    return true;
  }
  for (SimGpu& gpu : gpus_) {
    if (const auto id = gpu.model.due()) {
      reached(processes_[*id]);
      return true;
    }
    if (finish_piece(gpu, gpu.out, false) || finish_piece(gpu, gpu.in, true)) return true;
  }
  const auto wakeup = core_.next_wakeup();
  if (wakeup && *wakeup <= now_) {
    tell(core::Tick{});
    return true;
  }
  return false;
}

void Simulator::play_moment() {
  while (!failed_ && play_one()) {
  }
}

Result<Report> Simulator::play() {
  set_up();
  play_moment();
  while (!failed_ && (present_ > 0 || to_come_ > 0)) {
    const auto next = next_time();
    if (!next || *next > end_) break;
    advance(std::max(*next, now_));
    play_moment();
  }
  if (failed_) return *failed_;
  if (present_ > 0 || to_come_ > 0) advance(end_);
  return report();
}

// --- the core
// -------------------------------------------------------------------------------------

void Simulator::tell(const core::Event& event) {
  ++events_;
  const auto decisions = core_.step(event, now_);
  if (!decisions) {
    failed_ = decisions.error();
    return;
  }
  for (const core::Decision& decision : *decisions) {
    std::visit([this](const auto& d) { obey(d); }, decision.action);
    if (std::holds_alternative<core::MemoryRefused>(decision.action)) {
      failed_ = failed_->with_context(core::to_text(decision.reason));
    }
  }
  if (observer_ != nullptr) observer_->after_step(event, now_, *decisions, core_);
}

void Simulator::obey(const core::Place& d) {
  process_of(d.client).report.gpu = static_cast<int>(d.gpu.value);
}

void Simulator::obey(const core::Grant& d) {
  Process& p = process_of(d.client);
  p.granted = true;
  p.granted_at = now_;
  p.dropping = false;
  p.budget = d.budget;
  p.started_at = p.done;
  note_wait(p);
  SimGpu& gpu = gpu_of(p);
  gpu.model.start();
  p.mark = gpu.model.service();
  rewatch(p);
}

void Simulator::obey(const core::Drop& d) {
  Process& p = process_of(d.client);
  p.dropping = true;
  settle(p);
  rewatch(p);
}

void Simulator::obey(const core::SendOut& d) {
  Process& p = process_of(d.client);
  p.out_left += d.bytes;
  ++p.report.switches;
  SimGpu& gpu = gpu_of(p);
  gpu.out.queue.push_back(p.id);
  start_piece(gpu.out, false);
}

void Simulator::obey(const core::BringIn& d) {
  Process& p = process_of(d.client);
  p.in_left += d.bytes;
  SimGpu& gpu = gpu_of(p);
  gpu.in.queue.push_back(p.id);
  start_piece(gpu.in, true);
}

void Simulator::obey(const core::MemoryAvailable& d) {
  Process& p = process_of(d.client);
  gpu_of(p).resident += p.allocated - p.resident;
  p.resident = p.allocated;
  SimGpu& gpu = gpu_of(p);
  gpu.highest = std::max(gpu.highest, gpu.resident);
}

// A scenario whose memory the core refuses is not worth playing to its end.
void Simulator::obey(const core::MemoryRefused& d) {
  failed_ =
      Error{fmt::format("client {} does not get its memory", process_of(d.client).report.name)};
}

// The shell ends it, once the core has finished speaking.
void Simulator::obey(const core::Overdue& d) {
  if (d.end) at(now_, Happening::Leaves, process_of(d.client).id);
}

void Simulator::obey(const core::ReadMeter& d) {
  Process& p = process_of(d.client);
  settle(p);
  told_.push_back(core::Usage{d.client, to_duration(p.done - p.started_at)});
}

// --- what processes do
// ----------------------------------------------------------------------------

void Simulator::happen(const Timed& timed) {
  if (timed.what == Happening::LimitsChange) {
    const LimitStep& step = scenario_.clients[timed.process].changes[timed.step];
    tell(core::LimitsChanged{TenantId{timed.process + 1}, step.limits});
    return;
  }
  Process& p = processes_[timed.process];
  if (timed.what == Happening::Arrives) return arrive(p);
  if (!p.present) return;
  switch (timed.what) {
    case Happening::Leaves:
      return leave(p);
    case Happening::Wakes:
      return ask_for_work(p);
    case Happening::NextPhase:
      return next_phase(p, timed.step);
    case Happening::AllocatesNext:
      return allocate(p, p.spec->memory[timed.step].allocated);
    default:
      return;
  }
}

void Simulator::arrive(Process& p) {
  --to_come_;
  ++present_;
  p.present = true;
  p.arrived = now_;
  std::optional<GpuId> gpu;
  if (p.spec->gpu) gpu = GpuId{static_cast<std::uint64_t>(*p.spec->gpu)};
  tell(core::ClientAdded{p.client, p.tenant, gpu});
  if (failed_) return;
  for (std::size_t i = 0; i < p.spec->memory.size(); ++i) {
    if (p.spec->memory[i].at == Duration::zero()) {
      allocate(p, p.spec->memory[i].allocated);
    } else {
      at(now_ + p.spec->memory[i].at, Happening::AllocatesNext, p.id, i);
    }
  }
  if (p.spec->leaves) at(Time{*p.spec->leaves}, Happening::Leaves, p.id);
  p.kind = p.spec->work.kind;
  if (p.kind == WorkloadKind::Phases) return next_phase(p, 0);
  if (p.kind != WorkloadKind::Idle) ask_for_work(p);
}

void Simulator::note_end(Process& p) {
  if (p.granted) {
    stop_running(p);
  } else if (p.wants) {
    note_wait(p);
  }
  if (const auto view = core_.view(p.client)) p.report.first_throttle = view->first_throttle;
}

void Simulator::note_wait(Process& p) {
  const Duration waited = now_ - p.wants_since;
  p.report.wait += waited;
  p.report.longest_wait = std::max(p.report.longest_wait, waited);
}

void Simulator::leave(Process& p) {
  note_end(p);
  SimGpu& gpu = gpu_of(p);
  gpu.resident -= p.resident;
  p.resident = p.in_left = p.out_left = Bytes{};
  p.present = false;
  p.left = now_;
  --present_;
  tell(core::ClientGone{p.client});
}

void Simulator::next_phase(Process& p, std::size_t step) {
  const auto& phases = p.spec->work.phases;
  p.phase = step % phases.size();
  settle(p);
  p.kind = phases[p.phase].kind;
  at(now_ + phases[p.phase].lasts, Happening::NextPhase, p.id, step + 1);
  if (p.kind == WorkloadKind::Idle) {
    // What it still waits for it does not want any more: it lets go as soon as it gets it.
    p.kind = WorkloadKind::Bursty;
    p.burst_end = p.done;
    if (p.granted) rewatch(p);
    return;
  }
  if (!p.wants) return ask_for_work(p);
  if (p.kind == WorkloadKind::Bursty) p.begin_burst();
  if (p.granted) rewatch(p);
}

void Simulator::allocate(Process& p, Bytes allocated) {
  if (allocated < p.allocated) {  // what is not on the GPU is freed first
    const Bytes resident = std::min(p.resident, allocated);
    gpu_of(p).resident -= p.resident - resident;
    p.resident = resident;
    p.in_left = std::min(p.in_left, allocated - resident);
    p.out_left = std::min(p.out_left, resident);
  }
  p.allocated = allocated;
  tell(core::MemoryChanged{p.client, allocated, Bytes{}, p.resident});
}

void Simulator::ask_for_work(Process& p) {
  if (p.wants) return;
  p.wants = true;
  p.wants_since = now_;
  if (p.kind == WorkloadKind::Bursty) p.begin_burst();
  tell(core::WorkRequested{p.client});
}

// --- running
// --------------------------------------------------------------------------------------

void Simulator::settle(Process& p) {
  if (!p.granted) return;
  const Work service = gpu_of(p).model.service();
  p.done += service - p.mark;
  p.mark = service;
}

void Simulator::rewatch(Process& p) {
  GpuModel& model = gpu_of(p).model;
  if (p.target) model.unwatch(p.id, *p.target);
  p.target.reset();
  if (const auto left = p.until_next_stop()) p.target = model.watch(p.id, *left);
}

void Simulator::stop_running(Process& p) {
  settle(p);
  SimGpu& gpu = gpu_of(p);
  if (p.target) gpu.model.unwatch(p.id, *p.target);
  p.target.reset();
  gpu.model.stop();
  p.granted = false;
  p.report.run += now_ - p.granted_at;
  if (keep_spans_) {
    if (!p.report.spans.empty() && p.report.spans.back().to == p.granted_at) {
      p.report.spans.back().to = now_;
    } else {
      p.report.spans.push_back({p.granted_at, now_});
    }
  }
}

void Simulator::release(Process& p, bool more_work) {
  stop_running(p);
  const Duration used = to_duration(p.done - p.started_at);
  p.wants = more_work;
  p.wants_since = now_;
  tell(core::Released{p.client, used, more_work});
}

void Simulator::reached(Process& p) {
  settle(p);
  if (p.finished()) {
    p.report.finished = now_;
    release(p, false);
    if (!failed_) leave(p);
    return;
  }
  if (p.burst_over()) {
    const bool resting = p.spec->work.kind == WorkloadKind::Phases &&
                         p.spec->work.phases[p.phase].kind == WorkloadKind::Idle;
    const Duration gap = p.spec->work.gap;
    if (!resting && gap > Duration::zero()) at(now_ + gap, Happening::Wakes, p.id);
    if (!resting && gap == Duration::zero()) p.begin_burst();
    return release(p, !resting && gap == Duration::zero());
  }
  release(p, true);
}

// --- moving memory
// --------------------------------------------------------------------------------

void Simulator::start_piece(Lane& lane, bool inward) {
  while (!lane.piece_done && !lane.queue.empty()) {
    Process& p = processes_[lane.queue.front()];
    const Bytes left = inward ? p.in_left : p.out_left;
    if (left.count <= 0) {
      lane.queue.pop_front();
      continue;
    }
    lane.piece = std::min(left, kPiece);
    const double seconds = static_cast<double>(lane.piece.count) /
                           static_cast<double>(scenario_.link_per_second.count);
    lane.took = Duration{static_cast<Duration::rep>(seconds * 1e9)};
    lane.piece_done = now_ + lane.took;
  }
}

bool Simulator::finish_piece(SimGpu& gpu, Lane& lane, bool inward) {
  if (!lane.piece_done || *lane.piece_done > now_) return false;
  lane.piece_done.reset();
  Process& p = processes_[lane.queue.front()];
  Bytes& left = inward ? p.in_left : p.out_left;
  const Bytes piece = std::min(lane.piece, left);
  if (p.present && piece.count > 0) {
    left -= piece;
    const Bytes change = inward ? piece : Bytes{} - piece;
    (inward ? p.report.moved_in : p.report.moved_out) += piece;
    p.resident += change;
    gpu.resident += change;
    gpu.highest = std::max(gpu.highest, gpu.resident);
    tell(core::MemoryMoved{p.client, p.resident, lane.took});
  }
  start_piece(lane, inward);
  return true;
}

// --- the end
// --------------------------------------------------------------------------------------

Report Simulator::report() {
  Report report;
  report.scenario = scenario_.name;
  report.policy = scenario_.config.policy;
  report.lasted = now_ - Time{};
  report.events = events_;
  for (SimGpu& gpu : gpus_) gpu.model.advance(now_);
  for (Process& p : processes_) {
    if (p.present) note_end(p);
    p.report.gpu_time = to_duration(p.done);
    const Duration there = (p.present ? now_ : p.left) - p.arrived;
    if (there > Duration::zero()) {
      p.report.share_percent = 100.0 * static_cast<double>(p.report.gpu_time.count()) /
                               static_cast<double>(there.count());
    }
    report.clients.push_back(std::move(p.report));
  }
  std::size_t i = 0;
  for (const GpuSpec& spec : scenario_.gpus) {
    for (int n = 0; n < spec.count; ++n, ++i) {
      GpuReport& seen = report.gpus.emplace_back();
      seen.memory = spec.memory;
      seen.highest_resident = gpus_[i].highest;
      if (report.lasted > Duration::zero()) {
        seen.utilization_percent = 100.0 * static_cast<double>(gpus_[i].model.busy_time().count()) /
                                   static_cast<double>(report.lasted.count());
      }
    }
  }
  return report;
}

}  // namespace

Result<Report> run(const Scenario& scenario, bool keep_spans, Observer* observer) {
  return Simulator(scenario, keep_spans, observer).play();
}

}  // namespace nvshare::sim
