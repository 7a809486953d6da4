// Limits that people set over the control socket.

#include <fmt/format.h>

#include "daemon/serve/control_testing.h"

namespace nvshare::daemon {
namespace {

TEST_F(ControlTest, LimitsAreSetOneByOne) {
  json now = ask({{"op", "limit"}, {"name", "train"}, {"cores", 60}});
  EXPECT_EQ(now["tenant"]["cores"], 60);
  now = ask({{"op", "limit"}, {"name", "train"}, {"memory", gib(8).count}, {"priority", -2}});
  EXPECT_EQ(now["tenant"]["cores"], 60);
  EXPECT_EQ(now["tenant"]["memory"], gib(8).count);
  EXPECT_EQ(now["tenant"]["priority"], -2);
  now = ask({{"op", "limit"}, {"name", "train"}, {"memory", nullptr}});
  EXPECT_TRUE(now["tenant"]["memory"].is_null());
  EXPECT_EQ(t.outbox.take<wire::Limits>(client).size(), 3u);
}

TEST_F(ControlTest, LimitsSayWhereTheyComeFrom) {
  kept.run_begins({"train", t.broker.tenants().at(tenant).is.uid, 4711, 5});
  json now = ask({{"op", "limit"}, {"name", "train"}, {"cores", 60}})["tenant"];
  EXPECT_EQ(now["limits_from"], (json{{"cores", "limit"}, {"memory", "run"}, {"priority", "run"}}));
  const json why = ask({{"op", "why"}, {"name", "train"}});
  EXPECT_EQ(why["limits_from"], now["limits_from"]);
  EXPECT_EQ(why["limits"], (json{{"cores", 60}, {"memory", nullptr}, {"priority", 0}}));
  now = ask({{"op", "limit"}, {"name", "train"}, {"reset", true}})["tenant"];
  EXPECT_EQ(now["cores"], 100);
  EXPECT_EQ(now["limits_from"]["cores"], "run");
  EXPECT_EQ(t.outbox.take<wire::Limits>(client).size(), 2u);
}

TEST_F(ControlTest, AUserIsLimitedBeforeItsFirstProcess) {
  const json limited = ask({{"op", "limit"}, {"name", "alice"}, {"cores", 40}});
  EXPECT_EQ(limited["tenant"]["name"], "user-1000");
  EXPECT_EQ(limited["tenant"]["cores"], 40);
  EXPECT_EQ(limited["kept"], true);
  t.now += 1h;
  t.broker.sample(t.now);
  ASSERT_NE(t.broker.find_tenant("user-1000"), nullptr) << "stays, without a process";
  const json more = ask({{"op", "limit"}, {"name", "user-1000"}, {"memory", gib(2).count}});
  EXPECT_EQ(more["tenant"]["cores"], 40);
  EXPECT_EQ(ask({{"op", "why"}, {"name", "alice"}})["limits_from"]["memory"], "limit");
  EXPECT_EQ(ask({{"op", "limit"}, {"name", "alice"}, {"reset", true}})["tenant"]["cores"], 100);
  t.now += 1h;
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.find_tenant("user-1000"), nullptr) << "nobody has limited it any more";
}

TEST_F(ControlTest, PodsAndContainersCanBeLimitedBeforeTheirFirstProcess) {
  const std::string pod = "pod-0b1d2c3a-1111-2222-3333-444455556666";
  for (const std::string& name :
       {std::string("container-3f2a3f2a3f2a"), std::string("container-web"), pod}) {
    const json limited = ask({{"op", "limit"}, {"name", name}, {"cores", 40}});
    EXPECT_EQ(limited["declared"], true);
    EXPECT_EQ(limited["limits"]["cores"], 40);
    EXPECT_EQ(limited["limits_from"]["cores"], "limit");
    EXPECT_EQ(limited["expires"], 24 * 3600);
    EXPECT_EQ(t.broker.find_tenant(name), nullptr) << "its first process makes it";
    EXPECT_EQ(ask({{"op", "why"}, {"name", name}})["limits"]["cores"], 40);
  }
  EXPECT_EQ(ask({{"op", "status"}})["declared"].size(), 3u);
  EXPECT_EQ(ask({{"op", "limit"}, {"name", pod}, {"reset", true}})["limits"]["cores"], 100);
  EXPECT_EQ(ask({{"op", "status"}})["declared"].size(), 2u);
  EXPECT_NE(refused({{"op", "limit"}, {"name", "pod-web"}, {"cores", 40}}).find("pod's UID"),
            std::string::npos);
  EXPECT_NE(refused({{"op", "limit"}, {"name", "container-3f2a3f2a3f2a3"}, {"cores", 40}})
                .find("container's id"),
            std::string::npos);
  EXPECT_EQ(refused({{"op", "limit"}, {"name", "cgroup-x"}, {"cores", 40}}),
            "'cgroup-x' has no table in [cgroups] of scheduler.toml");
}

TEST_F(ControlTest, AContainerThatIsThereIsLimitedByItsLongId) {
  const std::string id = "3f2a" + std::string(60, 'b');
  ASSERT_TRUE(t.broker.tenant_for(container_tenant(id), {}, t.now));
  const json limited = ask({{"op", "limit"}, {"name", "container-" + id}, {"cores", 40}});
  EXPECT_EQ(limited["tenant"]["name"], "container-3f2abbbbbbbb");
  EXPECT_EQ(limited["tenant"]["cores"], 40) << "at once";
  EXPECT_EQ(ask({{"op", "why"}, {"name", "container-" + id}})["limits"]["cores"], 40);
  const json reset = ask({{"op", "limit"}, {"name", "container-" + id}, {"reset", true}});
  EXPECT_EQ(reset["tenant"]["cores"], 100);
}

TEST_F(ControlTest, ANameOfAUserAndARunIsRefusedByEveryCommand) {
  const auto user = *t.broker.tenant_for({TenantKind::User, "user-7", 7}, {}, t.now);
  ASSERT_TRUE(t.broker.begin_run({TenantKind::Run, "alice", 7}, {}, t.now, wire::Backend::Default,
                                 false, user));
  kept.set_limits(user_tenant(1000), {40, {}, {}});  // `why` can tell of an absent user
  for (const char* op : {"limit", "pause", "sleep", "wake", "why", "trace"}) {
    json request{{"op", op}, {"name", "alice"}};
    if (op == std::string_view("limit")) request["cores"] = 40;
    if (op == std::string_view("pause")) request["paused"] = true;
    EXPECT_EQ(refused(request),
              "'alice' is a user and a run: say user-1000 for the user, user-7/alice for the run")
        << op;
    request["name"] = "user-7/alice";
    EXPECT_TRUE(ask(request)["ok"].get<bool>()) << op;
  }
}

TEST_F(ControlTest, ALimitForAUserDoesNotEndAtARunOfThatName) {
  const auto user = *t.broker.tenant_for({TenantKind::User, "user-7", 7}, {}, t.now);
  ASSERT_TRUE(t.broker.begin_run({TenantKind::Run, "alice", 7}, {}, t.now, wire::Backend::Default,
                                 false, user));
  EXPECT_EQ(refused({{"op", "limit"}, {"name", "alice"}, {"cores", 40}}),
            "'alice' is a user and a run: say user-1000 for the user, user-7/alice for the run");
  EXPECT_EQ(ask({{"op", "limit"}, {"name", "user-7/alice"}, {"cores", 40}})["tenant"]["name"],
            "alice");
  EXPECT_EQ(ask({{"op", "limit"}, {"name", "user-1000"}, {"cores", 30}})["tenant"]["name"],
            "user-1000");
  EXPECT_NE(refused({{"op", "limit"}, {"name", "user-1000/alice"}, {"cores", 40}}), "");
}

TEST_F(ControlTest, OnlyTheSchedulersOwnNamesCanBeLimitedWithoutAProcess) {
  for (const char* name : {"bob", "user-", "user-01", "user-4294967295", "user-x"}) {
    EXPECT_EQ(refused({{"op", "limit"}, {"name", name}, {"cores", 40}})
                  .find(fmt::format("there is no tenant '{}'", name)),
              0u);
  }
  EXPECT_EQ(refused({{"op", "limit"}, {"name", "train"}, {"cores", 4}, {"reset", true}}),
            "\"reset\" goes without new limits");
  EXPECT_EQ(refused({{"op", "limit"}, {"name", "train"}, {"reset", 1}}),
            "\"reset\" is to be true or false");
}

TEST_F(ControlTest, DefaultsThatChangeHoldForTenantsWithoutOtherLimits) {
  const TenantName user{TenantKind::User, "user-7", 7};
  const TenantId seven = *t.broker.tenant_for(user, settings.default_limits(), t.now);
  ask({{"op", "limit"}, {"name", "alice"}, {"cores", 40}});
  ask({{"op", "set"}, {"name", "default_cores"}, {"value", 30}});
  EXPECT_EQ(t.broker.tenants().at(seven).limits.core_percent, 30);
  EXPECT_FALSE(t.broker.tenants().at(seven).kept);
  EXPECT_EQ(t.broker.find_tenant("user-1000")->limits.core_percent, 40);
  EXPECT_EQ(t.broker.find_tenant("train")->limits.core_percent, 100) << "a run has its own";
}

TEST_F(ControlTest, WhatIsChangedIsKept) {
  ask({{"op", "limit"}, {"name", "alice"}, {"cores", 40}});
  ask({{"op", "pause"}, {"name", "user-7"}, {"paused", true}});
  ask({{"op", "set"}, {"name", "turn"}, {"value", "9ms"}});
  ask({{"op", "scheduling"}, {"on", false}});
  Kept after(t.log);
  after.restore(kept.state(), "", [](const KeptRun&) { return true; });
  TestBroker next;
  Settings fresh;
  Changes(next.broker, fresh, after, next.log).restore(next.now);
  EXPECT_EQ(next.broker.find_tenant("user-1000")->limits.core_percent, 40);
  EXPECT_TRUE(next.broker.find_tenant("user-1000")->kept);
  EXPECT_TRUE(next.broker.find_tenant("user-7")->paused);
  EXPECT_EQ(next.broker.core().config().turn, 9ms);
  EXPECT_EQ(fresh.core.turn, 9ms);
  EXPECT_FALSE(next.broker.scheduling());
}

TEST_F(ControlTest, AChangeThatCannotBeWrittenIsDoneAllTheSame) {
  Kept full(t.log, {}, [](const State&, Durable) -> Result<void> { return Error{"no space"}; });
  Changes lost(t.broker, settings, full, t.log);
  Control other(t.broker, settings, lost, processes, {});
  const json answer =
      json::parse(other.answer(R"({"op":"limit","name":"train","cores":60})", t.now));
  EXPECT_EQ(answer["ok"], true);
  EXPECT_EQ(answer["kept"], false);
  EXPECT_EQ(answer["tenant"]["cores"], 60);
}

TEST_F(ControlTest, BadLimitsChangeNothing) {
  const std::vector<json> bad{
      {{"cores", 0}},           {{"cores", 101}},        {{"cores", "60"}},
      {{"cores", 60.5}},        {{"memory", 0}},         {{"memory", -1}},
      {{"memory", UINT64_MAX}}, {{"memory", INT64_MAX}}, {{"memory", "8Gi"}},
      {{"priority", 11}},       {{"cores", UINT64_MAX}}, {{"cores", 50}, {"priority", 99}},
  };
  for (json request : bad) {
    request["op"] = "limit";
    request["name"] = "train";
    EXPECT_FALSE(refused(request).empty()) << request;
  }
  EXPECT_EQ(t.broker.find_tenant("train")->limits, core::Limits{});
}

}  // namespace
}  // namespace nvshare::daemon
