#include "text.h"

#include <fmt/format.h>

namespace nvshare::properties {
namespace {

using namespace core;

std::string limits(const Limits& l) {
  return fmt::format("cores={} memory={} priority={}", l.core_percent,
                     l.memory ? fmt::to_string(l.memory->count) : "none", l.priority);
}

struct EventText {
  std::string operator()(const GpuAdded& e) const {
    return fmt::format("GpuAdded gpu={} total={}", e.gpu.value, e.total.count);
  }
  std::string operator()(const GpuRemoved& e) const {
    return fmt::format("GpuRemoved gpu={}", e.gpu.value);
  }
  std::string operator()(const OverheadMeasured& e) const {
    return fmt::format("OverheadMeasured gpu={} overhead={}", e.gpu.value, e.overhead.count);
  }
  std::string operator()(const OverlapSeen& e) const {
    return fmt::format("OverlapSeen gpu={} possible={}", e.gpu.value, e.possible);
  }
  std::string operator()(const TenantAdded& e) const {
    return fmt::format("TenantAdded tenant={} {}{}", e.tenant.value, limits(e.limits),
                       e.parent ? fmt::format(" parent={}", e.parent->value) : "");
  }
  std::string operator()(const TenantRemoved& e) const {
    return fmt::format("TenantRemoved tenant={}", e.tenant.value);
  }
  std::string operator()(const LimitsChanged& e) const {
    return fmt::format("LimitsChanged tenant={} {}", e.tenant.value, limits(e.limits));
  }
  std::string operator()(const PriorityLent& e) const {
    return fmt::format("PriorityLent tenant={} gpu={} priority={}", e.tenant.value, e.gpu.value,
                       e.priority ? fmt::to_string(*e.priority) : "none");
  }
  std::string operator()(const ClientLeased& e) const {
    return fmt::format("ClientLeased client={} lease={}", e.client.value,
                       static_cast<int>(e.lease));
  }
  std::string operator()(const TenantPaused& e) const {
    return fmt::format("TenantPaused tenant={} paused={}", e.tenant.value, e.paused);
  }
  std::string operator()(const TenantSleeps& e) const {
    return fmt::format("TenantSleeps tenant={} asleep={} hold={}", e.tenant.value, e.asleep,
                       e.hold);
  }
  std::string operator()(const ClientAdded& e) const {
    return fmt::format("ClientAdded client={} tenant={} gpu={}", e.client.value, e.tenant.value,
                       e.gpu ? fmt::to_string(e.gpu->value) : "any");
  }
  std::string operator()(const ClientGone& e) const {
    return fmt::format("ClientGone client={}", e.client.value);
  }
  std::string operator()(const WorkRequested& e) const {
    return fmt::format("WorkRequested client={}", e.client.value);
  }
  std::string operator()(const Released& e) const {
    return fmt::format("Released client={} used={}ns more_work={}", e.client.value, e.used.count(),
                       e.more_work);
  }
  std::string operator()(const Usage& e) const {
    return fmt::format("Usage client={} used={}ns", e.client.value, e.used.count());
  }
  std::string operator()(const MemoryChanged& e) const {
    return fmt::format(
        "MemoryChanged client={} allocated={} pinned={} resident={} may_wait={} "
        "pins={}",
        e.client.value, e.allocated.count, e.pinned.count, e.resident.count, e.may_wait, e.pins);
  }
  std::string operator()(const MemoryRounded& e) const {
    return fmt::format("MemoryRounded client={} bytes={}", e.client.value, e.bytes.count);
  }
  std::string operator()(const MemoryFound& e) const {
    return fmt::format("MemoryFound client={} allocated={} pinned={} resident={}", e.client.value,
                       e.allocated.count, e.pinned.count, e.resident.count);
  }
  std::string operator()(const MemoryMoved& e) const {
    return fmt::format(
        "MemoryMoved client={} resident={} took={}ns kept={} missing={} "
        "out_left={} in_left={} spared={} fresh={}",
        e.client.value, e.resident.count, e.took.count(), e.kept.count, e.missing.count,
        e.out_left.count, e.in_left.count, e.spared.count, e.fresh.count);
  }
  std::string operator()(const HostMeasured& e) const {
    return fmt::format("HostMeasured most={}", e.most ? std::to_string(e.most->count) : "any");
  }
  std::string operator()(const HostMemoryComing& e) const {
    return fmt::format("HostMemoryComing client={} bytes={} ready={}", e.client.value,
                       e.bytes.count, e.ready ? std::to_string(e.ready->count) : "any");
  }
  std::string operator()(const SchedulingSwitched& e) const {
    return fmt::format("SchedulingSwitched on={}", e.on);
  }
  std::string operator()(const ConfigChanged& e) const {
    const Config& c = e.config;
    return fmt::format("ConfigChanged policy={} mode={} turn={} reserve={}+{} quantum={}..{}",
                       name_of(c.policy), static_cast<int>(c.share_mode), to_text(c.turn),
                       to_text(c.reserve_base), to_text(c.reserve_per_process),
                       to_text(c.quantum_min), to_text(c.quantum_max));
  }
  std::string operator()(const Tick&) const { return "Tick"; }
};

struct ActionText {
  std::string operator()(const Place& d) const {
    return fmt::format("Place client={} gpu={}", d.client.value, d.gpu.value);
  }
  std::string operator()(const Grant& d) const {
    return fmt::format("Grant client={} budget={}", d.client.value,
                       d.budget ? fmt::format("{}ns", d.budget->count()) : "none");
  }
  std::string operator()(const Drop& d) const {
    return fmt::format("Drop client={}", d.client.value);
  }
  std::string operator()(const SendOut& d) const {
    return fmt::format("SendOut client={} bytes={}", d.client.value, d.bytes.count);
  }
  std::string operator()(const BringIn& d) const {
    return fmt::format("BringIn client={} bytes={}", d.client.value, d.bytes.count);
  }
  std::string operator()(const WaitForMemory& d) const {
    return fmt::format("WaitForMemory client={} missing={}", d.client.value, d.missing.count);
  }
  std::string operator()(const MemoryAvailable& d) const {
    return fmt::format("MemoryAvailable client={}", d.client.value);
  }
  std::string operator()(const MemoryGiven& d) const {
    return fmt::format("MemoryGiven client={} bytes={}", d.client.value, d.bytes.count);
  }
  std::string operator()(const MemoryWithdrawn& d) const {
    return fmt::format("MemoryWithdrawn client={} bytes={}", d.client.value, d.bytes.count);
  }
  std::string operator()(const MemoryRefused& d) const {
    return fmt::format("MemoryRefused client={} asked={} allowed={}", d.client.value, d.asked.count,
                       d.allowed.count);
  }
  std::string operator()(const Overdue& d) const {
    return fmt::format("Overdue client={} end={}", d.client.value, d.end);
  }
  std::string operator()(const Sleeps& d) const {
    return fmt::format("Sleeps client={} asleep={}", d.client.value, d.asleep);
  }
  std::string operator()(const ReadMeter& d) const {
    return fmt::format("ReadMeter client={}", d.client.value);
  }
};

}  // namespace

std::string to_line(const Event& event) {
  return std::visit(EventText{}, event);
}

std::string to_line(const Decision& decision) {
  return std::visit(ActionText{}, decision.action) + ": " + to_text(decision.reason);
}

std::string to_lines(const Snapshot& s) {
  std::string text;
  for (const GpuView& g : s.gpus) {
    text += fmt::format("gpu {} total={} safe={} resident={} clients={} running={} queue={}\n",
                        g.id.value, g.total.count, g.safe_limit.count, g.resident.count, g.clients,
                        g.running, g.waiting_for_memory);
  }
  for (const TenantView& t : s.tenants) {
    text += fmt::format("tenant {} {} {} paused={} asleep={} hold={}\n", t.id.value, t.name,
                        limits(t.limits), t.paused, t.sleep.has_value(), t.sleep && t.sleep->hold);
  }
  for (const ShareView& h : s.shares) {
    text +=
        fmt::format("share {} gpu={} billed={}\n", h.tenant.value, h.gpu.value, h.billed.count());
  }
  for (const ClientView& c : s.clients) {
    text += fmt::format("client {} tenant={} gpu={} {} {}/{}/{}\n", c.id.value, c.tenant.value,
                        c.gpu.value, name_of(c.state), c.allocated.count, c.resident.count,
                        c.pinned.count);
  }
  return text;
}

}  // namespace nvshare::properties
