#include "daemon/lease/service.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "daemon/serve/control_server.h"

namespace nvshare::daemon {
namespace {

// The wall's time of a time of the loop, in milliseconds. One time has one answer, until somebody
// sets the clock.
class WallOf {
 public:
  std::int64_t operator()(Time at) {
    constexpr Duration kSet = 10ms;
    const Duration beside =
        std::chrono::system_clock::now().time_since_epoch() - monotonic_now().time_since_epoch();
    if (std::chrono::abs(beside - beside_) > kSet) beside_ = beside;
    return std::chrono::floor<std::chrono::milliseconds>(at.time_since_epoch() + beside_).count();
  }

 private:
  Duration beside_{};
};

// A private scheduler is its user's alone.
std::optional<gid_t> admin_group(const Settings& settings) {
  if (settings.is_private) return std::nullopt;
  return group_named(settings.control_group);
}

}  // namespace

LeaseService::LeaseService(Reactor& reactor, Broker& broker, const Settings& settings,
                           const Processes& processes, Log& log, LeaseApi::Change change,
                           LeaseNotes::TenantOf tenant_of)
    : reactor_(reactor),
      broker_(broker),
      settings_(settings),
      log_(log),
      leases_(
          settings.arbiter, [&reactor] { return reactor.now(); }, reactor, processes, log),
      lender_(broker, processes, settings.is_private),
      notes_(leases_, broker.trace(), std::move(tenant_of)),
      api_(leases_, {broker, settings, [&reactor] { return reactor.now(); }, std::move(change),
                     [&processes](int pid) { return processes.user_of(pid); }, WallOf(), geteuid(),
                     admin_group(settings), [this] { return push_.counts(); }}),
      push_(reactor, log, [this] { return api_.status().body; }) {
  leases_.use_programs(
      {[this](const LeaseHolder& holder, GpuId gpu) { return lender_.any_program(holder, gpu); },
       [this](const LeaseHolder& holder, GpuId gpu) {
         return lender_.memory_is_there(holder, gpu, reactor_.now());
       }});
  follow_settings();
}

void LeaseService::follow_settings() {
  leases_.set_config(settings_.arbiter);
  push_.follow(settings_.status_push_url, settings_.status_push_interval);
  // The feed looks at the status for the push, too.
  api_.feed().on_change(push_.on() ? [this] { push_.changed(); } : std::function<void()>());
}

void LeaseService::serve(const std::string& unix_socket, bool is_private) {
  auto http = HttpServer::start(
      reactor_, log_,
      [this](HttpCall call, const HttpRequest& request) { return api_.handle(call, request); },
      [this](HttpCall call, bool sent) { api_.ended(call, sent); });
  if (!http) {
    log_.warn("no_http", {{"reason", http.error().message}, {"effect", "nobody gets leases"}});
    return;
  }
  http_ = std::move(*http);
  api_.set_reply([this](HttpCall call, const HttpReply& reply) { http_->reply(call, reply); });
  api_.feed().set_send(
      [this](HttpCall call, const std::string& event) { http_->send(call, event); });
  const auto listen = [&](const std::string& where, Result<UniqueFd> socket) {
    const auto served = socket ? http_->listen(std::move(*socket)) : Result<void>(socket.error());
    if (served) return log_.info("http", {{"listens", where}});
    log_.error("no_http", {{"at", where}, {"reason", served.error().message}});
  };
  listen(unix_socket, listen_for_streams(unix_socket, is_private ? 0600 : 0666));
  const std::string& address = settings_.http_listen;
  if (!is_private && address != "off") listen(address, listen_on_loopback(address));
}

void LeaseService::restore(Kept& kept) {
  awaiting_ = kept.take_leases();
  follow_gpus();
  leases_.on_change([this, &kept] {
    kept.leases_changed();
    lender_.leases_changed();
  });
  lender_.leases_changed();
  kept.use_leases([this] {
    auto all = leases_.kept([this](GpuId gpu) { return broker_.gpus().at(gpu).uuid; });
    all.insert(all.end(), awaiting_.begin(), awaiting_.end());
    return all;
  });
}

// Without NVML a GPU comes with the first program on it, and its leases wait for that.
void LeaseService::follow_gpus() {
  if (broker_.gpus().size() == gpus_) return;
  for (const auto& [id, gpu] : broker_.gpus()) leases_.add_gpu(id);
  gpus_ = broker_.gpus().size();
  std::erase_if(awaiting_, [&](const KeptLease& lease) {
    const GpuRecord* gpu = broker_.find_gpu(lease.gpu);
    if (gpu == nullptr) return false;
    const auto done = leases_.restore(lease, gpu->id);
    if (!done) {
      log_.warn("lease_not_restored",
                {{"class", lease.task_class}, {"reason", done.error().message}});
    }
    return true;
  });
}

LeaseFacts LeaseService::facts() const {
  LeaseFacts facts;
  facts.gpu = [this](GpuId gpu) -> std::optional<LeaseFacts::Gpu> {
    const auto view = leases_.arbiter().gpu(gpu, reactor_.now());
    if (!view || !leases_.used(gpu)) return std::nullopt;
    return LeaseFacts::Gpu{*view, leases_.arbiter().config().slots};
  };
  facts.leases = [this](const LeaseFacts::IsWanted& is_wanted) {
    return notes_.facts(is_wanted, reactor_.now());
  };
  return facts;
}

void LeaseService::look() {
  leases_.look();
  notes_.look();
  // Their GPU may never come.
  std::erase_if(awaiting_, [&](const KeptLease& lease) { return lease.expires <= reactor_.now(); });
}

std::optional<Time> LeaseService::end_of_turn() {
  leases_.end_of_turn();
  // After the leases, because their answers go out in this turn. It may take requests, too.
  const auto due = http_ ? http_->end_of_turn() : std::nullopt;
  auto more = lender_.end_of_turn(leases_, reactor_.now());
  // A lease that began to prepare in this turn may be ready; its answer goes out in the next one.
  if (leases_.look_at_preparing()) more = reactor_.now();
  const auto told = api_.feed().end_of_turn(reactor_.now());
  const auto push = push_.end_of_turn();
  std::optional<Time> next = leases_.next_wakeup();
  for (const auto& other : {due, more, told, push}) {
    if (other && (!next || *other < *next)) next = other;
  }
  return next;
}

}  // namespace nvshare::daemon
