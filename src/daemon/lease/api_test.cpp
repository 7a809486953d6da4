#include "daemon/lease/api.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/lease/testing.h"

namespace nvshare::daemon {
namespace {

using Json = LeaseWorld::Json;

TEST(LeaseApi, GrantsALeaseWithAllThatTheServiceNeeds) {
  LeaseWorld w;
  w.usage(10);
  const HttpReply reply = w.ask("ASR", R"(,"maxWaitMs":500,"trace":"call 7")");
  EXPECT_EQ(reply.status, 201);
  const Json said = LeaseWorld::of(reply);
  EXPECT_EQ(said["result"], "ACQUIRED");
  EXPECT_EQ(said["leaseId"].get<std::string>().size(), 32u);
  EXPECT_EQ(said["taskType"], "ASR");
  EXPECT_EQ(said["gpu"], 0);
  EXPECT_EQ(said["gpuKey"], nvshare::to_text(kTestGpu));
  EXPECT_EQ(said["acquiredAt"], "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(said["expiresAt"], "2023-11-14T22:13:50.123Z");
  EXPECT_EQ(said["queueWaitMs"], 0);
  EXPECT_EQ(said["trace"], "call 7");
}

TEST(LeaseApi, NamesOfLeasesDiffer) {
  LeaseWorld w;
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) {
    const std::string name = w.lease("ASR");
    names.insert(name);
    EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 204);
  }
  EXPECT_EQ(names.size(), 100u);
}

TEST(LeaseApi, AnswersAWaitingRequestWhenALeaseIsFree) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  const std::string first = w.lease("NMT");
  EXPECT_EQ(w.ask("NMT").status, 0) << "waits";
  const HttpCall waits = w.last;
  w.pass(120ms);
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + first).status, 204);
  ASSERT_TRUE(w.replies.contains(waits));
  EXPECT_EQ(w.replies[waits].status, 201);
  EXPECT_EQ(LeaseWorld::of(w.replies[waits])["queueWaitMs"], 120);
  EXPECT_EQ(w.get("/v1/leases")["leases"].size(), 1u);
}

TEST(LeaseApi, SaysWhyThereIsNoLeaseAndWhenToComeAgain) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  w.usage(10);
  w.lease("ASR", R"(,"hint":{"estimatedGpuHoldMs":2500})");
  const HttpReply skipped = w.ask("SEMANTIC_REPAIR");
  EXPECT_EQ(skipped.status, 409);
  EXPECT_EQ(LeaseWorld::of(skipped)["result"], "SKIPPED");
  EXPECT_EQ(LeaseWorld::of(skipped)["reason"], "GPU_BUSY");
  EXPECT_EQ(LeaseWorld::of(skipped)["retryAfterMs"], 2500);
  const std::vector<std::pair<std::string, std::string>> again{{"Retry-After", "3"}};
  EXPECT_EQ(skipped.headers, again);
  const HttpReply falls = w.ask("NMT", R"(,"busyPolicy":"FALLBACK_CPU")");
  EXPECT_EQ(falls.status, 409);
  EXPECT_EQ(LeaseWorld::of(falls)["result"], "FALLBACK_CPU");

  EXPECT_EQ(w.ask("NMT", R"(,"maxWaitMs":300)").status, 0);
  const HttpCall waits = w.last;
  w.pass(299ms);
  EXPECT_FALSE(w.replies.contains(waits));
  w.pass(1ms);
  EXPECT_EQ(w.replies[waits].status, 503);
  EXPECT_EQ(LeaseWorld::of(w.replies[waits])["result"], "TIMEOUT");
  EXPECT_EQ(LeaseWorld::of(w.replies[waits])["queueWaitMs"], 300);

  w.settings.arbiter.queue = 0;
  w.leases.set_config(w.settings.arbiter);
  EXPECT_EQ(w.ask("ASR").status, 429);
}

