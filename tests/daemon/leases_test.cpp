// Leases of the real scheduler, over the Unix socket and over loopback TCP.

#include "leases.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

using namespace std::chrono_literals;

const std::string kOneSlot = "NVSHARE_LEASE_SLOTS=1";
const json kLongWait{{"maxWaitMs", 60'000}, {"ownerPid", nullptr}};
const json kNobodys{{"ownerPid", nullptr}};

// What the scheduler and the test may lose of the machine's time. The median of several tries is
// judged, because a single one may wait for a processor.
constexpr Milliseconds kSoon = 50ms;

std::string text(const Service::Answer& answer) {
  return std::to_string(answer.status) + " " + answer.body.value("result", "") + " " +
         answer.body.value("reason", "");
}

bool is_stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  stat >> number >> name >> state;
  return state == "T";
}

// --- granting and giving back ------------------------------------------------------------------

TEST(SchedulerLeases, ALeaseIsGrantedSeenAndGivenBack) {
  const LeaseScheduler scheduler;
  for (const Road road : kRoads) {
    Service service = scheduler.service(road);
    const Service::Answer answer = service.ask("ASR", {{"trace", "talk 7"}});
    ASSERT_EQ(text(answer), "201 ACQUIRED ") << answer.body;
    const std::string id = answer.body["leaseId"];
    EXPECT_EQ(id.size(), 32u);
    EXPECT_EQ(answer.body["trace"], "talk 7");
    EXPECT_EQ(answer.body["gpuKey"], scheduler.status()["gpus"][0]["uuid"]);
    EXPECT_EQ(scheduler.active(), 1);
    const json seen = service.call("GET", "/v1/leases/" + id).body;
    EXPECT_EQ(seen["state"], "ACTIVE");
    EXPECT_EQ(seen.value("pid", 0), road == Road::Unix ? getpid() : 0);
    // Over TCP the id is the only right to the lease.
    const json listed = service.call("GET", "/v1/leases").body["leases"][0];
    EXPECT_EQ(listed["leaseId"], road == Road::Unix ? json(id) : json(nullptr));
    EXPECT_EQ(service.call("POST", "/v1/leases/" + id + "/renew").status, 200);
    EXPECT_EQ(service.release(id), 204);
    EXPECT_EQ(scheduler.active(), 0);
    EXPECT_EQ(service.release(id), 404);
    EXPECT_EQ(service.call("GET", "/v1/leases/" + id).status, 404);
  }
}

TEST(SchedulerLeases, AWaitingRequestIsAnsweredWhenALeaseIsReleased) {
  const LeaseScheduler scheduler({kOneSlot});
  Service holder = scheduler.service();
  std::string held = holder.lease("ASR");
  for (const Road road : kRoads) {
    std::vector<Milliseconds> times;
    for (int i = 0; i < 9; ++i) {
      Service waiter = waiting_service(scheduler, road, "TTS", kLongWait);
      const auto begin = Clock::now();
      ASSERT_EQ(holder.release(held), 204);
      const Service::Answer answer = waiter.read();
      times.push_back(since(begin));
      ASSERT_EQ(text(answer), "201 ACQUIRED ") << answer.body;
      held = answer.body["leaseId"];
    }
    EXPECT_LT(median_of(times), kSoon);
  }
}

TEST(SchedulerLeases, AWaitingRequestIsAnsweredOnTime) {
  const LeaseScheduler scheduler({kOneSlot});
  scheduler.service().lease("ASR");
  for (const Road road : kRoads) {
    std::vector<Milliseconds> late;
    for (int i = 0; i < 9; ++i) {
      Service service = scheduler.service(road);
      const auto begin = Clock::now();
      const Service::Answer answer = service.ask("ASR", {{"maxWaitMs", 120}});
      late.push_back(since(begin) - 120ms);
      EXPECT_EQ(text(answer), "503 TIMEOUT GPU_BUSY");
      EXPECT_GE(answer.body["queueWaitMs"], 120);
      EXPECT_GE(late.back(), 0ms);
      EXPECT_GE(answer.body["retryAfterMs"], 50);
      EXPECT_TRUE(answer.headers.contains("Retry-After"));
    }
    EXPECT_LT(median_of(late), kSoon);
  }
  EXPECT_EQ(scheduler.waiting(), 0);
}

TEST(SchedulerLeases, AnOverdueLeaseIsTakenAwayAndTheNextIsServed) {
  const LeaseScheduler scheduler({kOneSlot});
  Service holder = scheduler.service(Road::Tcp);
  const auto begin = Clock::now();
  const std::string id = holder.lease("ASR", {{"holdMaxMs", 300}});
  Service waiter = scheduler.service(Road::Tcp);
  EXPECT_EQ(text(waiter.ask("ASR", kLongWait)), "201 ACQUIRED ");
  EXPECT_GE(since(begin), 300ms);
  EXPECT_LT(since(begin), 1300ms);
  const Service::Answer told = holder.call("POST", "/v1/leases/" + id + "/renew");
  EXPECT_EQ(told.status, 410);
  EXPECT_EQ(told.body["reason"], "OVERDUE");
}

TEST(SchedulerLeases, SkipAndFallbackAreAnsweredAtOnce) {
  const LeaseScheduler scheduler({kOneSlot});
  scheduler.service().lease("ASR");
  ASSERT_TRUE(scheduler.usage_is_known());
  for (const Road road : kRoads) {
    Service service = scheduler.service(road);
    EXPECT_EQ(text(service.ask("ASR", {{"busyPolicy", "SKIP"}})), "409 SKIPPED GPU_BUSY");
    EXPECT_EQ(text(service.ask("NMT", {{"busyPolicy", "FALLBACK_CPU"}})),
              "409 FALLBACK_CPU GPU_BUSY");
    EXPECT_EQ(text(service.ask("SEMANTIC_REPAIR")), "409 SKIPPED GPU_BUSY");
  }
  EXPECT_EQ(scheduler.waiting(), 0);
}

TEST(SchedulerLeases, AFullQueueRefusesTheNext) {
  const LeaseScheduler scheduler({kOneSlot, "NVSHARE_LEASE_QUEUE=2"});
  Service holder = scheduler.service();
  const std::string held = holder.lease("ASR");
  Service first = waiting_service(scheduler, Road::Unix, "ASR", kLongWait);
  const Service second = waiting_service(scheduler, Road::Tcp, "ASR", kLongWait);
  Service third = scheduler.service(Road::Tcp);
  const Service::Answer refused = third.ask("ASR", kLongWait);
  EXPECT_EQ(text(refused), "429 QUEUE_FULL GPU_BUSY");
  EXPECT_TRUE(refused.headers.contains("Retry-After"));
  ASSERT_EQ(holder.release(held), 204);
  EXPECT_EQ(text(first.read()), "201 ACQUIRED ");
  third.send_ask("ASR", kLongWait);
  EXPECT_TRUE(eventually([&] { return scheduler.waiting() == 2; })) << "there is room again";
}

// --- defects of other arbiters -----------------------------------------------------------------

// The queue was FIFO, priority was ignored; a high class passed earlier requests of its own class.
TEST(SchedulerLeaseDefects, AHighClassThatJumpsItsOwnQueue) {
  const LeaseScheduler scheduler({kOneSlot});
  Service holder = scheduler.service();
  std::string held = holder.lease("NMT");
  struct Waiter {
    std::string trace;
    Service service;
  };
  std::vector<Waiter> waiters;
  for (const char* trace : {"TTS 1", "NMT 1", "ASR 1", "TTS 2", "ASR 2", "NMT 2", "ASR 3"}) {
    json more = kLongWait;
    more["trace"] = trace;
    const Road road = kRoads[waiters.size() % 2];
    waiters.push_back({trace, waiting_service(scheduler, road, std::string(trace, 3), more)});
  }
  std::ranges::sort(waiters, {}, &Waiter::trace);  // the classes' order, and that of their names
  for (std::size_t i = 0; i < waiters.size(); ++i) {
    ASSERT_EQ(holder.release(held), 204);
    const Service::Answer answer = waiters[i].service.read();
    ASSERT_EQ(text(answer), "201 ACQUIRED ") << waiters[i].trace;
    EXPECT_EQ(answer.body["trace"], waiters[i].trace);
    for (std::size_t later = i + 1; later < waiters.size(); ++later) {
      EXPECT_TRUE(waiters[later].service.connection().hears_nothing()) << waiters[later].trace;
    }
    held = answer.body["leaseId"];
  }
}

TEST(SchedulerLeaseDefects, ASemanticRepairThatWaits) {
  const LeaseScheduler scheduler({kOneSlot});
  Service holder = scheduler.service();
  const std::string held = holder.lease("ASR");
  ASSERT_TRUE(scheduler.usage_is_known());
  Service repair = scheduler.service();
  std::vector<Milliseconds> times;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    const json more{{"maxWaitMs", 5'000}, {"busyPolicy", "WAIT"}};
    EXPECT_EQ(text(repair.ask("SEMANTIC_REPAIR", more)), "409 SKIPPED GPU_BUSY");
    times.push_back(since(begin));
  }
  EXPECT_LT(median_of(times), kSoon);
  EXPECT_EQ(scheduler.waiting(), 0);
  holder.release(held);
  EXPECT_EQ(text(repair.ask("SEMANTIC_REPAIR", kNobodys)), "201 ACQUIRED ") << "on an idle GPU";
}

// A lost release blocked the GPU for ever.
TEST(SchedulerLeaseDefects, ALostRelease) {
  const LeaseScheduler scheduler({kOneSlot});
  const Forked owner([&] {
    Service service = scheduler.service();
    service.ask("ASR");
    pause();
  });
  ASSERT_TRUE(eventually([&] { return scheduler.active() == 1; }));
  ASSERT_EQ(scheduler.get("/v1/leases")["leases"][0]["pid"], owner.pid());
  const std::string id = scheduler.get("/v1/leases")["leases"][0]["leaseId"];
  Service waiter = waiting_service(scheduler, Road::Tcp, "NMT", kLongWait);
  const auto begin = Clock::now();
  owner.kill_hard();
  EXPECT_EQ(text(waiter.read()), "201 ACQUIRED ");
  EXPECT_LT(since(begin), 1s);
  const Service::Answer past = scheduler.service().call("GET", "/v1/leases/" + id);
  EXPECT_EQ(past.status, 410);
  EXPECT_EQ(past.body["reason"], "OWNER_GONE");
}

// A sampler that hung left its last state in force.
TEST(SchedulerLeaseDefects, StaleUsageFreezesTheState) {
  const LeaseScheduler scheduler({"NVSHARE_SOFTGPU_HANG_NVML=3",
                                  "NVSHARE_USAGE_SAMPLE_INTERVAL=200ms",
                                  "NVSHARE_USAGE_CACHE_TTL=400ms"});
  const auto state = [&] { return scheduler.gpu().value("gpu_admission_state", ""); };
  ASSERT_TRUE(eventually([&] { return scheduler.gpu()["gpu_usage"].is_number(); }));
  EXPECT_TRUE(eventually([&] { return state() == "UNKNOWN"; }));
  EXPECT_GE(scheduler.gpu()["gpu_usage_cache_age_ms"], 400);
  Service service = scheduler.service();
  EXPECT_EQ(text(service.ask("ASR", kNobodys)), "201 ACQUIRED ");
  EXPECT_EQ(text(service.ask("SEMANTIC_REPAIR")), "409 SKIPPED GPU_USAGE_UNKNOWN");
}

// The same for a process that asked for another one, and has ended since.
TEST(SchedulerLeases, ALeaseEndsWithTheProcessThatItNames) {
  const LeaseScheduler scheduler({kOneSlot});
  const Forked owner([] { pause(); });
  Service service = scheduler.service();
  ASSERT_EQ(service.ask("ASR", {{"ownerPid", owner.pid()}}).status, 201);
  owner.kill_hard();
  EXPECT_TRUE(eventually([&] { return scheduler.active() == 0; }, 1s));
}

TEST(SchedulerLeases, AClosedConnectionWithdrawsTheRequest) {
  const LeaseScheduler scheduler({kOneSlot});
  Service holder = scheduler.service();
  const std::string held = holder.lease("ASR");
  for (const Road road : kRoads) {
    Service closes = waiting_service(scheduler, road, "ASR", kLongWait);
    Service shuts = waiting_service(scheduler, road, "ASR", kLongWait);
    Service waits = waiting_service(scheduler, road, "ASR", kLongWait);
    closes.connection().close();
    shuts.connection().half_close();
    EXPECT_TRUE(eventually([&] { return scheduler.waiting() == 1; }, 1s));
    EXPECT_TRUE(waits.connection().hears_nothing());
    waits.connection().close();
    EXPECT_TRUE(eventually([&] { return scheduler.waiting() == 0; }, 1s));
  }
  EXPECT_EQ(holder.release(held), 204);
  EXPECT_EQ(scheduler.active(), 0) << "nobody who is gone got the lease";
}

// The release and the end of the waiter's connection meet in one turn of the scheduler.
TEST(SchedulerLeases, AConnectionThatClosesAsItsTurnComesGetsNoLease) {
  const LeaseScheduler scheduler({kOneSlot});
  Service holder = scheduler.service();
  for (const Road road : kRoads) {
    const std::string held = holder.lease("ASR");
    Service waiter = waiting_service(scheduler, road, "ASR", kLongWait);
    scheduler.signal(SIGSTOP);
    ASSERT_TRUE(eventually([&] { return is_stopped(scheduler.pid()); }));
    holder.send("DELETE", "/v1/leases/" + held);
    waiter.connection().close();
    scheduler.signal(SIGCONT);
    EXPECT_EQ(holder.read().status, 204);
    EXPECT_TRUE(eventually([&] { return scheduler.active() == 0; }, 1s));
  }
}

// --- whose leases they are ---------------------------------------------------------------------

TEST(SchedulerLeases, OthersLeasesAreNotAUsersToEnd) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kUser = 65534;
  constexpr uid_t kOther = 65533;
  const LeaseScheduler scheduler;
  ASSERT_EQ(chmod(scheduler.folder().c_str(), 0711), 0);
  Service user = scheduler.service_of(kUser);
  const std::string id = user.lease("ASR");
  Service other = scheduler.service_of(kOther);
  Service over_tcp = scheduler.service(Road::Tcp);
  for (Service* one : {&other, &over_tcp}) {
    const json listed = one->call("GET", "/v1/leases").body["leases"];
    ASSERT_EQ(listed.size(), 1u);
    EXPECT_TRUE(listed[0]["leaseId"].is_null());
    EXPECT_EQ(one->call("GET", "/v1/leases/" + id).status, 403);
    EXPECT_EQ(one->call("POST", "/v1/leases/" + id + "/renew").status, 403);
    EXPECT_EQ(one->release(id), 403);
  }
  EXPECT_EQ(user.call("GET", "/v1/leases/" + id).body["uid"], kUser);
  const Service::Answer for_root = other.ask("ASR", {{"ownerPid", getpid()}});
  EXPECT_EQ(for_root.status, 400) << for_root.body;
  EXPECT_EQ(user.release(id), 204);
  const std::string second = user.lease("ASR");
  EXPECT_EQ(scheduler.service().release(second), 204) << "root may";
}

TEST(SchedulerLeases, OnlyAnAdministratorChangesTheConfiguration) {
  const LeaseScheduler scheduler;
  const std::string change = R"({"gpuUsage":{"baseHighWater":90}})";
  EXPECT_EQ(scheduler.service(Road::Tcp).call("PATCH", "/v1/config", change).status, 403);
  if (getuid() == 0) {
    ASSERT_EQ(chmod(scheduler.folder().c_str(), 0711), 0);
    EXPECT_EQ(scheduler.service_of(65534).call("PATCH", "/v1/config", change).status, 403);
  }
  EXPECT_EQ(scheduler.get("/v1/config")["gpuUsage"]["baseHighWater"], 85);
  EXPECT_EQ(scheduler.service().call("PATCH", "/v1/config", change).status, 200);
  EXPECT_EQ(scheduler.get("/v1/config")["gpuUsage"]["baseHighWater"], 90);
}

// --- where it listens, what outlasts it --------------------------------------------------------

TEST(SchedulerLeases, ChangedSettingsOutlastARestart) {
  LeaseScheduler scheduler;
  const std::string change =
      R"({"gpuUsage":{"baseHighWater":91,"sampleIntervalMs":300},"longAudioThresholdMs":9000,
          "leases":{"slots":1}})";
  ASSERT_EQ(scheduler.service().call("PATCH", "/v1/config", change).status, 200);
  const json changed = scheduler.get("/v1/config");
  // Taken whole or not at all.
  const std::string half = R"({"leases":{"slots":3},"gpuUsage":{"baseLowWater":95}})";
  EXPECT_EQ(scheduler.service().call("PATCH", "/v1/config", half).status, 400);
  scheduler.signal(SIGKILL);
  scheduler.wait();
  ASSERT_TRUE(scheduler.again()) << scheduler.log();
  EXPECT_EQ(scheduler.get("/v1/config"), changed);
  EXPECT_EQ(changed["gpuUsage"]["sampleIntervalMs"], 300);
  EXPECT_EQ(changed["gpuUsage"]["dynamicAdjustment"]["longAudioThresholdMs"], 9000);
  scheduler.service().lease("ASR");
  EXPECT_EQ(scheduler.service().ask("ASR", {{"maxWaitMs", 0}}).status, 503) << "one slot";
}

