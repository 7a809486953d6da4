#include "daemon/serve/control.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/suggest.h"
#include "config/backend.h"
#include "daemon/serve/request.h"
#include "daemon/serve/tenant_sums.h"

namespace nvshare::daemon {
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kLinesInOne = 1000;  // of the trace, in an answer

json of(const std::optional<Bytes>& bytes) {
  return bytes ? json(bytes->count) : json(nullptr);
}

// Whether who waits for memory for this reason gets it in its turn, with nobody's help.
bool comes_back(core::Why why) {
  switch (why) {
    case core::Why::WaitsForMemory:
    case core::Why::WaitsForHostMemory:
    case core::Why::RoomIsMade:
    case core::Why::WaitsForHolders:
    case core::Why::MemoryComing:
      return true;
    default:
      return false;
  }
}

}  // namespace

// The requests, one function each. What they answer goes beside "ok".
struct Control::Json {
  Json(Control& of, Time at) : control(of), now(at) {
    broker().settle(now);
    snapshot = broker().core().snapshot();
    bills = broker().bills();
  }

  Control& control;
  Time now;
  core::Snapshot snapshot;
  std::map<TenantId, Duration> bills;

  Broker& broker() const { return control.broker_; }

  Result<const TenantRecord*> tenant_named(const json& request) const {
    const auto name = text_in(request, "name");
    if (!name) return Error{"\"name\" is missing"};
    if (const auto unique = control.changes_.check_unique(*name); !unique) return unique.error();
    if (const TenantRecord* found = control.changes_.find(*name)) return found;
    if (control.changes_.declared_for(*name)) {
      return Error{fmt::format("'{}' is declared, and has no process now", *name)};
    }
    std::vector<std::string_view> names;
    for (const auto& [id, tenant] : broker().tenants()) names.push_back(tenant.is.name);
    return Error{fmt::format("there is no tenant '{}'{}", *name, did_you_mean(*name, names))};
  }

  static json moves(const Moves& moves) {
    return {{"out", moves.out.count},
            {"in", moves.in.count},
            {"copied", moves.copied.count},
            {"took", moves.took.count()}};
  }

  json process(const ClientRecord& client) const {
    const auto view = broker().core().view(client.id);
    const wire::Page::FromProgram& page = client.page->program;
    const Duration used =
        client.turn.used_before + (client.turn.grant ? client.turn.grant->billed : Duration{});
    const Bytes beyond = client.memory.beyond();
    return {{"client", client.id.value},
            {"pid", client.pid},
            {"program", client.program},
            {"gpu", client.gpu.value},
            {"state", view ? core::name_of(view->state) : "idle"},
            {"allocated", client.memory.allocated().count},
            {"resident", view ? view->resident.count : 0},
            {"swapped", view ? (view->allocated - view->resident + beyond).count : 0},
            {"beyond", beyond.count},
            {"pinned", view ? view->pinned.count : 0},
            {"incoming", view ? view->incoming.count : 0},
            {"outgoing", view ? view->outgoing.count : 0},
            {"backend", config::name_of(client.backend)},
            {"moves", moves(client.moves)},
            {"used", used.count()},
            {"held", page.held.load()},
            {"holds", page.holds.load()},
            {"messages", client.messages},
            {"refused", client.refusals.count},
            {"watch", client.turn.watch == wire::Watch::Free ? "free" : "metered"}};
  }

  static json placed(const TenantRecord& tenant) {
    if (tenant.placed.gpus.empty()) return nullptr;
    json gpus = json::array();
    for (const GpuId gpu : tenant.placed.gpus) gpus.push_back(gpu.value);
    return {{"gpus", std::move(gpus)}, {"text", placement_text(tenant.placed)}};
  }

  // The highest priority that leases lend to the tenant.
  static json lent_to(const TenantRecord& tenant) {
    json highest = nullptr;
    for (const auto& [gpu, priority] : tenant.lent) {
      if (highest.is_null() || highest < priority) highest = priority;
    }
    return highest;
  }

  static json sources(const LimitSources& from) {
    return {{"cores", name_of(from.cores)},
            {"memory", name_of(from.memory)},
            {"priority", name_of(from.priority)}};
  }
  json limits_from(const TenantRecord& tenant) const {
    return sources(control.changes_.limits_of(tenant).from);
  }
  static json limits(const core::Limits& limits) {
    return {{"cores", limits.core_percent},
            {"memory", of(limits.memory)},
            {"priority", limits.priority}};
  }

