// The status of the real scheduler: its streams, and its push to a receiver.

#include <fmt/format.h>
#include <signal.h>

#include <optional>
#include <thread>
#include <vector>

#include "daemon/http/testing_receiver.h"
#include "leases.h"

namespace nvshare::daemon {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kData = "event: status\ndata: ";

// The next status of a stream; null when it has ended.
json next_of(Service& stream) {
  const auto event = stream.connection().event();
  if (!event || !event->starts_with(kData)) return nullptr;
  return json::parse(event->substr(kData.size()), nullptr, false);
}

Service stream_of(const LeaseScheduler& scheduler, Road road = Road::Unix) {
  Service stream = scheduler.service(road);
  stream.send("GET", "/v1/status/stream");
  const auto head = stream.connection().read();
  EXPECT_TRUE(head && head->status == 200 &&
              head->headers.at("Content-Type") == "text/event-stream");
  return stream;
}

int active_in(const json& status) {
  return status.is_object() ? status["gpus"][0].value("active_leases", -1) : -1;
}

// Reads until a status has so many leases. False: the stream has ended before.
bool reaches(Service& stream, int active) {
  while (true) {
    const json status = next_of(stream);
    if (status.is_null()) return false;
    if (active_in(status) == active) return true;
  }
}

// A private scheduler ends soon after its last client, and later without any.
bool come_and_go(const LeaseScheduler& scheduler) {
  Service service = scheduler.service();
  return service.release(service.lease("ASR")) == 204;
}

json status_in(const std::vector<std::string>& bodies) {
  return bodies.empty() ? json() : json::parse(bodies.back(), nullptr, false);
}

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// --- streams -----------------------------------------------------------------------------------

TEST(SchedulerStatus, AStreamBeginsWithTheStatusThatIsAnswered) {
  const LeaseScheduler scheduler;
  for (const Road road : kRoads) {
    Service stream = stream_of(scheduler, road);
    json first = next_of(stream);
    json answered = scheduler.get("/v1/status");
    ASSERT_TRUE(first.is_object());
    ASSERT_EQ(first["gpus"].size(), 1u);
    for (json* one : {&first, &answered}) {
      one->erase("time");
      (*one)["gpus"][0].erase("gpu_usage_cache_age_ms");
      (*one)["gpus"][0].erase("gpu_usage");  // a sample may lie between the two
      (*one)["gpus"][0].erase("gpu_admission_state");
    }
    EXPECT_EQ(first, answered);
  }
}

TEST(SchedulerStatus, ChangesAreToldSoonAndInOrder) {
  const LeaseScheduler scheduler;
  ASSERT_TRUE(scheduler.usage_is_known());
  for (const Road road : kRoads) {
    Service stream = stream_of(scheduler, road);
    ASSERT_EQ(active_in(next_of(stream)), 0);
    Service service = scheduler.service();
    std::vector<Milliseconds> times;
    std::string before;
    for (int i = 0; i < 9; ++i) {
      const auto begin = Clock::now();
      const std::string id = service.lease("ASR");
      ASSERT_TRUE(reaches(stream, 1));
      times.push_back(since(begin));
      ASSERT_EQ(service.release(id), 204);
      json status;
      do {
        status = next_of(stream);
        ASSERT_TRUE(status.is_object());
        EXPECT_LE(before, status["time"].get<std::string>());
        before = status["time"];
      } while (active_in(status) != 0);
    }
    // A change waits for a tenth of a second after the one before.
    EXPECT_LT(median_of(times), 400ms);
  }
}

TEST(SchedulerStatus, AQuickRowOfChangesIsToldInFewEvents) {
  const LeaseScheduler scheduler;
  Service stream = stream_of(scheduler);
  Service service = scheduler.service();
  const auto begin = Clock::now();
  constexpr int kLeases = 500;
  for (int i = 0; i < kLeases; ++i) ASSERT_EQ(service.release(service.lease("ASR")), 204);
  service.lease("ASR", {{"trace", "last"}});
  int events = 0;
  json status;
  do {
    status = next_of(stream);
    ASSERT_TRUE(status.is_object());
    ++events;
  } while (status["classes"].value("ASR", json::object()).value("acquired", 0) <= kLeases);
  // Ten a second, the first one, and one for a turn that was late.
  EXPECT_LE(events, since(begin).count() / 100 + 3);
  EXPECT_EQ(active_in(status), 1) << "the last state is told";
}

TEST(SchedulerStatus, AHeartbeatComesWithoutAChange) {
  const LeaseScheduler scheduler(
      {"NVSHARE_USAGE_SAMPLE_INTERVAL=2s", "NVSHARE_USAGE_CACHE_TTL=1h"});
  ASSERT_TRUE(scheduler.usage_is_known());
  Service stream = stream_of(scheduler);
  json first = next_of(stream);
  json second = next_of(stream);
  ASSERT_TRUE(first.is_object() && second.is_object());
  EXPECT_LT(first["time"], second["time"]);
  for (json* one : {&first, &second}) {
    one->erase("time");
    (*one)["gpus"][0].erase("gpu_usage_cache_age_ms");
  }
  EXPECT_EQ(first, second);
}

TEST(SchedulerStatus, AStreamThatDoesNotReadDelaysNoOther) {
  const LeaseScheduler scheduler;
  std::vector<Service> streams;
  for (int i = 0; i < 12; ++i) {
    streams.push_back(stream_of(scheduler, i % 2 == 0 ? Road::Unix : Road::Tcp));
  }
  streams[3].connection().close();
  streams[4].connection().reset();
  streams[5].connection().half_close();
  Service service = scheduler.service();
  for (int i = 0; i < 20; ++i) {
    const std::string id = service.lease("ASR");
    for (std::size_t one = 6; one < streams.size(); ++one) {
      ASSERT_TRUE(reaches(streams[one], 1)) << one;
    }
    ASSERT_EQ(service.release(id), 204);
    for (std::size_t one = 6; one < streams.size(); ++one) {
      ASSERT_TRUE(reaches(streams[one], 0)) << one;
    }
  }
  // Those that did not read find the changes in their order.
  ASSERT_TRUE(reaches(streams[0], 1));
  ASSERT_TRUE(reaches(streams[0], 0));
}

TEST(SchedulerStatus, StreamsHaveABoundAndEndWithTheirClients) {
  const LeaseScheduler scheduler;
  const std::size_t before = scheduler.descriptors();
  std::vector<Service> streams;
  for (int i = 0; i < 32; ++i) streams.push_back(stream_of(scheduler, Road::Tcp));
  Service next = scheduler.service(Road::Tcp);
  const auto refused = next.call("GET", "/v1/status/stream");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.body.value("error", ""), "there are too many streams of the status");
  EXPECT_EQ(next.call("GET", "/v1/status").status, 200);
  Service other = stream_of(scheduler, Road::Unix);
  EXPECT_TRUE(next_of(other).is_object());
  streams.clear();
  next.connection().close();
  other.connection().close();
  EXPECT_TRUE(eventually([&] { return scheduler.descriptors() <= before; }));
  Service again = stream_of(scheduler, Road::Tcp);
  EXPECT_TRUE(next_of(again).is_object());
}

