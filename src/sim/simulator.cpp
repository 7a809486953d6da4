#include "sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/simulator_impl.h"

namespace nvshare::sim {

using core::ClientId;
using core::GpuId;
using core::TenantId;

// --- time -------------------------------------------------------------------------------------

void Simulator::at(Time time, Happening what, std::size_t process, std::size_t step) {
  timed_.push({time, next_seq_++, what, process, step});
}

void Simulator::set_up() {
  for (const GpuSpec& spec : scenario_.gpus) {
    for (int i = 0; i < spec.count; ++i) {
      told_.push_back(core::GpuAdded{GpuId{gpus_.size()}, spec.memory});
      gpus_.emplace_back(scenario_.link_per_second);
    }
  }
  if (scenario_.host_memory) told_.push_back(core::HostMeasured{scenario_.host_memory});
  add_tenants();
  for (std::size_t t = 0; t < scenario_.clients.size(); ++t) {
    const ClientSpec& spec = scenario_.clients[t];
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
  at(Time{kReadPeriod}, Happening::MetersAreRead, 0);
  if (!Services::any(scenario_)) return;
  services_.emplace(scenario_, gpus_.size(), keep_spans_);
  // The scheduler was there before its clients, and knows that the GPUs are idle.
  for (std::size_t i = 0; i < gpus_.size(); ++i) services_->sample(i, {}, 0, Time{});
  at(Time{scenario_.usage_sample_interval}, Happening::UsageIsMeasured, 0);
}

// Clients' tenants have the first numbers, so that a process's tenant is its place in the list.
void Simulator::add_tenants() {
  std::map<std::string, TenantId> ids;
  const auto add = [&](std::size_t number, const auto& spec) {
    core::TenantAdded added{TenantId{number + 1}, spec.name, spec.limits};
    if (spec.part_of) {
      const auto parent = ids.find(*spec.part_of);
      added.parent = parent == ids.end() ? TenantId{0} : parent->second;
    }
    ids.emplace(spec.name, added.tenant);
    told_.push_back(added);
    for (std::size_t i = 0; i < spec.changes.size(); ++i) {
      at(Time{spec.changes[i].at}, Happening::LimitsChange, number, i);
    }
  };
  const std::size_t clients = scenario_.clients.size();
  for (std::size_t i = 0; i < scenario_.tenants.size(); ++i) {
    add(clients + i, scenario_.tenants[i]);
  }
  for (std::size_t t = 0; t < clients; ++t) add(t, scenario_.clients[t]);
}

std::optional<Time> Simulator::next_time() const {
  std::optional<Time> next = core_.next_wakeup();
  const auto earlier = [&](std::optional<Time> time) {
    if (time && (!next || *time < *next)) next = time;
  };
  if (!timed_.empty()) earlier(timed_.top().at);
  for (const SimGpu& gpu : gpus_) {
    earlier(gpu.model.next());
    earlier(gpu.in.next());
    earlier(gpu.out.next());
  }
  if (services_) earlier(services_->next_wakeup());
  return next;
}

void Simulator::advance(Time now) {
  now_ = now;
  for (SimGpu& gpu : gpus_) gpu.model.advance(now);
}

// One thing that happens at this moment; the order of things at one moment is fixed: the world
// first, the timers of core and arbiter last.
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
    if (finish_piece(gpu, gpu.out) || finish_piece(gpu, gpu.in)) return true;
  }
  const auto wakeup = core_.next_wakeup();
  if (wakeup && *wakeup <= now_) {
    tell(core::Tick{});
    return true;
  }
  const auto due = services_ ? services_->next_wakeup() : std::nullopt;
  if (due && *due <= now_) {
    follow(services_->tick(now_));
    return true;
  }
  return false;
}

bool Simulator::finish_piece(SimGpu& gpu, Lane& lane) {
  const auto piece = lane.finish(now_);
  if (!piece) return false;
  Process& p = *piece->process;
  if (piece->bytes.count > 0) {
    const bool inward = &lane == &gpu.in;
    gpu.set_resident(p, inward ? p.resident + piece->bytes : p.resident - piece->bytes);
    core::MemoryMoved moved{p.client, p.resident, piece->took, {}, {}, p.out_left, p.in_left};
    if (inward) moved.fresh = std::min(p.fresh, piece->bytes);
    p.fresh -= moved.fresh;
    tell(moved);
  }
  lane.start(now_);
  return true;
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

// --- the core ---------------------------------------------------------------------------------

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
  p.note_wait(now_);
  ++p.grants;
  if (scenario_.hand_over == Duration::zero()) return start_running(p);
  at(now_ + scenario_.hand_over, Happening::Starts, p.id, p.grants);
}

void Simulator::obey(const core::Drop& d) {
  Process& p = process_of(d.client);
  p.dropping = true;
  if (!p.on_gpu) return start_running(p);  // and lets go at once
  settle(p);
  rewatch(p);
}

void Simulator::obey(const core::SendOut& d) {
  Process& p = process_of(d.client);
  ++p.report.switches;
  gpu_of(p).out.add(p, d.bytes, now_);
}

void Simulator::obey(const core::BringIn& d) {
  Process& p = process_of(d.client);
  gpu_of(p).in.add(p, d.bytes, now_);
}

void Simulator::obey(const core::MemoryAvailable& d) {
  Process& p = process_of(d.client);
  gpu_of(p).set_resident(p, p.allocated);
  p.fresh = {};
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
  read_meter(process_of(d.client));
}

void Simulator::read_meter(Process& p) {
  settle(p);
  told_.push_back(core::Usage{p.client, to_duration(p.done - p.started_at)});
}

// As the daemon does. Who is overdue has been billed for all of the time, whatever its meter says.
void Simulator::read_all_meters() {
  for (Process& p : processes_) {
    if (!p.granted) continue;
    const auto view = core_.view(p.client);
    if (view && view->state != core::ClientState::Overdue) read_meter(p);
  }
}

void Simulator::read_meters() {
  read_all_meters();
  at(now_ + kReadPeriod, Happening::MetersAreRead, 0);
}

// --- the end ----------------------------------------------------------------------------------

Report Simulator::report() {
  Report report;
  report.scenario = scenario_.name;
  report.policy = scenario_.config.policy;
  report.lasted = now_ - Time{};
  report.events = events_;
  for (SimGpu& gpu : gpus_) gpu.model.advance(now_);
  if (services_) report.services = services_->reports(now_);
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
      seen.highest_swapped = gpus_[i].highest_swapped;
      if (report.lasted > Duration::zero()) {
        seen.utilization_percent = 100.0 * static_cast<double>(gpus_[i].model.busy_time().count()) /
                                   static_cast<double>(report.lasted.count());
      }
      if (services_) seen.pressure = services_->pressure(i, now_);
    }
  }
  return report;
}

Result<Report> run(const Scenario& scenario, bool keep_spans, Observer* observer) {
  return Simulator(scenario, keep_spans, observer).play();
}

}  // namespace nvshare::sim
