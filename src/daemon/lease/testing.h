#pragma once

// Leases and their API with a hand on the clock, on a broker without programs, for tests.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/broker/testing.h"
#include "daemon/lease/api.h"
#include "daemon/serve/testing.h"

namespace nvshare::daemon {

// Processes of the picture: no machine has such numbers.
inline constexpr int kOwner = 50'000'001;
inline constexpr int kOtherOwner = 50'000'002;

// A broker in front, because the members below need its GPUs.
struct LeaseWorld {
  using Json = nlohmann::ordered_json;

  LeaseWorld()
      : log(Level::Info, [this](std::string_view line) { logged += line; }),
        reactor(std::move(*Reactor::make())),
        processes(picture.processes()),
        leases(
            settings.arbiter, [this] { return broker.now; }, reactor, processes, log),
        api(leases, {broker.broker, settings, [this] { return broker.now; },
                     [this](const SettingTexts& texts) -> Result<bool> {
                       if (const auto set = set_settings(settings, texts); !set) return set.error();
                       leases.set_config(settings.arbiter);
                       return writable;
                     },
                     [this](int pid) -> std::optional<std::uint32_t> {
                       const auto at = users.find(pid);
                       return at == users.end() ? std::nullopt : std::optional(at->second);
                     },
                     [this](Time at) { return wall + (at - start).count() / 1'000'000; }, 7, 70,
                     [this] { return push; }}) {
    picture.process(kOwner, 1, "/");
    picture.process(kOtherOwner, 1, "/");
    for (const auto& [id, gpu] : broker.broker.gpus()) leases.add_gpu(id);
    api.set_reply([this](HttpCall call, const HttpReply& reply) { replies[call] = reply; });
  }

  HttpRequest request(const std::string& method, const std::string& path,
                      const std::string& body = "") const {
    HttpRequest one;
    one.method = method;
    one.path = path;
    one.body = body;
    one.peer = peer;
    one.hung_up = hung_up;
    return one;
  }
  // The reply, with status 0 while the call waits.
  HttpReply call(const std::string& method, const std::string& path, const std::string& body = "") {
    ++last.value;
    return api.handle(last, request(method, path, body)).value_or(HttpReply{0, "", {}});
  }
  HttpReply ask(const std::string& task_class, const std::string& more = "") {
    return call("POST", "/v1/leases", R"({"taskType":")" + task_class + "\"" + more + "}");
  }
  // The name of a lease that is granted at once.
  std::string lease(const std::string& task_class, const std::string& more = "") {
    const HttpReply reply = ask(task_class, more);
    EXPECT_EQ(reply.status, 201) << reply.body;
    return of(reply).value("leaseId", "");
  }
  static Json of(const HttpReply& reply) { return Json::parse(reply.body, nullptr, false); }
  Json get(const std::string& path) { return of(call("GET", path)); }
  // Time passes, and what is due happens.
  void pass(Duration duration) {
    const Time until = broker.now + duration;
    while (true) {
      const auto next = leases.arbiter().next_wakeup();
      if (!next || *next > until) break;
      broker.now = std::max(broker.now, *next);
      leases.end_of_turn();
    }
    broker.now = until;
  }
  void usage(double busy) { leases.take_sample(GpuId{0}, core::UsageSample::of(broker.now, busy)); }

  TestBroker broker;
  Time start = broker.now;
  std::int64_t wall = 1'700'000'000'123;  // 2023-11-14T22:13:20.123Z
  Settings settings;
  bool writable = true;  // the state file
  std::string logged;
  Log log;
  Picture picture;
  Reactor reactor;
  Processes processes;
  std::map<int, std::uint32_t> users{{kOwner, 1000}, {kOtherOwner, 1001}};
  Leases leases;
  LeaseApi api;
  std::optional<PushCounts> push;
  std::optional<HttpPeer> peer = HttpPeer{kOwner, 1000};
  bool hung_up = false;
  HttpCall last{0};
  std::map<HttpCall, HttpReply> replies;
};

}  // namespace nvshare::daemon