TEST(SchedulerStatus, TheSchedulerEndsWithOpenStreams) {
  LeaseScheduler scheduler;
  std::vector<Service> streams;
  for (const Road road : kRoads) {
    for (int i = 0; i < 5; ++i) streams.push_back(stream_of(scheduler, road));
  }
  scheduler.signal(SIGTERM);
  EXPECT_EQ(scheduler.wait().status, 0);
  for (Service& stream : streams) {
    while (next_of(stream).is_object()) continue;  // what was on its way
    EXPECT_TRUE(stream.connection().ended());
  }
}

TEST(SchedulerStatus, AStreamKeepsNoPrivateSchedulerAlive) {
  LeaseScheduler scheduler({}, {"--private"});
  Service stream = stream_of(scheduler);
  ASSERT_TRUE(come_and_go(scheduler));
  EXPECT_TRUE(next_of(stream).is_object());
  EXPECT_EQ(scheduler.wait().status, 0);
}

// --- the push ----------------------------------------------------------------------------------

std::vector<std::string> pushing_to(const std::string& url, const std::string& interval) {
  return {"NVSHARE_STATUS_PUSH_URL=" + url, "NVSHARE_STATUS_PUSH_INTERVAL=" + interval};
}

json pushed_by(const LeaseScheduler& scheduler) {
  return scheduler.get("/v1/status")["status_push"];
}

TEST(SchedulerStatus, TheStatusIsPushedOnChange) {
  const Receiver receiver;
  const LeaseScheduler scheduler(pushing_to(receiver.url("/nodes/a"), "1h"));
  ASSERT_TRUE(eventually([&] { return !receiver.bodies().empty(); })) << "at the start";
  EXPECT_TRUE(receiver.heads()[0].starts_with("POST /nodes/a HTTP/1.1\r\n"));
  ASSERT_TRUE(scheduler.usage_is_known());
  const std::string id = scheduler.service().lease("ASR");
  EXPECT_TRUE(eventually([&] { return active_in(status_in(receiver.bodies())) == 1; }));
  scheduler.service().release(id);
  EXPECT_TRUE(eventually([&] { return active_in(status_in(receiver.bodies())) == 0; }));
  EXPECT_TRUE(eventually([&] { return pushed_by(scheduler).value("delivered", 0) >= 3; }));
  EXPECT_EQ(pushed_by(scheduler).value("failed", -1), 0);
}

TEST(SchedulerStatus, TheStatusIsPushedPeriodically) {
  const Receiver receiver;
  // No sample lies between two pushes.
  auto settings = pushing_to(receiver.url(), "200ms");
  settings.push_back("NVSHARE_USAGE_SAMPLE_INTERVAL=2s");
  settings.push_back("NVSHARE_USAGE_CACHE_TTL=3s");
  const LeaseScheduler scheduler(settings);
  ASSERT_TRUE(eventually([&] { return receiver.bodies().size() >= 2; }));
  const std::size_t before = receiver.bodies().size();
  const auto begin = Clock::now();
  ASSERT_TRUE(eventually([&] { return receiver.bodies().size() >= before + 10; }));
  EXPECT_GE(since(begin), 1s) << "not more often than it should be";
  EXPECT_LT(since(begin), 10s);
}