// Another arbiter had these fields, and never sent them.
TEST(LeaseApiDefects, AStatusThatIsNeverSent) {
  LeaseWorld w;
  w.usage(91);
  const Json gpu = w.get("/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["gpu_admission_state"], "HIGH_PRESSURE");
  EXPECT_EQ(gpu["gpu_usage"], 91.0);
  EXPECT_EQ(gpu["gpu_usage_cache_age_ms"], 0);
  EXPECT_EQ(gpu["gpu_queue_len"], 0);
}

TEST(LeaseApi, HighPressureIsToldAsTheReason) {
  LeaseWorld w;
  w.usage(95);
  w.lease("ASR");  // the floor: no lease is active
  EXPECT_EQ(LeaseWorld::of(w.ask("SEMANTIC_REPAIR"))["reason"], "GPU_USAGE_HIGH");
  EXPECT_EQ(w.ask("NMT", R"(,"maxWaitMs":100)").status, 0);
  const HttpCall waits = w.last;
  w.pass(100ms);
  EXPECT_EQ(LeaseWorld::of(w.replies[waits])["reason"], "GPU_USAGE_HIGH");
  const Json gpu = w.get("/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["gpu_admission_state"], "HIGH_PRESSURE");
  EXPECT_EQ(gpu["gpu_usage"], 95.0);
  EXPECT_EQ(gpu["gpu_usage_cache_age_ms"], 100);
  EXPECT_EQ(gpu["active_leases"], 1);
  EXPECT_EQ(gpu["gpu_queue_len"], 0);
}

TEST(LeaseApi, OneRequestSaysWhyItWaits) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  w.usage(10);
  w.lease("ASR");
  EXPECT_EQ(w.ask("NMT").status, 0);
  EXPECT_EQ(w.ask("TTS").status, 0);
  w.pass(500ms);
  const Json all = w.get("/v1/leases")["leases"];
  ASSERT_EQ(all.size(), 3u);
  EXPECT_FALSE(all[2].contains("why")) << "a list would take long";
  EXPECT_EQ(w.get("/v1/leases/" + all[2]["leaseId"].get<std::string>())["why"],
            "waits for 500ms: no slot is free (1 of 1 are taken); behind 1 NMT; gives up in 2.50s");
}

TEST(LeaseApi, ARequestOfAClosedConnectionIsWithdrawn) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  const std::string first = w.lease("NMT");
  EXPECT_EQ(w.ask("NMT").status, 0);
  w.api.ended(w.last, false);
  EXPECT_EQ(w.get("/v1/status")["gpus"][0]["gpu_queue_len"], 0);
  w.call("DELETE", "/v1/leases/" + first);
  EXPECT_TRUE(w.replies.empty());
  EXPECT_TRUE(w.leases.empty());
}

// The lease would be held by nobody until its deadline.
TEST(LeaseApi, ALeaseOfAnAnswerThatReachesNobodyIsGivenBack) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  w.lease("NMT");
  const HttpCall at_once = w.last;
  EXPECT_EQ(w.ask("ASR").status, 0);
  const HttpCall waits = w.last;
  EXPECT_EQ(w.ask("NMT").status, 0);
  const HttpCall next = w.last;
  w.api.ended(at_once, false);
  EXPECT_EQ(w.replies[waits].status, 201);
  EXPECT_FALSE(w.replies.contains(next));
  w.api.ended(waits, false);
  EXPECT_EQ(w.replies[next].status, 201);
  w.api.ended(next, true);
  EXPECT_FALSE(w.leases.empty());
}

TEST(LeaseApi, ARequestThatSomebodyWithdrawsIsAnswered) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  const std::string holder = w.lease("NMT");
  EXPECT_EQ(w.ask("ASR").status, 0);
  const HttpCall waits = w.last;
  const std::string name = w.get("/v1/leases")["leases"][1]["leaseId"];
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 204);
  EXPECT_EQ(w.replies[waits].status, 410);
  EXPECT_EQ(LeaseWorld::of(w.replies[waits])["reason"], "WITHDRAWN");
  w.api.ended(waits, true);
  w.call("DELETE", "/v1/leases/" + holder);
  EXPECT_TRUE(w.leases.empty());
}

TEST(LeaseApi, AWaitingRequestIsAnsweredWhenItsOwnerEnds) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  w.lease("NMT", R"(,"ownerPid":null)");
  EXPECT_EQ(w.ask("ASR").status, 0);
  const HttpCall waits = w.last;
  w.picture.gone(kOwner);
  w.leases.look();
  EXPECT_EQ(w.replies[waits].status, 410);
  EXPECT_EQ(LeaseWorld::of(w.replies[waits])["reason"], "OWNER_GONE");
}

