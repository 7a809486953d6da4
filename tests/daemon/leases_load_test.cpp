// Leases of the real scheduler: bad input, clients that take more than their part, many services.

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <set>

#include "leases.h"

namespace nvshare::daemon {
namespace {

using namespace std::chrono_literals;

const json kLongWait{{"maxWaitMs", 60'000}, {"ownerPid", nullptr}};

// What an answer may take on a busy machine, as the median of several.
constexpr Milliseconds kSoon = 50ms;
// Descriptors that the scheduler has now and then.
constexpr std::size_t kAFew = 5;

// How long a service waits for the status, as the median of several.
Milliseconds status_time(const LeaseScheduler& scheduler) {
  std::vector<Milliseconds> times;
  for (int i = 0; i < 15; ++i) {
    Service service = scheduler.service(kRoads[i % 2]);
    const auto begin = Clock::now();
    EXPECT_EQ(service.call("GET", "/v1/status").status, 200);
    times.push_back(since(begin));
  }
  return median_of(times);
}

// --- bad input ---------------------------------------------------------------------------------

TEST(SchedulerLeaseAbuse, RequestsOfWebPagesAreRefused) {
  const LeaseScheduler scheduler;
  const std::string body = R"({"taskType":"ASR"})";
  for (const Road road : kRoads) {
    for (const char* header : {"Origin: http://localhost:9402\r\n", "Origin: null\r\n",
                               "Sec-Fetch-Site: cross-site\r\n", "Content-Type: text/plain\r\n"}) {
      const auto answer = scheduler.service(road).call("POST", "/v1/leases", body, header);
      EXPECT_TRUE(answer.status == 403 || answer.status == 415) << header << answer.status;
      EXPECT_TRUE(answer.body.contains("error"));
      EXPECT_FALSE(answer.headers.contains("Access-Control-Allow-Origin"));
    }
  }
  // A name of the page's own that leads to this machine.
  Service rebound = scheduler.service(Road::Tcp);
  rebound.connection().send("GET /v1/status HTTP/1.1\r\nHost: evil.example:9402\r\n\r\n");
  EXPECT_EQ(rebound.read().status, 403);
  // What a page asks before it sends anything else.
  EXPECT_EQ(scheduler.service(Road::Tcp)
                .call("OPTIONS", "/v1/leases", "", "Origin: http://evil.example\r\n")
                .status,
            403);
  EXPECT_EQ(scheduler.active(), 0);
}

TEST(SchedulerLeaseAbuse, BadRequestsGetOneLineAndChangeNothing) {
  const LeaseScheduler scheduler;
  struct Bad {
    std::string method, path, body;
    int status;
  };
  const std::string asks = "/v1/leases";
  const std::vector<Bad> all{
      {"POST", asks, "{", 400},
      {"POST", asks, "[]", 400},
      {"POST", asks, "", 400},
      {"POST", asks, "\xff\xfe{}", 400},
      {"POST", asks, std::string(60'000, '['), 400},
      {"POST", asks, R"({"taskType":7})", 400},
      {"POST", asks, R"({"taskType":"NONE"})", 400},
      {"POST", asks, R"({"taskType":"ASR","maxWaitMs":-1})", 400},
      {"POST", asks, R"({"taskType":"ASR","maxWaitMs":1e300})", 400},
      {"POST", asks, R"({"taskType":"ASR","maxWaitMs":"1s"})", 400},
      {"POST", asks, R"({"taskType":"ASR","holdMaxMs":0.5})", 400},
      {"POST", asks, R"({"taskType":"ASR","busyPolicy":"PUSH"})", 400},
      {"POST", asks, R"({"taskType":"ASR","hint":[]})", 400},
      {"POST", asks, R"({"taskType":"ASR","ownerPid":0})", 400},
      {"POST", asks, R"({"taskType":"ASR","priority":100})", 400},
      {"POST", asks, R"({"taskType":"ASR","gpuKey":9})", 404},
      {"POST", "/v1/gpus/9/leases", R"({"taskType":"ASR"})", 404},
      {"POST", "/v1/gpus/-1/leases", R"({"taskType":"ASR"})", 404},
      {"PUT", asks, "{}", 405},
      {"DELETE", asks + "/" + std::string(32, '0'), "", 404},
      {"GET", "/v2", "", 404},
      {"GET", "/v1/leases/../config", "", 404},
      {"POST", asks, R"({"taskType":")" + std::string(65'536, 'A') + "\"}", 413},
  };
  for (const Road road : kRoads) {
    Service service = scheduler.service(road);
    for (const Bad& bad : all) {
      const auto answer = service.call(bad.method, bad.path, bad.body);
      EXPECT_EQ(answer.status, bad.status)
          << bad.method << " " << bad.path << " " << bad.body.substr(0, 80) << "\n"
          << answer.body;
      ASSERT_TRUE(answer.body.is_object() && answer.body.contains("error"));
      EXPECT_EQ(answer.body["error"].get<std::string>().find('\n'), std::string::npos);
      // A body that was refused unread ends its connection.
      if (bad.status == 413) service = scheduler.service(road);
    }
    EXPECT_EQ(service.ask("ASR", {{"busyPolicy", "SKIP"}}).status, 201) << "all else is served";
  }
  EXPECT_EQ(scheduler.log().find("level=error"), std::string::npos);
}

TEST(SchedulerLeaseAbuse, SlowAndSilentClientsDelayNobody) {
  const LeaseScheduler scheduler;
  const std::size_t descriptors = scheduler.descriptors();
  const Milliseconds before = status_time(scheduler);
  std::vector<Service> slow;
  const std::string request =
      "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 19\r\n\r\n"
      R"({"taskType": "ASR"})";
  for (std::size_t i = 0; i < 300; ++i) {
    slow.push_back(scheduler.service(kRoads[i % 2]));
    // Nothing, a half of a line, of the headers, of the body; and answers that nobody reads.
    const std::size_t sent[]{0, 9, 40, request.size() - 3};
    const std::size_t kind = i % 5;
    if (kind < 4) slow.back().connection().send(request.substr(0, sent[kind]));
    for (int more = 0; kind == 4 && more < 50; ++more) slow.back().send("GET", "/v1/classes");
  }
  ASSERT_TRUE(eventually([&] { return scheduler.descriptors() + kAFew >= descriptors + 300; }));
  EXPECT_LT(status_time(scheduler), std::max(kSoon, 5 * before));
  EXPECT_EQ(scheduler.active(), 0);
  // One that is slow, but not too slow, is served.
  slow[3].connection().send(request.substr(request.size() - 3));
  EXPECT_EQ(slow[3].read().status, 201);
  slow.clear();
  EXPECT_TRUE(eventually([&] { return scheduler.descriptors() <= descriptors + kAFew; }));
}

// --- many services -----------------------------------------------------------------------------

void allow_many_descriptors() {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2'000) GTEST_SKIP() << "only " << limit.rlim_max << " descriptors";
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2'000);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(SchedulerLeaseLoad, AThousandWaitingRequestsDelayNobody) {
  allow_many_descriptors();
  if (IsSkipped()) return;
  const LeaseScheduler scheduler({"NVSHARE_LEASE_SLOTS=1"});
  const std::size_t descriptors = scheduler.descriptors();
  Service holder = scheduler.service();
  std::string held = holder.lease("ASR");
  const Milliseconds before = status_time(scheduler);
  std::vector<Service> crowd;
  for (std::size_t i = 0; i < 1'000; ++i) {
    crowd.push_back(scheduler.service(kRoads[i % 2]));
    crowd.back().send_ask("TTS", kLongWait);
  }
  ASSERT_TRUE(eventually([&] { return scheduler.waiting() == 1'000; }));
  EXPECT_LT(status_time(scheduler), std::max(kSoon, 5 * before));
  EXPECT_EQ(scheduler.get("/v1/leases")["total"], 1'001);
  std::vector<Milliseconds> times;
  for (std::size_t i = 0; i < 31; ++i) {
    Service service = scheduler.service(kRoads[i % 2]);
    service.send_ask("ASR", kLongWait);
    ASSERT_TRUE(eventually([&] { return scheduler.waiting() == 1'001; }));
    const auto begin = Clock::now();
    ASSERT_EQ(holder.release(held), 204);
    const auto answer = service.read();
    times.push_back(since(begin));
    ASSERT_EQ(answer.status, 201) << answer.body;
    held = answer.body["leaseId"];
  }
  EXPECT_LT(median_of(times), kSoon);
  for (Service& one : crowd) ASSERT_TRUE(one.connection().hears_nothing()) << "a lower class";
  crowd.clear();
  EXPECT_TRUE(eventually([&] { return scheduler.waiting() == 0; }));
  EXPECT_TRUE(eventually([&] { return scheduler.descriptors() <= descriptors + kAFew; }));
}

// Milliseconds of the scheduler's clock.
std::int64_t wall(const std::string& text) {
  std::tm at{};
  int more = 0;
  const int read = std::sscanf(text.c_str(), "%d-%d-%dT%d:%d:%d.%dZ", &at.tm_year, &at.tm_mon,
                               &at.tm_mday, &at.tm_hour, &at.tm_min, &at.tm_sec, &more);
  EXPECT_EQ(read, 7) << text;
  at.tm_year -= 1900;
  at.tm_mon -= 1;
  return timegm(&at) * 1'000 + more;
}

struct Grant {
  int priority;
  std::int64_t asked, acquired;  // by the scheduler's clock
};

constexpr struct {
  const char* name;
  int priority;
} kClasses[]{{"ASR", 90}, {"NMT", 80}, {"TTS", 70}, {"SEMANTIC_REPAIR", 20}};

// Many services on one thread. Each asks, holds, gives back and asks again. Some stop waiting and
// connect anew.
class Services {
 public:
  Services(const LeaseScheduler& scheduler, std::size_t count, std::size_t slots)
      : scheduler_(scheduler), slots_(slots), all_(count) {
    for (std::size_t i = 0; i < count; ++i) connect(i);
  }

  void run(std::chrono::seconds length) {
    const auto until = Clock::now() + length;
    while (Clock::now() < until && !testing::Test::HasFatalFailure()) step(true);
    const auto patience = Clock::now() + kPatience;
    while (Clock::now() < patience && std::ranges::any_of(all_, &One::busy)) step(false);
    EXPECT_TRUE(std::ranges::none_of(all_, &One::busy)) << "not every request got its answer";
  }

  const std::vector<Grant>& grants() const { return grants_; }
  std::size_t refused() const { return refused_; }
  std::size_t left() const { return left_; }

 private:
  enum class At { Idle, Asked, Holds, GivesBack };
  struct One {
    bool busy() const { return at != At::Idle; }
    Service service;
    At at = At::Idle;
    Clock::time_point due;
    bool leaves = false;  // before the answer
    std::size_t task_class = 0;
    std::string lease;
  };

  int random(int low, int high) { return std::uniform_int_distribution(low, high)(dice_); }
  void connect(std::size_t i) {
    all_[i].service = scheduler_.service(kRoads[i % 2]);
    rest(all_[i]);
  }
  void rest(One& one) {
    one.at = At::Idle;
    one.due = Clock::now() + std::chrono::milliseconds(random(1, 40));
  }

  void step(bool more) {
    std::vector<pollfd> ready;
    for (One& one : all_) ready.push_back({one.service.connection().fd(), POLLIN, 0});
    ASSERT_GE(poll(ready.data(), ready.size(), 1), 0);
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (ready[i].revents != 0) hear(all_[i]);
    }
    const auto now = Clock::now();
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].due <= now) act(i, more);
    }
  }

  void act(std::size_t i, bool more) {
    One& one = all_[i];
    one.due = Clock::time_point::max();
    if (one.at == At::Idle && more) {
      one.task_class = static_cast<std::size_t>(random(0, 3));
      one.leaves = random(1, 50) == 1;
      if (one.leaves) one.due = Clock::now() + std::chrono::milliseconds(random(0, 50));
      one.at = At::Asked;
      // A lease whose answer was not read ends by itself.
      one.service.send_ask(kClasses[one.task_class].name,
                           {{"holdMaxMs", 3'000}, {"ownerPid", nullptr}});
    } else if (one.at == At::Asked) {
      ++left_;
      connect(i);
    } else if (one.at == At::Holds) {
      --held_;
      one.at = At::GivesBack;
      one.service.send("DELETE", "/v1/leases/" + one.lease);
    }
  }

  void hear(One& one) {
    const auto answer = one.service.read();
    ASSERT_NE(answer.status, 0) << "the scheduler ended a connection";
    if (one.at == At::GivesBack) {
      EXPECT_EQ(answer.status, 204) << "a lost lease: " << answer.body;
      return rest(one);
    }
    ASSERT_EQ(one.at, At::Asked) << "an answer that nobody asked for: " << answer.body;
    const std::string result = answer.body.value("result", "");
    const bool is_repair = one.task_class == 3;
    EXPECT_TRUE(!is_repair || answer.body.value("queueWaitMs", -1) == 0) << "it never waits";
    if (result != "ACQUIRED") {
      EXPECT_EQ(result, is_repair ? "SKIPPED" : "TIMEOUT") << answer.body;
      ++refused_;
      return rest(one);
    }
    one.lease = answer.body["leaseId"];
    EXPECT_TRUE(leases_.insert(one.lease).second) << "a lease with two holders";
    EXPECT_LE(++held_, slots_) << "more leases than slots";
    const std::int64_t acquired = wall(answer.body["acquiredAt"]);
    const auto waited = answer.body["queueWaitMs"].get<std::int64_t>();
    grants_.push_back({kClasses[one.task_class].priority, acquired - waited, acquired});
    one.at = At::Holds;
    one.due = Clock::now() + std::chrono::milliseconds(random(1, 8));
  }

  const LeaseScheduler& scheduler_;
  std::size_t slots_;
  std::vector<One> all_;
  std::mt19937 dice_{7};
  std::size_t held_ = 0;
  std::size_t refused_ = 0;
  std::size_t left_ = 0;
  std::set<std::string> leases_;
  std::vector<Grant> grants_;
};

// Grants that passed an earlier request of the same class, or one of a higher class that waited.
std::size_t out_of_order(std::vector<Grant> grants) {
  constexpr std::int64_t kRounding = 2;         // milliseconds
  constexpr std::int64_t kLongestWait = 3'100;  // of the classes
  std::ranges::sort(grants, {}, &Grant::acquired);
  std::size_t wrong = 0;
  for (auto one = grants.begin(); one != grants.end(); ++one) {
    for (auto later = one; later != grants.end(); ++later) {
      if (later->acquired > one->acquired + kLongestWait) break;
      if (later->acquired <= one->acquired + kRounding) continue;
      const auto entered =
          later->priority == one->priority ? one->asked - kRounding : one->acquired - kRounding;
      wrong += later->priority >= one->priority && later->asked < entered ? 1 : 0;
    }
  }
  return wrong;
}

TEST(SchedulerLeaseLoad, TheCheckOfTheOrderSeesWhatIsOutOfOrder) {
  EXPECT_EQ(out_of_order({{90, 0, 10}, {90, 5, 20}, {70, 2, 30}}), 0u);
  EXPECT_EQ(out_of_order({{70, 2, 10}, {90, 0, 20}}), 1u);
  EXPECT_EQ(out_of_order({{90, 5, 10}, {90, 0, 20}}), 1u);
  EXPECT_EQ(out_of_order({{70, 2, 10}, {90, 15, 20}}), 0u);
}

// NVSHARE_LEASE_LOAD_SECONDS=60 lets the services work for a minute.
std::chrono::seconds load_time() {
  const char* seconds = std::getenv("NVSHARE_LEASE_LOAD_SECONDS");
  return std::chrono::seconds(seconds != nullptr ? std::max(std::atoi(seconds), 1) : 10);
}

TEST(SchedulerLeaseLoad, TwoHundredServicesGetTheirLeasesInOrder) {
  constexpr std::size_t kSlots = 4;
  const LeaseScheduler scheduler({"NVSHARE_LEASE_SLOTS=" + std::to_string(kSlots)});
  ASSERT_TRUE(scheduler.usage_is_known());
  Services services(scheduler, 200, kSlots);
  services.run(load_time());
  const auto seconds = static_cast<std::size_t>(load_time().count());
  EXPECT_GT(services.grants().size(), 30 * seconds);
  EXPECT_GT(services.refused(), 6 * seconds);
  EXPECT_GE(services.left(), seconds / 2);
  EXPECT_EQ(out_of_order(services.grants()), 0u);
  // Leases whose services had left are over by now, and all others were given back.
  EXPECT_TRUE(eventually([&] { return scheduler.active() == 0; }));
  EXPECT_EQ(scheduler.waiting(), 0);
  std::size_t acquired = 0, ended = 0;
  const json classes = scheduler.get("/v1/status")["classes"];
  for (const auto& counts : classes) {
    acquired += counts["acquired"].get<std::size_t>();
    ended += counts["released"].get<std::size_t>() + counts["revoked"].get<std::size_t>();
  }
  EXPECT_EQ(acquired, ended);
  EXPECT_GE(acquired, services.grants().size());
  EXPECT_LE(acquired, services.grants().size() + services.left());
  std::cout << services.grants().size() << " leases, " << services.refused() << " refused, "
            << services.left() << " left, in " << seconds << " s\n";
}

}  // namespace
}  // namespace nvshare::daemon
