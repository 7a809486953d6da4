#include <algorithm>

#include "sim/simulator_impl.h"

namespace nvshare::sim {

using core::GpuId;
using core::TenantId;

// --- what processes do ------------------------------------------------------------------------

void Simulator::happen(const Timed& timed) {
  if (timed.what == Happening::LimitsChange) {
    const std::size_t clients = scenario_.clients.size();
    const auto& changes = timed.process < clients
                              ? scenario_.clients[timed.process].changes
                              : scenario_.tenants[timed.process - clients].changes;
    const LimitStep& step = changes[timed.step];
    tell(core::LimitsChanged{TenantId{timed.process + 1}, step.limits});
    return;
  }
  if (timed.what == Happening::MetersAreRead) return read_meters();
  if (timed.what == Happening::UsageIsMeasured) return measure_usage();
  if (timed.what == Happening::UsageIsTaken) return take_usage();
  Process& p = processes_[timed.process];
  if (timed.what == Happening::Arrives) return arrive(p);
  if (!p.present) return;
  switch (timed.what) {
    case Happening::Leaves:
      return leave(p);
    case Happening::Wakes:
      return ask_for_work(p);
    case Happening::AsksAgain:
      return ask_for_lease(p, true);
    case Happening::Starts:
      if (p.granted && !p.on_gpu && p.grants == timed.step) start_running(p);
      return;
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
  // The pool alone bounds what can leave: here host memory is ready as soon as it is needed.
  if (scenario_.host_memory) tell(core::HostMemoryComing{p.client, {}, scenario_.host_memory});
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
    p.note_wait(now_);
  }
  if (const auto view = core_.view(p.client)) p.report.first_throttle = view->first_throttle;
}

void Simulator::leave(Process& p) {
  note_end(p);
  gpu_of(p).set_allocated(p, Bytes{});
  gpu_of(p).set_resident(p, Bytes{});
  p.in_left = p.out_left = Bytes{};
  p.present = false;
  p.left = now_;
  --present_;
  tell(core::ClientGone{p.client});
  if (!failed_) give_back_lease(p);
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
    gpu_of(p).set_resident(p, std::min(p.resident, allocated));
    p.in_left = std::min(p.in_left, allocated - p.resident);
    p.out_left = std::min(p.out_left, p.resident);
  }
  // Until the core has made room for it.
  p.fresh = std::min(p.fresh + std::max(Bytes{}, allocated - p.allocated), allocated - p.resident);
  gpu_of(p).set_allocated(p, allocated);
  tell(core::MemoryChanged{p.client, allocated, Bytes{}, p.resident});
}

void Simulator::ask_for_work(Process& p) {
  if (p.wants) return;
  ++p.begun;
  if (p.spec->lease) return ask_for_lease(p, false);
  want_gpu(p);
}

void Simulator::want_gpu(Process& p) {
  p.wants = true;
  p.wants_since = now_;
  if (p.kind == WorkloadKind::Bursty) p.begin_burst();
  tell(core::WorkRequested{p.client});
}

// Until its next burst.
void Simulator::rest(Process& p) {
  at(now_ + p.until_next_burst(now_), Happening::Wakes, p.id);
}

// --- running ----------------------------------------------------------------------------------

void Simulator::settle(Process& p) {
  if (p.on_gpu) p.settle(gpu_of(p).model.service());
}

void Simulator::rewatch(Process& p) {
  if (!p.on_gpu) return;
  GpuModel& model = gpu_of(p).model;
  if (p.target) model.unwatch(p.id, *p.target);
  p.target.reset();
  if (const auto left = p.until_next_stop()) p.target = model.watch(p.id, *left);
}

void Simulator::start_running(Process& p) {
  p.on_gpu = true;
  GpuModel& model = gpu_of(p).model;
  model.start();
  p.mark = model.service();
  rewatch(p);
}

void Simulator::stop_running(Process& p) {
  settle(p);
  SimGpu& gpu = gpu_of(p);
  if (p.target) gpu.model.unwatch(p.id, *p.target);
  p.target.reset();
  if (p.on_gpu) gpu.model.stop();
  p.granted = p.on_gpu = false;
  p.note_run(now_, keep_spans_);
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
    // With a lease each burst asks anew, even without any time between.
    const bool at_once = !resting && !p.spec->lease && p.until_next_burst(now_) == Duration::zero();
    if (!resting && !at_once) rest(p);
    if (at_once) {
      ++p.begun;
      p.begin_burst();
    }
    release(p, at_once);
    if (!failed_) give_back_lease(p);
    return;
  }
  release(p, true);
}

}  // namespace nvshare::sim