TEST(LeaseApi, AListIsBounded) {
  LeaseWorld w;
  w.settings.arbiter.slots = 3;
  w.leases.set_config(w.settings.arbiter);
  for (int i = 0; i < 300; ++i) w.ask("ASR");
  const Json all = w.get("/v1/leases");
  EXPECT_EQ(all["total"], 300);
  EXPECT_EQ(all["leases"].size(), 200u);
  EXPECT_EQ(all["leases"][2]["state"], "ACTIVE");
  EXPECT_EQ(all["leases"][3]["state"], "WAITING");
  const auto with_limit = [&](const std::string& limit) {
    HttpRequest request = w.request("GET", "/v1/leases");
    request.query["limit"] = limit;
    return *w.api.handle(HttpCall{1000}, request);
  };
  EXPECT_EQ(LeaseWorld::of(with_limit("250"))["leases"].size(), 250u);
  EXPECT_EQ(LeaseWorld::of(with_limit("1"))["leases"].size(), 1u);
  EXPECT_EQ(LeaseWorld::of(with_limit("1"))["total"], 300);
  for (const char* bad : {"0", "1001", "", "x", "-1"}) EXPECT_EQ(with_limit(bad).status, 400);
}

// What was printed in this turn is kept for others with the same rights.
TEST(LeaseApi, AListIsAsOfNowAndForItsCaller) {
  LeaseWorld w;
  const std::string name = w.lease("ASR");
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], name);
  w.peer = HttpPeer{kOtherOwner, 1001};
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], nullptr);
  w.peer.reset();
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], nullptr);
  w.peer = HttpPeer{kOtherOwner, 0};
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], name);
  const auto until = [&] { return w.get("/v1/leases")["leases"][0]["expiresAt"]; };
  const Json before = until();
  w.call("POST", "/v1/leases/" + name + "/renew", R"({"holdMaxMs":5000})");
  EXPECT_NE(until(), before);
  w.call("DELETE", "/v1/leases/" + name);
  EXPECT_EQ(w.get("/v1/leases")["total"], 0);
}

TEST(LeaseApi, AServiceThatHasHungUpGetsNoLease) {
  LeaseWorld w;
  const std::string name = w.lease("NMT");
  w.hung_up = true;
  EXPECT_EQ(w.ask("NMT").status, 400);
  EXPECT_EQ(w.get("/v1/leases")["leases"].size(), 1u);
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 204) << "needs no answer";
}

TEST(LeaseApi, BadRequestsGetOneLine) {
  LeaseWorld w;
  struct Case {
    const char* body;
    int status;
    const char* text;
  };
  for (const Case& one : {
           Case{"{", 400, "not JSON"},
           {"[1]", 400, "not a JSON object"},
           {"{}", 400, "does not say its class"},
           {R"({"taskType":7})", 400, "does not say its class"},
           {R"({"taskType":"XYZ"})", 400, "no class 'XYZ'"},
           {R"({"taskType":"ASR","maxWaitMs":-1})", 400, "maxWaitMs"},
           {R"({"taskType":"ASR","maxWaitMs":"3"})", 400, "maxWaitMs"},
           {R"({"taskType":"ASR","maxWaitMs":1e3})", 400, "maxWaitMs"},
           {R"({"taskType":"ASR","holdMaxMs":0})", 400, "holdMaxMs"},
           {R"({"taskType":"ASR","maxWait":3})", 400, "maxWait"},
           {R"({"taskType":"ASR","busyPolicy":"wait"})", 400, "busyPolicy"},
           {R"({"taskType":"ASR","hint":3})", 400, "hint"},
           {R"({"taskType":"ASR","hint":{"audio":3}})", 400, "audio"},
           {R"({"taskType":"ASR","hint":{"estimatedAudioMs":-3}})", 400, "estimatedAudioMs"},
           {R"({"taskType":"ASR","gpuKey":9})", 404, "no GPU 9"},
           {R"({"taskType":"ASR","gpuKey":"GPU-1"})", 404, "no GPU"},
           {R"({"taskType":"ASR","gpuKey":null})", 404, "no GPU null"},
           {R"({"taskType":"ASR","ownerPid":50000002})", 400, "another user's"},
           {R"({"taskType":"ASR","ownerPid":7})", 400, "no process 7"},
           {R"({"taskType":"ASR","ownerPid":"7"})", 400, "ownerPid"},
           {R"({"taskType":"ASR","withChildren":1})", 400, "withChildren"},
           {R"({"taskType":"ASR","trace":7})", 400, "trace"},
       }) {
    const HttpReply reply = w.call("POST", "/v1/leases", one.body);
    EXPECT_EQ(reply.status, one.status) << one.body << reply.body;
    const std::string error = LeaseWorld::of(reply).value("error", "");
    EXPECT_NE(error.find(one.text), error.npos) << one.body << ": " << error;
    EXPECT_EQ(error.find('\n'), error.npos);
  }
  EXPECT_TRUE(w.leases.empty()) << "nothing is left of them";
  const Json unknown = LeaseWorld::of(w.ask("XYZ"));
  EXPECT_EQ(unknown["classes"], Json({"ASR", "NMT", "TTS", "SEMANTIC_REPAIR"}));
}