TEST(SchedulerLeases, TheSocketsForPeopleAreThereBeforeTheOneForPrograms) {
  LeaseScheduler scheduler;
  for (int i = 0; i < 10; ++i) {
    scheduler.signal(SIGTERM);
    ASSERT_EQ(scheduler.wait().status, 0);
    bool leases = false;
    bool control = false;
    std::thread looks([&] {
      const auto until = Clock::now() + kPatience;
      while (Clock::now() < until) {
        if (!UniqueFd(wire::connect_to(scheduler.program_socket().c_str()))) continue;
        leases = scheduler.try_service(Road::Unix).connection().fd() >= 0;
        control = scheduler.status().contains("ok");
        return;
      }
    });
    const bool started = scheduler.again();
    looks.join();
    ASSERT_TRUE(started) << scheduler.log();
    EXPECT_TRUE(leases);
    EXPECT_TRUE(control);
  }
}

TEST(SchedulerLeases, APortThatIsTakenIsOneLineInTheLog) {
  const std::string address = own_loopback_address();
  const LeaseScheduler first(address, {}, {});
  const LeaseScheduler second(address, {}, {});
  const std::string log = second.log();
  const std::size_t at = log.find("no_http");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find("no_http", at + 1), std::string::npos) << log;
  const std::string line = log.substr(at, log.find('\n', at) - at);
  EXPECT_NE(line.find(address), std::string::npos) << line;
  EXPECT_NE(line.find("Address already in use"), std::string::npos) << line;
  EXPECT_EQ(second.service().ask("ASR").status, 201);
  EXPECT_EQ(second.active(), 1);
  EXPECT_EQ(first.active(), 0);
  TestProgram program(second);
  EXPECT_TRUE(program.hello());
}