  json tenant(const TenantRecord& tenant) const {
    json processes = json::array();
    const auto used = bills.find(tenant.id);
    const auto sleep = sleep_of(broker(), tenant);
    const TenantSums has = sums_of(broker(), tenant);
    for (const ClientId id : tenant.clients) {
      processes.push_back(process(broker().clients().at(id)));
    }
    return {{"name", tenant.is.name},
            {"kind", name_of(tenant.is.kind)},
            {"parent",
             tenant.parent ? json(broker().tenants().at(*tenant.parent).is.name) : json(nullptr)},
            {"uid", tenant.is.uid},
            {"cores", tenant.limits.core_percent},
            {"memory", of(tenant.limits.memory)},
            {"priority", tenant.limits.priority},
            {"lent", lent_to(tenant)},
            {"limits_from", limits_from(tenant)},
            {"paused", tenant.paused},
            {"asleep", sleep.has_value()},
            {"hold", sleep && sleep->hold},
            {"asleep_for", sleep ? json((now - sleep->since).count()) : json(nullptr)},
            {"to_leave", has.to_leave.count},
            {"oversubscribe_self", tenant.oversubscribes},
            {"share", tenant.share_percent ? json(*tenant.share_percent) : json(nullptr)},
            {"used", used == bills.end() ? 0 : used->second.count()},
            {"wanting", wanted(tenant, now).count()},
            {"age", (now - tenant.since).count()},
            {"allocated", has.allocated.count},
            {"fullest", has.fullest.count},
            {"resident", has.resident.count},
            {"swapped", has.swapped.count},
            {"beyond", has.beyond.count},
            {"pinned", has.pinned.count},
            {"incoming", has.incoming.count},
            {"outgoing", has.outgoing.count},
            {"moves", moves(tenant.moves)},
            {"refused", tenant.refused},
            {"placed", placed(tenant)},
            {"processes", std::move(processes)}};
  }

  Bytes swapped_on(GpuId id) const {
    Bytes sum{};
    for (const ClientId one : broker().gpus().at(id).clients) {
      sum += broker().clients().at(one).memory.beyond();
    }
    for (const core::ClientView& client : snapshot.clients) {
      if (client.gpu == id) sum += client.allocated - client.resident;
    }
    return sum;
  }

  Bytes moving_on(GpuId id, Bytes core::ClientView::*which) const {
    Bytes sum{};
    for (const core::ClientView& client : snapshot.clients) {
      if (client.gpu == id) sum += client.*which;
    }
    return sum;
  }

  Bytes arena_on(GpuId id) const {
    Bytes sum{};
    for (const ClientId client : broker().gpus().at(id).clients) {
      sum += broker().clients().at(client).arena.given;
    }
    return sum;
  }

  // Host memory for swapped-out memory of all GPUs.
  json arena() const {
    Bytes needed{};
    for (const core::GpuView& view : snapshot.gpus) needed += view.host_claim;
    const HostArena* arena = broker().places().arena();
    return {{"arena_needed", needed.count},
            {"arena_used", broker().places().given().count},
            {"arena_limit", arena ? arena->most().count : 0},
            {"arena_limited_by", arena ? json(arena->limited_by()) : json(nullptr)}};
  }

  // Whether the arena is a part of the answer: the GPU's memory is short, the client waits for
  // memory, or host memory was missing for an allocation.
  bool arena_matters(const ClientRecord& client) const {
    if (client.refusals.for_host) return true;
    for (const core::GpuView& view : snapshot.gpus) {
      if (view.id == client.gpu && view.shortage > Bytes{}) return true;
    }
    const auto view = broker().core().view(client.id);
    return view && view->state == core::ClientState::Waiting &&
           (view->resident < view->allocated || view->awaits > Bytes{});
  }

  // What was billed, what NVML saw, and the difference, in percent of the GPU's time.
  json meter(GpuId id) const {
    const MeterCheck* check =
        control.monitor_ == nullptr ? nullptr : control.monitor_->meter_check(id);
    if (check == nullptr || !check->metered()) return nullptr;
    return {{"billed", *check->metered()},
            {"nvml", *check->seen()},
            {"difference", *check->metered() - *check->seen()}};
  }

  json gpu(const core::GpuView& view) const {
    const GpuRecord& gpu = broker().gpus().at(view.id);
    return {{"index", view.id.value},
            {"uuid", nvshare::to_text(gpu.uuid)},
            {"name", gpu.name},
            {"memory", view.total.count},
            {"memory_used", of(gpu.memory_used)},
            {"memory_allocated", view.resident.count},
            {"memory_safe", view.safe_limit.count},
            {"utilisation", gpu.utilisation ? json(*gpu.utilisation) : json(nullptr)},
            {"meter", meter(view.id)},
            {"clients", view.clients},
            {"running", view.running},
            {"swapped", swapped_on(view.id).count},
            {"incoming", moving_on(view.id, &core::ClientView::incoming).count},
            {"outgoing", moving_on(view.id, &core::ClientView::outgoing).count},
            {"shortage", view.shortage.count},
            {"arena_needed", view.host_claim.count},
            {"arena", arena_on(view.id).count},
            {"leases", json_of(control.leases_.gpu(view.id))},
            {"moves", moves(gpu.moves)}};
  }