TEST(LeaseApi, ABodyIsSmallInside) {
  LeaseWorld w;
  std::string keys;
  const std::string deep(30000, '[');
  for (int i = 0; i < 65; ++i) keys += (i == 0 ? "{" : ",") + fmt::format(R"("{}":1)", i);
  for (const std::string& body :
       {keys + "}", R"({"gpuKey":)" + deep + std::string(30000, ']') + "}",
        std::string(R"({"hint":[[[[[[[[1]]]]]]]]})")}) {
    const HttpReply reply = w.call("POST", "/v1/leases", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(LeaseWorld::of(reply)["error"],
              "the body has more than 64 keys, or more than 8 levels")
        << body.substr(0, 100);
  }
}

TEST(LeaseApi, ANulEndsNoBody) {
  LeaseWorld w;
  using namespace std::string_literals;
  EXPECT_EQ(w.call("POST", "/v1/leases", "{\"taskType\":\"ASR\"}\0"s).status, 400);
  EXPECT_EQ(w.call("POST", "/v1/leases", "{\"taskType\":\"ASR\"}\0more"s).status, 400);
}

TEST(LeaseApi, PathsAndMethodsThatAreNoneAreRefused) {
  LeaseWorld w;
  EXPECT_EQ(w.call("GET", "/").status, 404);
  EXPECT_EQ(w.call("GET", "").status, 404);
  EXPECT_EQ(w.call("GET", "/v1/leases/").status, 404);
  EXPECT_EQ(w.call("GET", "/v1/leases/a/b").status, 404);
  EXPECT_EQ(w.call("POST", "/v1/gpus//leases", R"({"taskType":"ASR"})").status, 404);
  EXPECT_EQ(w.call("POST", "/v1/gpus/8/leases", R"({"taskType":"ASR"})").status, 404);
  EXPECT_EQ(w.call("POST", "/v1/gpus/0/leases", R"({"taskType":"ASR"})").status, 201);
  const HttpReply wrong = w.call("PUT", "/v1/leases");
  EXPECT_EQ(wrong.status, 405);
  const std::vector<std::pair<std::string, std::string>> allowed{{"Allow", "POST, GET"}};
  EXPECT_EQ(wrong.headers, allowed);
}

TEST(LeaseApi, ALeaseIsItsUsersAlone) {
  LeaseWorld w;
  const std::string name = w.lease("ASR");
  const std::string path = "/v1/leases/" + name;
  EXPECT_EQ(w.get(path)["why"], "held for 0ms, ends in 30.00s");
  w.peer = HttpPeer{kOtherOwner, 1001};
  const HttpReply refused = w.call("GET", path);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.body.find("held for"), std::string::npos) << "nor how it stands";
  EXPECT_EQ(w.call("DELETE", path).status, 403);
  EXPECT_EQ(w.call("POST", path + "/renew").status, 403);
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], nullptr) << "its name is the right to it";
  w.peer.reset();
  EXPECT_EQ(w.call("DELETE", path).status, 403) << "over TCP";
  for (const std::uint32_t admin : {0u, 7u}) {
    w.peer = HttpPeer{kOtherOwner, admin};
    EXPECT_EQ(w.call("GET", path).status, 200) << admin;
    EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], name);
  }
  EXPECT_EQ(w.call("DELETE", path).status, 204);
  EXPECT_EQ(w.call("DELETE", path).status, 404);
}

TEST(LeaseApi, TheAdministratorsGroupMayDoWhatRootMay) {
  LeaseWorld w;
  const std::string name = w.lease("ASR");
  w.peer = HttpPeer{kOtherOwner, 1001, {100, 71}};
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 403);
  EXPECT_EQ(w.call("PATCH", "/v1/config", "{}").status, 403);
  w.peer->groups.push_back(70);
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], name);
  EXPECT_EQ(w.call("PATCH", "/v1/config", "{}").status, 200);
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 204);
}

TEST(LeaseApi, OverTcpTheNameOfTheLeaseIsTheRightToIt) {
  LeaseWorld w;
  w.peer.reset();
  const std::string name = w.lease("ASR");
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], nullptr);
  EXPECT_EQ(w.get("/v1/leases/" + name)["leaseId"], name);
  EXPECT_EQ(w.ask("ASR", R"(,"ownerPid":50000001)").status, 400);
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 204);
}

