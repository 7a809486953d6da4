#include "daemon/serve/control.h"

#include "daemon/serve/control_testing.h"

namespace nvshare::daemon {
namespace {

TEST_F(ControlTest, StatusShowsEverything) {
  ASSERT_TRUE(t.ask(client, gib(1)));
  t.want(client);
  t.page_of.at(client)->program.holds = 120;
  t.page_of.at(client)->program.held = 7000;
  t.now += 2s;
  const json status = ask({{"op", "status"}});
  ASSERT_TRUE(status["ok"].get<bool>());
  EXPECT_EQ(status["scheduler"]["policy"], "metered");
  EXPECT_EQ(status["scheduler"]["uptime"], 2'000'000'000);
  EXPECT_EQ(status["scheduler"]["private"], true);
  EXPECT_EQ(status["scheduler"]["scheduling"], true);
  EXPECT_EQ(status["gpus"][0]["name"], "Test GPU");
  EXPECT_EQ(status["gpus"][0]["memory"], gib(16).count);
  EXPECT_EQ(status["gpus"][0]["memory_allocated"], gib(1).count);
  EXPECT_TRUE(status["gpus"][0]["memory_used"].is_null());
  EXPECT_EQ(status["gpus"][0]["running"], 1);
  const json& one = status["tenants"][0];
  EXPECT_EQ(one["name"], "train");
  EXPECT_EQ(one["kind"], "run");
  EXPECT_EQ(one["cores"], 100);
  EXPECT_TRUE(one["memory"].is_null());
  EXPECT_TRUE(one["share"].is_null());
  EXPECT_EQ(one["wanting"], 2'000'000'000);
  const json& process = one["processes"][0];
  EXPECT_EQ(process["pid"], 4711);
  EXPECT_EQ(process["program"], "python");
  EXPECT_EQ(process["state"], "running");
  EXPECT_EQ(process["allocated"], gib(1).count);
  EXPECT_EQ(process["holds"], 120);
  EXPECT_EQ(process["held"], 7000);
  EXPECT_EQ(process["watch"], "free");
  EXPECT_TRUE(status["foreign"].empty());
}

TEST_F(ControlTest, StatusShowsWhereMemoryIs) {
  t.arena.by_hand = true;
  ASSERT_EQ(t.ask_movable(client, gib(10)), TestBroker::Told::Available);
  ASSERT_TRUE(t.ask(client, gib(1)));
  const ClientId other = t.join(t.tenant("other"));
  ASSERT_EQ(t.ask_movable(other, gib(8)), TestBroker::Told::Wait);
  t.want(other);
  t.broker.places().ready(other, 1, gib(2), t.now);
  const auto in = t.outbox.take<wire::SwapIn>(other).at(0);
  t.moved(other, in.order, {}, gib(1), false);
  const json status = ask({{"op", "status"}});
  const json& process = status["tenants"][0]["processes"][0];
  EXPECT_EQ(process["resident"], gib(11).count);
  EXPECT_EQ(process["swapped"], 0);
  EXPECT_EQ(process["pinned"], gib(1).count);
  EXPECT_EQ(process["backend"], "swap");
  const json& waits = status["tenants"][1];
  EXPECT_EQ(waits["resident"], gib(1).count);
  EXPECT_EQ(waits["swapped"], gib(7).count);
  EXPECT_EQ(waits["moves"]["in"], gib(1).count);
  EXPECT_EQ(waits["moves"]["copied"], gib(1).count);
  EXPECT_EQ(status["gpus"][0]["swapped"], gib(7).count);
  EXPECT_EQ(status["gpus"][0]["arena"], gib(2).count);
  EXPECT_EQ(status["gpus"][0]["moves"]["in"], gib(1).count);
  EXPECT_EQ(status["scheduler"]["arena_used"], gib(2).count);
  EXPECT_EQ(status["scheduler"]["arena_limit"], gib(1024).count);
  EXPECT_EQ(status["scheduler"]["arena_limited_by"], "arena_limit");
  EXPECT_EQ(status["scheduler"]["arena_needed"], status["gpus"][0]["arena_needed"]);
  EXPECT_GT(status["scheduler"]["arena_needed"], 0);
  const json why = ask({{"op", "why"}, {"name", "other"}});
  EXPECT_NE(why["processes"][0]["text"].get<std::string>().find("of GPU memory"),
            std::string::npos);
}

TEST_F(ControlTest, StatusShowsWhatIsOnItsWay) {
  ASSERT_EQ(t.ask_movable(client, gib(11)), TestBroker::Told::Available);
  const ClientId other = t.join(t.tenant("other"));
  ASSERT_EQ(t.ask_movable(other, gib(8)), TestBroker::Told::Wait);
  t.broker.places().ready(client, 1, gib(8), t.now);
  t.want(other);
  const auto in = t.outbox.take<wire::SwapIn>(other).at(0);
  t.moved(other, in.order, {}, gib(1), false);
  t.pass(10min);
  const auto out = t.outbox.take<wire::SwapOut>(client).at(0);
  const json status = ask({{"op", "status"}});
  const auto process = [&](int of) { return status["tenants"][of]["processes"][0]; };
  EXPECT_EQ(process(0)["outgoing"], out.bytes);
  EXPECT_EQ(process(0)["incoming"], 0);
  EXPECT_EQ(process(1)["outgoing"], 0);
  EXPECT_EQ(process(1)["incoming"], in.bytes - static_cast<std::uint64_t>(gib(1).count));
  EXPECT_EQ(status["gpus"][0]["outgoing"], process(0)["outgoing"]);
  EXPECT_EQ(status["gpus"][0]["incoming"], process(1)["incoming"]);
}

TEST_F(ControlTest, TheBackendChangesForThoseWhoComeLater) {
  ask({{"op", "set"}, {"name", "memory_backend"}, {"value", "native"}});
  EXPECT_EQ(t.broker.clients().at(client).backend, wire::Backend::Swap);
  EXPECT_EQ(t.broker.clients().at(t.join(tenant)).backend, wire::Backend::Native);
}

TEST_F(ControlTest, TheShareIsOfTheLastSecond) {
  t.want(client);
  const std::uint64_t grant = t.granted(client);
  t.broker.sample(t.now);
  t.meter(client, grant, 250ms);
  t.now += 1s;
  t.broker.sample(t.now);
  const json one = ask({{"op", "status"}})["tenants"][0];
  EXPECT_NEAR(one["share"].get<double>(), 25, 0.01);
  EXPECT_EQ(one["used"], 250'000'000);
  EXPECT_EQ(one["processes"][0]["used"], 250'000'000);
}

TEST_F(ControlTest, TheTraceHasEveryTurnAndTheLogHasNone) {
  const std::size_t logged = t.lines.size();
  t.want(client);
  const std::uint64_t grant = t.granted(client);
  t.now += 30ms;
  t.release(client, grant, 20ms);
  const json all = ask({{"op", "trace"}});
  ASSERT_EQ(all["lines"].size(), 2u);
  const std::string granted = all["lines"][0].get<std::string>();
  const std::string released = all["lines"][1].get<std::string>();
  EXPECT_NE(granted.find("event=grant tenant=train client="), std::string::npos) << granted;
  EXPECT_NE(granted.find("reason="), std::string::npos) << granted;
  EXPECT_NE(released.find("held=30000000 used=20000000 billed=20000000"), std::string::npos)
      << released;
  EXPECT_EQ(t.lines.size(), logged) << t.lines.back();
  EXPECT_EQ(all["next"], 2);
  EXPECT_EQ(all["end"], 2);
  EXPECT_EQ(all["lost"], 0);
  EXPECT_TRUE(ask({{"op", "trace"}, {"from", 2}})["lines"].empty());
  EXPECT_EQ(ask({{"op", "trace"}, {"name", "train"}, {"from", 1}})["lines"].size(), 1u);
  EXPECT_EQ(refused({{"op", "trace"}, {"name", "trian"}}),
            "there is no tenant 'trian'; did you mean 'train'?");
  EXPECT_EQ(refused({{"op", "trace"}, {"from", -1}}),
            "from: -1 is not a whole number from 0 to 9223372036854775807");
}

TEST_F(ControlTest, AUserHasWhatItsRunsHave) {
  const auto user = t.broker.tenant_for({TenantKind::User, "user-7", 7}, {}, t.now);
  const auto run = t.broker.begin_run({TenantKind::Run, "part", 7}, {}, t.now,
                                      wire::Backend::Default, false, *user);
  const ClientId inside = t.join(*run);
  ASSERT_TRUE(t.ask(inside, gib(1)));
  const json status = ask({{"op", "status"}});
  EXPECT_TRUE(status["tenants"][0]["parent"].is_null());
  const json& above = status["tenants"][1];
  EXPECT_EQ(above["name"], "user-7");
  EXPECT_EQ(above["allocated"], gib(1).count);
  EXPECT_EQ(above["fullest"], gib(1).count);
  EXPECT_EQ(above["resident"], gib(1).count);
  EXPECT_TRUE(above["processes"].empty()) << "each process is in one tenant";
  EXPECT_EQ(status["tenants"][2]["parent"], "user-7");
  const json why = ask({{"op", "why"}, {"name", "user-7"}})["processes"];
  ASSERT_EQ(why.size(), 1u);
  EXPECT_EQ(why[0]["tenant"], "part");
  const json slept = ask({{"op", "sleep"}, {"name", "user-7"}, {"hold", true}});
  EXPECT_EQ(slept["changed"], true);
  EXPECT_EQ(slept["tenant"]["asleep"], true);
  EXPECT_EQ(slept["tenant"]["hold"], true);
  EXPECT_EQ(ask({{"op", "status"}})["tenants"][2]["asleep"], true);
  EXPECT_EQ(refused({{"op", "limit"}, {"name", "part"}, {"priority", 1}}),
            "priority 1 is above the limit of 'user-7', which is 0");
}

TEST_F(ControlTest, LimitsAreSetForAUserThatHasNoProcessYet) {
  const json made = ask({{"op", "limit"}, {"name", "user-1234"}, {"memory", gib(2).count}});
  ASSERT_TRUE(made["ok"].get<bool>()) << made;
  EXPECT_EQ(made["tenant"]["uid"], 1234);
  t.now += 24h;
  t.broker.sample(t.now);
  ASSERT_NE(t.broker.find_tenant("user-1234"), nullptr) << "it is kept";
  for (const char* name : {"user-", "user-01", "user-x", "user-99999999999"}) {
    EXPECT_NE(refused({{"op", "limit"}, {"name", name}, {"cores", 1}}).find("there is no tenant"),
              std::string::npos)
        << name;
  }
}

TEST_F(ControlTest, ADeclaredUserWithoutAProcessIsKnown) {
  LimitTables tables;
  tables.users[1000] = {"alice", {.cores = 40, .memory = gib(8), .priority = {}}};
  tables.named["container-web"] = {"web", {.cores = 20, .memory = {}, .priority = {}}};
  Kept declared(t.log, Declared(tables, {}));
  Changes of_file(t.broker, settings, declared, t.log, [](const std::string& name) {
    return name == "alice" ? std::optional<std::uint32_t>(1000) : std::nullopt;
  });
  Control other(t.broker, settings, of_file, processes, {t.now, false});
  const auto answer = [&](const json& request) {
    return json::parse(other.answer(request.dump(), t.now));
  };
  for (const char* name : {"user-1000", "alice"}) {
    const json why = answer({{"op", "why"}, {"name", name}});
    ASSERT_EQ(why["ok"], true) << why;
    EXPECT_EQ(why["declared"], true);
    EXPECT_TRUE(why["processes"].empty());
    EXPECT_EQ(why["limits"]["cores"], 40);
    EXPECT_EQ(why["limits"]["memory"], gib(8).count);
    EXPECT_EQ(why["limits_from"]["cores"], "file");
    EXPECT_EQ(why["limits_from"]["priority"], "default");
  }
  EXPECT_EQ(answer({{"op", "why"}, {"name", "container-web"}})["limits"]["cores"], 20);
  EXPECT_EQ(answer({{"op", "status"}})["declared"], (json{"container-web", "user-1000"}));
  EXPECT_EQ(answer({{"op", "sleep"}, {"name", "alice"}})["error"],
            "'alice' is declared, and has no process now");
  EXPECT_EQ(answer({{"op", "why"}, {"name", "user-7"}})["error"], "there is no tenant 'user-7'");
  ASSERT_TRUE(t.broker.tenant_for({TenantKind::User, "user-1000", 1000}, {}, t.now));
  EXPECT_FALSE(answer({{"op", "why"}, {"name", "alice"}}).contains("declared")) << "it is there";
  EXPECT_EQ(answer({{"op", "status"}})["declared"], (json{"container-web"}));
}

TEST_F(ControlTest, WhySaysWhy) {
  const json why = ask({{"op", "why"}, {"name", "train"}});
  EXPECT_EQ(why["processes"][0]["pid"], 4711);
  EXPECT_FALSE(why["processes"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(refused({{"op", "why"}, {"name", "trian"}}),
            "there is no tenant 'trian'; did you mean 'train'?");
}

TEST_F(ControlTest, WhyTellsOfHostMemoryWhereItMatters) {
  const auto host_memory = [&](const char* name) {
    return ask({{"op", "why"}, {"name", name}})["host_memory"];
  };
  t.arena.limit = gib(4);
  ASSERT_EQ(t.ask_movable(client, gib(8)), TestBroker::Told::Available);
  EXPECT_TRUE(host_memory("train").is_null()) << "all memory fits";
  const ClientId other = t.join(t.tenant("other"));
  ASSERT_EQ(t.ask_movable(other, gib(13)), TestBroker::Told::Refused);
  const json refused = host_memory("other");
  ASSERT_TRUE(refused.is_object()) << "host memory was missing";
  EXPECT_EQ(refused["arena_limit"], gib(4).count);
  EXPECT_EQ(refused["arena_needed"], 0);
  EXPECT_EQ(refused["arena_limited_by"], "arena_limit");
  EXPECT_TRUE(host_memory("train").is_null());
  ASSERT_EQ(t.ask_movable(other, gib(8)), TestBroker::Told::Wait);
  const json shortage = host_memory("train");
  ASSERT_TRUE(shortage.is_object()) << "the GPU is short of memory";
  EXPECT_GT(shortage["arena_needed"], 0);
  EXPECT_GT(shortage["arena_used"], 0);
}

// Was told to move out while it has work, for one that does not fit beside it.
struct ControlOfOneThatLeaves : ControlTest {
  ControlOfOneThatLeaves() : other(t.join(t.tenant("other"))) {
    EXPECT_EQ(t.ask_movable(client, gib(11)), TestBroker::Told::Available);
    t.want(client);
    const std::uint64_t grant = t.granted(client);
    EXPECT_EQ(t.ask_movable(other, gib(11)), TestBroker::Told::Wait);
    t.want(other);
    t.broker.places().ready(client, 1, gib(11), t.now);
    t.pass(10min);
    t.release(client, grant, 1s, true);
    out = t.outbox.take<wire::SwapOut>(client).at(0);
    ordered = Bytes{static_cast<std::int64_t>(out.bytes)};
  }
  static std::string to_go(Bytes bytes) {
    return "makes room for others: " + nvshare::to_text(bytes) +
           " of its memory still to move out; it comes back in its turn";
  }

  ClientId other;
  wire::SwapOut out{};
  Bytes ordered{};
};

// It is complete until the first of its memory has left, and lacks more and more from then on.
TEST_F(ControlOfOneThatLeaves, WhySaysThatItsOwnMemoryIsOnTheWayOut) {
  EXPECT_EQ(why(), to_go(ordered));
  t.moved(client, out.order, gib(1), {}, false);
  EXPECT_EQ(why(), to_go(ordered - gib(1)));
  ask({{"op", "pause"}, {"name", "train"}, {"paused", true}});
  EXPECT_EQ(why(), "is paused; resume it to let it run");
  ask({{"op", "pause"}, {"name", "train"}, {"paused", false}});
  t.moved(client, out.order, ordered - gib(1), {});
  EXPECT_NE(why().find("waits for " + nvshare::to_text(ordered) + " of GPU memory"),
            std::string::npos)
      << why();
}

TEST_F(ControlOfOneThatLeaves, WhySaysThatItDoesNotMoveItsMemoryOut) {
  t.pass(10min);
  EXPECT_EQ(why(), "has not moved the " + nvshare::to_text(ordered) + " of memory it was told to");
  t.moved(client, out.order, gib(1), {}, false);
  EXPECT_EQ(why(), to_go(ordered - gib(1))) << "it does now";
}

TEST_F(ControlOfOneThatLeaves, WhySaysThatWhatMovesOutCannotComeBack) {
  t.moved(client, out.order, gib(1), {}, false);
  Bytes there{};
  for (const auto& in : t.outbox.take<wire::SwapIn>(other)) {
    there += Bytes{static_cast<std::int64_t>(in.bytes)};
    t.moved(other, in.order, {}, Bytes{static_cast<std::int64_t>(in.bytes)});
  }
  EXPECT_EQ(why(), to_go(ordered - gib(1)));
  auto pinned = wire::make<wire::MemoryPinned>();
  pinned.bytes = static_cast<std::uint64_t>(there.count);
  t.say(other, pinned);
  ASSERT_GT(t.broker.core().view(client)->outgoing, Bytes{});
  EXPECT_EQ(why().find("needs 11GiB of GPU memory, and at most "), 0u) << why();
}

TEST_F(ControlTest, WhySaysThatALimitIsBelowWhatIsUsed) {
  ASSERT_TRUE(t.ask(client, gib(3)));
  ask({{"op", "limit"}, {"name", "train"}, {"memory", gib(3).count}});
  EXPECT_EQ(why(), "has no work for the GPU");
  ask({{"op", "limit"}, {"name", "train"}, {"memory", gib(2).count}});
  const std::string over =
      "over the memory limit: 3GiB used of 2GiB allowed; new allocations are refused until it is "
      "below";
  EXPECT_EQ(why(), "has no work for the GPU; " + over);
  t.want(client);
  EXPECT_EQ(why(), "runs, and nobody else wants the GPU; " + over);
  t.free(client, gib(1), gib(1), gib(1));
  EXPECT_EQ(why(), "runs, and nobody else wants the GPU");
  // Memory that can move, of all of its processes.
  ask({{"op", "limit"}, {"name", "train"}, {"memory", nullptr}});
  const ClientId other = t.join(tenant);
  ASSERT_EQ(t.ask_movable(other, gib(1)), TestBroker::Told::Available);
  ask({{"op", "limit"}, {"name", "train"}, {"memory", gib(2).count}});
  const json all = ask({{"op", "why"}, {"name", "train"}})["processes"];
  EXPECT_EQ(all[0]["text"], "runs, and nobody else wants the GPU; " + over);
  EXPECT_EQ(all[1]["text"], "has no work for the GPU; " + over +
                                ", and its memory is moved out as soon as others need the room");
}

TEST_F(ControlTest, WhySaysWhichLevelsLimitIsBelowWhatIsUsed) {
  const auto user = t.broker.tenant_for({TenantKind::User, "user-7", 7}, {}, t.now);
  const auto run = t.broker.begin_run({TenantKind::Run, "part", 7}, {}, t.now,
                                      wire::Backend::Default, false, *user);
  ASSERT_TRUE(t.ask(t.join(*run), gib(3)));
  ask({{"op", "limit"}, {"name", "user-7"}, {"memory", gib(2).count}});
  EXPECT_EQ(ask({{"op", "why"}, {"name", "part"}})["processes"][0]["text"],
            "has no work for the GPU; over the memory limit: 3GiB used of 2GiB allowed; new "
            "allocations are refused until it is below (the limit is of user-7)");
}

TEST_F(ControlTest, RefusedMemoryIsCountedAndExplained) {
  ask({{"op", "limit"}, {"name", "train"}, {"memory", gib(4).count}});
  ASSERT_TRUE(t.ask(client, gib(3)));
  const ClientId gone = t.join(tenant);
  EXPECT_FALSE(t.ask(gone, gib(2)));
  t.broker.leave(gone, t.now);
  EXPECT_EQ(why(), "has no work for the GPU");
  EXPECT_FALSE(t.ask(client, gib(2)));
  EXPECT_EQ(why(),
            "has no work for the GPU; was refused memory once: 2GiB asked for, and 1GiB left under "
            "the memory limit");
  EXPECT_FALSE(t.ask(client, mib(1536)));
  EXPECT_EQ(why(),
            "has no work for the GPU; was refused memory 2 times, last: 1.5GiB asked for, and 1GiB "
            "left under the memory limit");
  const json one = ask({{"op", "status"}})["tenants"][0];
  EXPECT_EQ(one["refused"], 3);
  EXPECT_EQ(one["processes"][0]["refused"], 2);
}

TEST_F(ControlTest, PausesAndResumes) {
  EXPECT_EQ(ask({{"op", "pause"}, {"name", "train"}, {"paused", true}})["tenant"]["paused"], true);
  EXPECT_EQ(ask({{"op", "pause"}, {"name", "train"}, {"paused", false}})["tenant"]["paused"],
            false);
  refused({{"op", "pause"}, {"name", "train"}, {"paused", 1}});
}

TEST_F(ControlTest, SettingsAreShownAndChanged) {
  const json all = ask({{"op", "config"}});
  EXPECT_EQ(all["settings"].size(), all_settings().size());
  const json set = ask({{"op", "set"}, {"name", "turn"}, {"value", "9ms"}});
  EXPECT_EQ(set["settings"][0]["value"], "9ms");
  EXPECT_EQ(set["settings"][0]["default"], "5ms");
  EXPECT_EQ(t.broker.core().config().turn, 9ms);
  EXPECT_TRUE(ask({{"op", "set"}, {"name", "reserve_percent"}, {"value", 20}})["ok"].get<bool>());
  EXPECT_EQ(t.broker.core().config().reserve_percent, 20);
  EXPECT_TRUE(ask({{"op", "set"}, {"name", "max_clients"}, {"value", 5}})["ok"].get<bool>());
  EXPECT_EQ(settings.max_clients, 5);
}

TEST_F(ControlTest, RefusedSettingsChangeNothing) {
  EXPECT_EQ(refused({{"op", "set"}, {"name", "policy"}, {"value", "fair"}}),
            "policy cannot change while the scheduler runs");
  refused({{"op", "set"}, {"name", "turn"}, {"value", "9"}});
  refused({{"op", "set"}, {"name", "turn"}, {"value", "9h"}});
  refused({{"op", "set"}, {"name", "turn"}});
  refused({{"op", "set"}, {"name", "turn"}, {"value", json::array()}});
  refused({{"op", "set"}, {"name", "run_directory"}, {"value", "/tmp"}});
  EXPECT_NE(refused({{"op", "set"}, {"name", "trun"}, {"value", "9ms"}}).find("did you mean"),
            std::string::npos);
  EXPECT_EQ(t.broker.core().config(), core::Config{});
}

TEST_F(ControlTest, SchedulingIsSwitched) {
  EXPECT_TRUE(ask({{"op", "scheduling"}, {"on", false}})["ok"].get<bool>());
  EXPECT_EQ(ask({{"op", "status"}})["scheduler"]["scheduling"], false);
  EXPECT_TRUE(ask({{"op", "scheduling"}, {"on", false}})["ok"].get<bool>()) << "already so";
  refused({{"op", "scheduling"}});
}

TEST_F(ControlTest, SleepAndWakeAnswerWithTheTenant) {
  ASSERT_EQ(t.ask_movable(client, gib(4)), TestBroker::Told::Available);
  ASSERT_TRUE(t.ask(client, gib(1)));
  const json slept = ask({{"op", "sleep"}, {"name", "train"}, {"hold", true}});
  EXPECT_EQ(slept["changed"], true);
  EXPECT_EQ(slept["tenant"]["asleep"], true);
  EXPECT_EQ(slept["tenant"]["hold"], true);
  EXPECT_EQ(slept["tenant"]["to_leave"], gib(4).count);
  t.now += 2s;
  EXPECT_EQ(why(),
            "has been held asleep for 2.00s: nvshare wake brings it back; 4GiB of its memory still "
            "to move out; 1GiB stay on the GPU: they are pinned and cannot move");
  const auto out = t.outbox.take<wire::SwapOut>(client).at(0);
  t.moved(client, out.order, gib(3), {});
  const json status = ask({{"op", "status"}})["tenants"][0];
  EXPECT_EQ(status["asleep_for"], 2'000'000'000);
  EXPECT_EQ(status["to_leave"], 0) << "it could not move the rest";
  EXPECT_NE(why().find("; 1GiB stay on the GPU: the host has no place for them"), std::string::npos)
      << why();
  EXPECT_EQ(ask({{"op", "sleep"}, {"name", "train"}})["changed"], false);
  const json woken = ask({{"op", "wake"}, {"name", "train"}});
  EXPECT_EQ(woken["tenant"]["asleep"], false);
  EXPECT_TRUE(woken["tenant"]["asleep_for"].is_null());
  EXPECT_EQ(ask({{"op", "wake"}, {"name", "train"}})["changed"], false);
}

TEST_F(ControlTest, SleepRefusesWhatMakesNoSense) {
  EXPECT_EQ(refused({{"op", "sleep"}, {"name", "trian"}}),
            "there is no tenant 'trian'; did you mean 'train'?");
  EXPECT_EQ(refused({{"op", "sleep"}, {"name", "train"}, {"hold", 1}}),
            "\"hold\" is to be true or false");
  refused({{"op", "wake"}});
  EXPECT_EQ(ask({{"op", "status"}})["tenants"][0]["asleep"], false);
}

TEST_F(ControlTest, AnyLineHasAnAnswer) {
  for (const std::string& line :
       {std::string(), std::string("{"), std::string("null"), std::string("[]"), std::string("{}"),
        std::string("{\"op\":1}"), std::string("{\"op\":\"stats\"}"), std::string("\xff\xfe"),
        std::string("{\"op\":\"why\",\"name\":\"\\ud800\"}"), std::string(60'000, '[')}) {
    const json answer = json::parse(control.answer(line, t.now));
    EXPECT_FALSE(answer["ok"].get<bool>()) << line.substr(0, 40);
    EXPECT_EQ(answer["error"].get<std::string>().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace nvshare::daemon