  Result<json> status(const json&) const {
    json gpus = json::array();
    json tenants = json::array();
    json foreign = json::array();
    for (const core::GpuView& view : snapshot.gpus) gpus.push_back(gpu(view));
    for (const auto& [id, one] : broker().tenants()) tenants.push_back(tenant(one));
    if (control.monitor_ != nullptr) {
      for (const Foreign& one : control.monitor_->foreign()) {
        foreign.push_back({{"pid", one.pid},
                           {"gpu", one.gpu.value},
                           {"memory", one.memory.count},
                           {"program", control.processes_.name_of(one.pid)}});
      }
    }
    json scheduler{{"version", NVSHARE_VERSION},
                   {"pid", getpid()},
                   {"uptime", (now - control.about_.started).count()},
                   {"private", control.about_.is_private},
                   {"policy", core::name_of(control.settings_.core.policy)},
                   {"scheduling", broker().scheduling()},
                   {"run_directory", control.settings_.run_directory}};
    scheduler.update(arena());
    return json{{"scheduler", std::move(scheduler)},
                {"gpus", std::move(gpus)},
                {"tenants", std::move(tenants)},
                {"declared", control.changes_.declared_absent()},
                {"foreign", std::move(foreign)}};
  }

  // Why it runs or waits. While its own memory leaves, what it lacks says nothing: that is none at
  // first, and grows.
  std::string state_of(const ClientRecord& client) const {
    const auto reason = broker().core().reason(client.id, now);
    if (!reason) return reason.error().message;
    const auto view = broker().core().view(client.id);
    if (view && view->outgoing > Bytes{} && comes_back(reason->why)) {
      return fmt::format(
          "makes room for others: {} of its memory still to move out; it comes back in its turn",
          nvshare::to_text(view->outgoing));
    }
    const bool sleeps = reason->why == core::Why::Asleep || reason->why == core::Why::HeldAsleep;
    return broker().text_of(*reason) + (view && sleeps ? remains(*view) : "");
  }

  // What of a sleeper is still on the GPU, and why.
  static std::string remains(const core::ClientView& view) {
    std::string text;
    const auto say = [&](Bytes bytes, std::string_view what) {
      if (bytes > Bytes{}) text += fmt::format("; {} {}", nvshare::to_text(bytes), what);
    };
    const Bytes leaves = view.outgoing + view.leaveable;
    say(leaves, "of its memory still to move out");
    say(view.resident - view.pinned - leaves, "stay on the GPU: the host has no place for them");
    say(view.pinned, "stay on the GPU: they are pinned and cannot move");
    return text;
  }

  static std::string refusals(const ClientRecord& client) {
    const Refusals& all = client.refusals;
    if (all.count == 0) return "";
    return all.count == 1
               ? fmt::format("; was refused memory once: {}", all.last)
               : fmt::format("; was refused memory {} times, last: {}", all.count, all.last);
  }

  // That, what it was refused and, after a limit was lowered, that it has more than it may.
  std::string explained(const ClientRecord& client) const {
    std::string text = state_of(client) + refusals(client);
    for_each_level(broker().tenants(), client.tenant, [&](const TenantRecord& level) {
      const Bytes used = broker().allocated_by(level, client.gpu);
      if (!level.limits.memory || used <= *level.limits.memory) return;
      const bool movable = client.memory.could_move() > Bytes{};
      core::Reason over{
          .why = movable ? core::Why::OverMemoryLimitMovable : core::Why::OverMemoryLimit,
          .bytes = used,
          .free = *level.limits.memory};
      if (level.id != client.tenant) over.level = level.id;
      text += "; " + broker().text_of(over);
    });
    return text;
  }

  // Leases of the tenant and of its parts. A user that only asks for leases is no tenant.
  LeaseFacts::Leases leases_of(const TenantRecord* tenant, const std::string& name) const {
    return control.leases_.leases([&](const std::string& one) {
      const TenantRecord* holder = broker().find_tenant(one);
      if (tenant == nullptr || holder == nullptr) return one == name;
      return is_below(broker().tenants(), holder->id, tenant->id);
    });
  }