TEST(LeaseApi, AnOverdueLeaseIsTakenAwayAndItsHolderIsTold) {
  LeaseWorld w;
  const std::string name = w.lease("ASR", R"(,"holdMaxMs":1000)");
  w.pass(1s);
  const HttpReply reply = w.call("GET", "/v1/leases/" + name);
  EXPECT_EQ(reply.status, 410);
  EXPECT_EQ(LeaseWorld::of(reply)["reason"], "OVERDUE");
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 410);
  EXPECT_EQ(w.get("/v1/status")["classes"]["ASR"]["revoked"], 1);
  EXPECT_NE(w.logged.find("lease_revoked"), w.logged.npos);
  w.peer = HttpPeer{kOtherOwner, 1001};
  EXPECT_EQ(w.call("GET", "/v1/leases/" + name).status, 403);
}

TEST(LeaseApi, ARenewedLeaseStays) {
  LeaseWorld w;
  const std::string name = w.lease("ASR", R"(,"holdMaxMs":1000)");
  w.pass(900ms);
  const Json renewed = LeaseWorld::of(w.call("POST", "/v1/leases/" + name + "/renew"));
  EXPECT_EQ(renewed["leaseId"], name);
  EXPECT_EQ(renewed["expiresAt"], "2023-11-14T22:13:22.023Z");
  w.pass(900ms);
  EXPECT_EQ(w.call("GET", "/v1/leases/" + name).status, 200);
  const std::string path = "/v1/leases/" + name + "/renew";
  EXPECT_EQ(w.call("POST", path, R"({"holdMaxMs":-1})").status, 400);
  EXPECT_EQ(w.call("POST", path, R"({"holdMaxMs":0})").status, 400);
  EXPECT_EQ(w.call("POST", path, R"({"more":1})").status, 400);
}

TEST(LeaseApi, TheStatusOfAGpuWithoutASampleIsUnknown) {
  LeaseWorld w;
  const Json gpu = w.get("/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["gpu_admission_state"], "UNKNOWN");
  EXPECT_EQ(gpu["gpu_usage"], nullptr);
  EXPECT_EQ(gpu["gpu_usage_cache_age_ms"], nullptr);
  w.usage(40);
  EXPECT_EQ(w.get("/v1/status")["gpus"][0]["gpu_admission_state"], "NORMAL");
  w.pass(2001ms);
  EXPECT_EQ(w.get("/v1/status")["gpus"][0]["gpu_admission_state"], "UNKNOWN") << "too old";
}

TEST(LeaseApi, AStreamHasTheStatusAsItsEvents) {
  LeaseWorld w;
  std::vector<std::string> events;
  w.api.feed().set_send([&](HttpCall call, const std::string& event) {
    EXPECT_EQ(call, HttpCall{1});
    events.push_back(event);
  });
  const HttpReply reply = w.call("GET", "/v1/status/stream");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.type, "text/event-stream");
  EXPECT_TRUE(reply.goes_on);
  EXPECT_EQ(reply.body, status_event(w.call("GET", "/v1/status").body));
  w.pass(1s);
  w.api.feed().end_of_turn(w.broker.now);
  EXPECT_TRUE(events.empty()) << "time alone is no change";
  for (const auto& change : std::vector<std::function<void()>>{
           [&] { w.usage(40); }, [&] { w.lease("ASR"); }, [&] { w.ask("NMT"); },
           [&] { w.pass(2s + 1ms); }}) {  // the reading is too old then
    const std::size_t before = events.size();
    w.pass(StatusFeed::kShortest);
    change();
    w.api.feed().end_of_turn(w.broker.now);
    ASSERT_EQ(events.size(), before + 1);
    EXPECT_EQ(events.back(), status_event(w.call("GET", "/v1/status").body));
  }
  EXPECT_EQ(events.back().find('\n'), events.back().find("\ndata: ")) << "two lines";
  EXPECT_EQ(events.back().find('\n', events.back().find("data: ")), events.back().size() - 2);
  w.api.ended(HttpCall{1}, false);
  EXPECT_EQ(w.api.feed().streams(), 0u);
}

