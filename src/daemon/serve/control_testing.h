#pragma once

// A broker with one program of the run `train`, and requests to its scheduler, for tests.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/broker/testing.h"
#include "daemon/serve/control.h"

namespace nvshare::daemon {

using nlohmann::json;

struct ControlTest : testing::Test {
  ControlTest()
      : tenant(t.tenant("train")),
        client(t.join(tenant)),
        control(t.broker, settings, changes, processes, {t.now, true}) {}

  json ask(const json& request) {
    const json answer = json::parse(control.answer(request.dump(), t.now));
    EXPECT_TRUE(answer.at("ok").is_boolean());
    return answer;
  }
  std::string refused(const json& request) {
    const json answer = ask(request);
    EXPECT_FALSE(answer.at("ok").get<bool>()) << answer;
    return answer.value("error", "");
  }
  // Of the first process.
  std::string why() {
    return ask({{"op", "why"}, {"name", "train"}})["processes"][0]["text"].get<std::string>();
  }

  TestBroker t;
  Settings settings;
  Kept kept{t.log};
  Changes changes{t.broker, settings, kept, t.log, [](const std::string& name) {
                    return name == "alice" ? std::optional<std::uint32_t>(1000) : std::nullopt;
                  }};
  Processes processes;
  TenantId tenant;
  ClientId client;
  Control control;
};

}  // namespace nvshare::daemon