  Result<json> why(const json& request) const {
    const auto found = tenant_named(request);
    const TenantRecord* tenant = found ? *found : nullptr;
    const auto name = text_in(request, "name");
    const auto leases = leases_of(tenant, tenant != nullptr ? tenant->is.name : name.value_or(""));
    auto answer = why_programs(request);
    const bool unique = name && control.changes_.check_unique(*name);
    if (!answer && unique && leases.total > 0) answer = json{{"processes", json::array()}};
    if (!answer) return answer;
    (*answer)["leases"] = json_of(leases);
    (*answer)["leases_total"] = leases.total;
    return answer;
  }

  // Of a user or container that is not there, its declared limits are all that is known.
  Result<json> why_programs(const json& request) const {
    const auto found = tenant_named(request);
    const auto name = text_in(request, "name");
    const bool absent = name && control.changes_.find(*name) == nullptr;
    if (const auto will_be = absent ? control.changes_.declared_for(*name) : std::nullopt) {
      return json{{"placed", nullptr},
                  {"processes", json::array()},
                  {"host_memory", nullptr},
                  {"declared", true},
                  {"limits", limits(will_be->limits)},
                  {"limits_from", sources(will_be->from)}};
    }
    if (!found) return found.error();
    json processes = json::array();
    json host_memory;
    for (const ClientId id : clients_below(broker().tenants(), (*found)->id)) {
      const ClientRecord& client = broker().clients().at(id);
      if (arena_matters(client)) host_memory = arena();
      processes.push_back({{"tenant", broker().tenants().at(client.tenant).is.name},
                           {"pid", client.pid},
                           {"gpu", client.gpu.value},
                           {"program", client.program},
                           {"text", explained(client)}});
    }
    return json{{"placed", placed(**found)},
                {"processes", std::move(processes)},
                {"host_memory", std::move(host_memory)},
                {"limits", limits((*found)->limits)},
                {"limits_from", limits_from(**found)}};
  }

  Result<json> trace(const json& request) const {
    std::string name;
    if (request.contains("name")) {
      const auto found = tenant_named(request);
      // A tenant that has gone has lines, and so has a user that only asks for leases.
      name = found ? (*found)->is.name : text_in(request, "name").value_or("");
      const bool unique = static_cast<bool>(control.changes_.check_unique(name));
      if (!found && !(unique && broker().trace().has(name))) return found.error();
    }
    constexpr auto kMostNumber = std::numeric_limits<std::int64_t>::max();
    const auto from = number_in(request, "from", 0, kMostNumber);
    if (!from) return from.error();
    const auto first = static_cast<std::uint64_t>(from->value_or(0));
    const Trace::Part part = broker().trace().from(first, name, kLinesInOne);
    // Who has not seen any yet has lost none.
    return json{{"lines", part.lines},
                {"next", part.next},
                {"end", part.end},
                {"lost", *from ? part.lost : 0}};
  }

  // A tenant to change: a user need not be there yet.
  Result<TenantId> tenant_to_change(const json& request) const {
    const auto name = text_in(request, "name");
    if (name && control.changes_.find(*name) == nullptr) {
      if (const auto made = control.changes_.make_user(*name, now)) return *made;
    }
    const auto found = tenant_named(request);
    if (!found) return found.error();
    return (*found)->id;
  }

  // What the tenant is then, and whether that outlasts a restart.
  json changed(TenantId id, bool kept) const {
    return {{"tenant", tenant(broker().tenants().at(id))}, {"kept", kept}};
  }

  // Of a pod, container or cgroup that has no process yet.
  json limit_absent(const TenantName& name, const Declaration& change, bool reset) const {
    const bool kept = reset ? control.changes_.withdraw_limits(name)
                            : control.changes_.declare_limits(name, change);
    const auto will_be = control.changes_.declared_for(name.name).value_or(
        DeclaredLimits{control.settings_.default_limits(), {}});
    const bool expires = name.kind != TenantKind::Cgroup;
    return {{"processes", json::array()},
            {"declared", true},
            {"limits", limits(will_be.limits)},
            {"limits_from", sources(will_be.from)},
            {"expires", expires ? json(Declared::kPromised) : json(nullptr)},
            {"kept", kept}};
  }