TEST(LeaseApi, TheCountsOfThePushAreNoChange) {
  LeaseWorld w;
  EXPECT_EQ(w.get("/v1/status")["status_push"], nullptr);
  const std::string essence = w.api.status().essence;
  w.push = PushCounts{3, 2, true};
  const Json push = w.get("/v1/status")["status_push"];
  EXPECT_EQ(push, Json({{"delivered", 3}, {"failed", 2}, {"failing", true}}));
  EXPECT_EQ(w.api.status().essence, essence);
}

TEST(LeaseApi, AHintRaisesTheMarksForAWhile) {
  LeaseWorld w;
  w.usage(40);
  w.lease("ASR", R"(,"hint":{"estimatedAudioMs":12000})");
  Json gpu = w.get("/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["high_water"], 92.0);
  EXPECT_EQ(gpu["low_water"], 85.0);
  EXPECT_EQ(gpu["raised_until"], "2023-11-14T22:13:35.123Z");
  w.pass(15s);
  gpu = w.get("/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["high_water"], 85.0);
  EXPECT_EQ(gpu["raised_until"], nullptr);
}

TEST(LeaseApi, ClassesShowWhatTheyDo) {
  LeaseWorld w;
  w.lease("ASR");
  const Json classes = w.get("/v1/classes")["classes"];
  ASSERT_EQ(classes.size(), 4u);
  EXPECT_EQ(classes[0]["taskType"], "ASR");
  EXPECT_EQ(classes[0]["priority"], 90);
  EXPECT_EQ(classes[0]["tenantPriority"], 8);
  EXPECT_EQ(classes[0]["counts"]["acquired"], 1);
  EXPECT_EQ(classes[3]["busy"], "SKIP");
  EXPECT_EQ(classes[3]["maxWaitMs"], 0);
}

TEST(LeaseApi, AChangeThatWasNotWrittenSaysSo) {
  LeaseWorld w;
  w.peer = HttpPeer{kOwner, 0};
  EXPECT_TRUE(w.call("PATCH", "/v1/config", R"({"gpuUsageHighWater":90})").headers.empty());
  w.writable = false;
  const HttpReply reply = w.call("PATCH", "/v1/config", R"({"gpuUsageHighWater":91})");
  EXPECT_EQ(reply.status, 200);
  ASSERT_EQ(reply.headers.size(), 1u);
  EXPECT_EQ(reply.headers[0].first, "Warning");
}

TEST(LeaseApi, TheConfigurationChangesWholeOrNotAtAll) {
  LeaseWorld w;
  const std::string before = w.call("GET", "/v1/config").body;
  EXPECT_EQ(w.call("PATCH", "/v1/config", R"({"gpuUsageHighWater":70})").status, 403);
  w.peer = HttpPeer{kOwner, 0};
  for (const char* bad :
       {R"({"gpuUsageHighWater":70})", R"({"gpuUsageHighWater":99,"gpuUsageLowWater":-1})",
        R"({"gpuUsage":{"baseHighWater":99,"cacheTtlMs":"x"}})", R"({"gpuUsage":7})",
        R"({"gpuUsage":{"highwater":80}})", R"({"gpuUsage.baseHighWater":90})",
        R"({"gpuUsageHighWater":90,"gpuUsage":{"baseHighWater":91}})",
        R"({"gpuUsage":{"dynamicAdjustment.enabled":false}})", R"({"high":80})", "[]", "{"}) {
    EXPECT_EQ(w.call("PATCH", "/v1/config", bad).status, 400) << bad;
    EXPECT_EQ(w.call("GET", "/v1/config").body, before) << bad;
  }
  const Json changed = LeaseWorld::of(
      w.call("PATCH", "/v1/config", R"({"gpuUsageHighWater":70,"gpuUsageLowWater":60})"));
  EXPECT_EQ(changed["gpuUsage"]["baseHighWater"], 70);
  w.usage(72);
  EXPECT_EQ(w.get("/v1/status")["gpus"][0]["gpu_admission_state"], "HIGH_PRESSURE");
  const Json section9 = Json::parse(R"({"gpuUsage":{"sampleIntervalMs":400,"cacheTtlMs":1500,
      "baseHighWater":90.5,"baseLowWater":80,"dynamicAdjustment":{"enabled":false,
      "longAudioThresholdMs":9000,"highWaterBoost":5,"lowWaterBoost":4,"adjustmentTtlMs":7000}},
      "leases":{"slots":3,"queue":9}})");
  EXPECT_EQ(LeaseWorld::of(w.call("PATCH", "/v1/config", section9.dump())), section9);
  EXPECT_EQ(w.settings.usage_sample_interval, 400ms);
}

}  // namespace
}  // namespace nvshare::daemon