TEST(SchedulerLeases, APrivateSchedulerStaysWhileServicesNeedItAndListensForItsUser) {
  LeaseScheduler scheduler({kOneSlot}, {"--private"});
  EXPECT_LT(scheduler.try_service(Road::Tcp).connection().fd(), 0) << "nobody listens there";
  struct stat socket {};
  ASSERT_EQ(stat(scheduler.api_socket().c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0600u);
  Service holder = scheduler.service();
  std::string held = holder.lease("ASR");
  Service waiter = waiting_service(scheduler, Road::Unix, "ASR", kLongWait);
  // After its first client the scheduler ends sooner.
  ASSERT_TRUE(TestProgram(scheduler).hello());
  std::this_thread::sleep_for(2500ms);
  ASSERT_TRUE(scheduler.alive()) << "a lease and a waiter are there";
  ASSERT_EQ(holder.release(held), 204);
  held = waiter.read().body.value("leaseId", "");
  ASSERT_FALSE(held.empty());
  std::this_thread::sleep_for(2500ms);
  ASSERT_TRUE(scheduler.alive()) << "a lease is there";
  ASSERT_EQ(waiter.release(held), 204);
  EXPECT_EQ(scheduler.wait().status, 0) << "nobody needs it";
}

// Its leases are not known to the other scheduler.
TEST(SchedulerLeases, APrivateSchedulerGivesWayOnceItsLeasesHaveEnded) {
  SchedulerProcess other;
  other.signal(SIGTERM);
  other.wait();
  LeaseScheduler scheduler({}, {"--private", "--gives-way-to", other.folder()});
  Service holder = scheduler.service();
  const std::string held = holder.lease("ASR");
  ASSERT_TRUE(other.again());
  std::this_thread::sleep_for(2500ms);
  ASSERT_TRUE(scheduler.alive()) << scheduler.log();
  ASSERT_EQ(holder.release(held), 204);
  EXPECT_EQ(scheduler.wait().status, 0);
  EXPECT_NE(scheduler.log().find("gives way"), std::string::npos) << scheduler.log();
}

}  // namespace
}  // namespace nvshare::daemon