  Result<json> limit(const json& request) const {
    const auto limits = limits_in(request);
    if (!limits) return limits.error();
    const auto reset = flag_in(request, "reset");
    if (!reset) return reset.error();
    if (*reset && !limits->empty()) return Error{"\"reset\" goes without new limits"};
    const auto name = text_in(request, "name");
    if (name && control.changes_.find(*name) == nullptr) {
      const auto absent = control.changes_.nameable(*name);
      if (!absent) return absent.error();
      if (*absent && (**absent).kind != TenantKind::User)
        return limit_absent(**absent, *limits, *reset);
    }
    const auto id = tenant_to_change(request);
    if (!id) return id.error();
    const auto kept = *reset ? control.changes_.reset_limits(*id, now)
                             : control.changes_.set_limits(*id, *limits, now);
    if (!kept) return kept.error();
    return changed(*id, *kept);
  }

  Result<json> pause(const json& request) const {
    const auto paused = request.find("paused");
    if (paused == request.end() || !paused->is_boolean()) {
      return Error{"\"paused\" is to be true or false"};
    }
    const auto id = tenant_to_change(request);
    if (!id) return id.error();
    const auto kept = control.changes_.set_paused(*id, paused->get<bool>(), now);
    if (!kept) return kept.error();
    return changed(*id, *kept);
  }

  Result<json> set_asleep(const json& request, bool asleep) const {
    const auto found = tenant_named(request);
    if (!found) return found.error();
    const auto hold = flag_in(request, "hold");
    if (!hold) return hold.error();
    const TenantId id = (*found)->id;
    const auto set = broker().set_asleep(id, asleep, *hold, now);
    if (!set) return set.error();
    return json{{"changed", *set}, {"tenant", tenant(broker().tenants().at(id))}};
  }

  Result<json> sleep(const json& request) const { return set_asleep(request, true); }
  Result<json> wake(const json& request) const { return set_asleep(request, false); }

  json setting(const Setting& one) const {
    return {{"name", one.name},
            {"value", text_of(control.settings_, one.name)},
            {"default", text_of(Settings{}, one.name)},
            {"range", one.range},
            {"help", one.help},
            {"changeable", one.changeable}};
  }

  Result<json> config(const json&) const {
    json settings = json::array();
    for (const Setting& one : all_settings()) settings.push_back(setting(one));
    return json{{"settings", std::move(settings)}};
  }

  Result<json> set(const json& request) const {
    const auto name = text_in(request, "name");
    if (!name) return Error{"\"name\" is missing"};
    const auto value = request.find("value");
    if (value == request.end() || value->is_structured() || value->is_null()) {
      return Error{"\"value\" is missing"};
    }
    const Setting* known = find_setting(*name);
    if (known == nullptr) {
      return Error{fmt::format("there is no setting '{}'{}", *name, suggest_setting(*name))};
    }
    const std::string text = value->is_string() ? value->get<std::string>() : value->dump();
    const auto kept = control.changes_.set_setting(*known, text, now);
    if (!kept) return kept.error();
    return json{{"settings", json::array({setting(*known)})}, {"kept", *kept}};
  }

  Result<json> scheduling(const json& request) const {
    const auto on = request.find("on");
    if (on == request.end() || !on->is_boolean()) return Error{"\"on\" is to be true or false"};
    const auto kept = control.changes_.set_scheduling(on->get<bool>(), now);
    if (!kept) return kept.error();
    return json{{"kept", *kept}};
  }

  Result<json> dispatch(const json& request) const {
    using Operation = Result<json> (Json::*)(const json&) const;
    static constexpr std::array<std::pair<std::string_view, Operation>, 10> kOperations{
        {{"status", &Json::status},
         {"why", &Json::why},
         {"trace", &Json::trace},
         {"limit", &Json::limit},
         {"pause", &Json::pause},
         {"sleep", &Json::sleep},
         {"wake", &Json::wake},
         {"config", &Json::config},
         {"set", &Json::set},
         {"scheduling", &Json::scheduling}}};
    if (!request.is_object()) return Error{"a request is one line with a JSON object"};
    const auto op = text_in(request, "op");
    if (!op) return Error{"\"op\" is missing"};
    std::vector<std::string_view> names;
    for (const auto& [name, operation] : kOperations) {
      if (name == *op) return (this->*operation)(request);
      names.push_back(name);
    }
    return Error{fmt::format("there is no \"op\" '{}'{}", *op, did_you_mean(*op, names))};
  }
};

std::string Control::answer(std::string_view line, Time now) {
  const json request = json::parse(line, nullptr, false);
  const auto result = request.is_discarded() ? Result<json>(Error{"the request is not JSON"})
                                             : Json(*this, now).dispatch(request);
  json whole{{"ok", static_cast<bool>(result)}};
  if (result) {
    whole.update(*result);
  } else {
    whole["error"] = result.error().message;
  }
  // Names that processes give themselves need not be UTF-8.
  return whole.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace nvshare::daemon