TEST(SchedulerStatus, AReceiverThatFailsIsLoggedOnceAndTriedAgain) {
  const std::string address = own_loopback_address();
  std::optional<Receiver> receiver(std::in_place, "HTTP/1.1 500 Oops\r\n\r\n", address);
  const LeaseScheduler scheduler(pushing_to(receiver->url("/secret"), "100ms"));
  const auto failed = [&] { return pushed_by(scheduler).value("failed", 0); };
  ASSERT_TRUE(eventually([&] { return failed() >= 2; }));
  EXPECT_TRUE(pushed_by(scheduler)["failing"]);
  receiver.reset();  // nobody listens there
  const int before = failed();
  const auto begin = Clock::now();
  ASSERT_TRUE(eventually([&] { return failed() > before; }));
  EXPECT_LT(since(begin), 20s);
  receiver.emplace(Receiver::kGood, address);
  ASSERT_TRUE(eventually([&] { return pushed_by(scheduler).value("delivered", 0) >= 2; }));
  EXPECT_FALSE(pushed_by(scheduler)["failing"]);
  const std::string log = scheduler.log();
  EXPECT_EQ(count_of(log, "event=status_push_fails"), 1u) << log;
  EXPECT_EQ(count_of(log, "event=status_push_works"), 1u) << log;
  EXPECT_NE(log.find("it answered 500"), log.npos);
  EXPECT_EQ(log.find("secret"), log.npos) << "the path of the URL may be a secret";
}

TEST(SchedulerStatus, AReceiverThatHangsDelaysNobody) {
  Receiver receiver("");
  const LeaseScheduler scheduler(pushing_to(receiver.url(), "100ms"));
  ASSERT_TRUE(eventually([&] { return !receiver.bodies().empty(); }));
  Service service = scheduler.service();
  std::vector<Milliseconds> times;
  for (int i = 0; i < 50; ++i) {
    const auto begin = Clock::now();
    ASSERT_EQ(service.release(service.lease("ASR")), 204);
    times.push_back(since(begin));
  }
  EXPECT_LT(median_of(times), 50ms);
  ASSERT_TRUE(eventually([&] { return pushed_by(scheduler).value("failed", 0) >= 1; }));
  EXPECT_NE(scheduler.log().find("no answer in 5 s"), std::string::npos);
  EXPECT_EQ(receiver.most(), 1) << "one request at a time";
  // The newest status is what comes then.
  const std::string id = service.lease("NMT");
  receiver.set_answer(Receiver::kGood);
  EXPECT_TRUE(eventually([&] { return active_in(status_in(receiver.bodies())) == 1; }));
}

TEST(SchedulerStatus, TheSchedulerEndsWhileAReceiverHangs) {
  const Receiver receiver("");
  LeaseScheduler scheduler(pushing_to(receiver.url(), "100ms"));
  ASSERT_TRUE(eventually([&] { return !receiver.bodies().empty(); }));
  const auto begin = Clock::now();
  scheduler.signal(SIGTERM);
  EXPECT_EQ(scheduler.wait().status, 0);
  EXPECT_LT(since(begin), 4s) << "sooner than the post's time is over";
}

TEST(SchedulerStatus, ThePushIsSwitchedOnAndOffWhileItRuns) {
  const Receiver first, second;
  const LeaseScheduler scheduler;
  EXPECT_TRUE(pushed_by(scheduler).is_null());
  const auto set = [&](const std::string& url) {
    return scheduler.ask({{"op", "set"}, {"name", "status_push_url"}, {"value", url}});
  };
  EXPECT_TRUE(set(first.url()).value("ok", false));
  EXPECT_TRUE(eventually([&] { return !first.bodies().empty(); }));
  EXPECT_TRUE(set(second.url()).value("ok", false));
  EXPECT_TRUE(eventually([&] { return !second.bodies().empty(); }));
  const json refused = set("http://dispatcher/status");
  EXPECT_FALSE(refused.value("ok", true));
  EXPECT_NE(refused.value("error", "").find("is not http://HOST:PORT/PATH"), std::string::npos);
  EXPECT_TRUE(set("").value("ok", false));
  EXPECT_TRUE(pushed_by(scheduler).is_null());
}

TEST(SchedulerStatus, APrivateSchedulerPushes) {
  const Receiver receiver;
  LeaseScheduler scheduler(pushing_to(receiver.url(), "1s"), {"--private"});
  EXPECT_TRUE(eventually([&] { return !receiver.bodies().empty(); }));
  ASSERT_TRUE(come_and_go(scheduler));
  EXPECT_EQ(scheduler.wait().status, 0) << "the push does not keep it alive";
}

}  // namespace
}  // namespace nvshare::daemon
