// The client and servers that answer badly.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "nvshare/lease.hpp"

namespace nvshare {
namespace {

using namespace std::chrono_literals;

std::string http(int status, const std::string& body, const std::string& headers = "") {
  return "HTTP/1.1 " + std::to_string(status) + " Text\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
// With an id and an end of the lease of the test's choice.
std::string granted(const std::string& id = "5f0c",
                    const std::string& expires = "2026-11-19T20:00:30.123Z") {
  return R"({"result":"ACQUIRED","leaseId":")" + id +
         R"(","taskType":"ASR","gpu":0,"gpuKey":"GPU-1","queueWaitMs":7,"expiresAt":")" + expires +
         R"("})";
}

// Gives one connection after the other its answer, in parts of `part` bytes.
class BadServer {
 public:
  explicit BadServer(std::vector<std::string> answers, std::size_t part = std::string::npos,
                     bool hangs = false)
      : answers_(std::move(answers)), part_(part), hangs_(hangs) {
    char name[] = "/tmp/nvshare-lease-XXXXXX";
    folder_ = mkdtemp(name);
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket().c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~BadServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    std::filesystem::remove_all(folder_);
  }
  BadServer(const BadServer&) = delete;

  std::string socket() const { return folder_ + "/api.sock"; }
  LeaseClient client() const { return LeaseClient(socket(), {.answer = 20s, .release = 20s}); }
  // All requests, once all answers are given.
  std::vector<std::string> requests() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    thread_ = std::thread([] {});
    return requests_;
  }

 private:
  void serve() {
    for (const std::string& answer : answers_) {
      const UniqueFd peer(accept(listener_.get(), nullptr, nullptr));
      if (!peer) return;
      std::string request;
      char buffer[4096];
      while (request.find("\r\n\r\n") == request.npos) {
        const auto got = recv(peer.get(), buffer, sizeof buffer, 0);
        if (got <= 0) break;
        request.append(buffer, static_cast<std::size_t>(got));
      }
      requests_.push_back(request);
      for (std::size_t at = 0; at < answer.size(); at += std::min(part_, answer.size())) {
        const std::string some = answer.substr(at, part_);
        if (send(peer.get(), some.data(), some.size(), MSG_NOSIGNAL) < 0) break;
      }
      if (hangs_) recv(peer.get(), buffer, 1, 0);  // until the client gives up
    }
  }

  std::vector<std::string> answers_;
  std::size_t part_;
  bool hangs_;
  std::string folder_;
  UniqueFd listener_;
  std::thread thread_;
  std::vector<std::string> requests_;
};

LeaseAnswer answer_to(const std::string& bytes, std::size_t part = std::string::npos) {
  BadServer server({bytes, http(204, "")}, part);
  return server.client().acquire({.task_class = "ASR", .max_wait = 0ms});
}

TEST(LeaseAnswers, AGoodOneIsReadInAnyParts) {
  for (const std::size_t part : {std::size_t{1}, std::size_t{7}, std::string::npos}) {
    const auto got = answer_to(http(201, granted(), "X-Other: 1\r\n"), part);
    ASSERT_TRUE(got.lease) << got.reason;
    EXPECT_EQ(got.lease->id(), "5f0c");
    EXPECT_EQ(got.queue_wait, 7ms);
    EXPECT_EQ(got.lease->expires_at().time_since_epoch(), 1795118430123ms);
  }
  const auto to_the_end = answer_to("HTTP/1.1 201 Created\r\nA: b\r\n\r\n" + granted());
  EXPECT_TRUE(to_the_end.lease) << to_the_end.reason;
}

TEST(LeaseAnswers, WhatIsNoHttpFails) {
  const std::string good = http(201, granted());
  std::vector<std::string> bad{"",
                               "\r\n\r\n",
                               "HTTP/1.1 201",
                               "SSH-2.0-OpenSSH\r\n\r\n",
                               "HTTP/1.1 abc Text\r\n\r\n",
                               "HTTP/1.1 100 Continue\r\n\r\n",
                               "HTTP/1.1 201 T\r\nno colon\r\n\r\n" + granted(),
                               "HTTP/1.1 201 T\r\nContent-Length: -1\r\n\r\n" + granted(),
                               "HTTP/1.1 201 T\r\nContent-Length: 9x\r\n\r\n" + granted(),
                               "HTTP/1.1 201 T\r\nContent-Length: 99999999999999999999\r\n\r\n",
                               "HTTP/1.1 201 T\r\nTransfer-Encoding: chunked\r\n\r\n" + granted(),
                               http(201, granted(), "content-length: 2\r\n")};
  for (const std::size_t cut : {std::size_t{20}, good.size() - 60, good.size() - 1}) {
    bad.push_back(good.substr(0, cut));
  }
  for (const std::string& bytes : bad) {
    const auto got = answer_to(bytes);
    EXPECT_EQ(got.outcome, LeaseOutcome::Failed) << bytes;
    EXPECT_EQ(got.reason, "the scheduler's answer is no whole HTTP answer") << bytes;
    EXPECT_FALSE(got.lease);
  }
}

TEST(LeaseAnswers, AHugeOneFails) {
  for (const std::string& bytes : {http(201, std::string(1 << 20, ' ') + granted()),
                                   "HTTP/1.1 201 T\r\nA: " + std::string(1 << 20, 'a')}) {
    const auto got = answer_to(bytes);
    EXPECT_EQ(got.outcome, LeaseOutcome::Failed);
    EXPECT_EQ(got.reason, "the scheduler's answer is too long");
  }
}

TEST(LeaseAnswers, WhatIsNoJsonOrHasWrongTypesFails) {
  const std::string good = granted();
  const auto with = [&](const std::string& old, const std::string& now) {
    std::string made = good;
    const std::size_t at = made.find(old);
    EXPECT_NE(at, made.npos) << old;
    return made.replace(at, old.size(), now);
  };
  for (const std::string& body : {std::string(),
                                  std::string("<html>"),
                                  std::string("[]"),
                                  std::string("{}"),
                                  good + "x",
                                  good.substr(0, good.size() - 1),
                                  with("\"ACQUIRED\"", "7"),
                                  with("\"5f0c\"", "null"),
                                  with("\"5f0c\"", "[\"5f0c\"]"),
                                  with("\"gpu\":0", "\"gpu\":\"0\""),
                                  with("\"gpu\":0", "\"gpu\":0.5"),
                                  with("\"gpu\":0", "\"gpu\":-1"),
                                  with("\"gpu\":0", "\"gpu\":1e999"),
                                  with("\"gpu\":0", "\"gpu\":99999999999999999999"),
                                  with("\"gpuKey\":\"GPU-1\"", "\"gpuKey\":true"),
                                  with("ACQUIRED", "GRANTED"),
                                  with("taskType", "leaseId"),
                                  granted(""),
                                  granted("a b"),
                                  granted("a\\r\\nX: y"),
                                  granted("../classes"),
                                  granted("5f0c", "soon"),
                                  granted("5f0c", "2026-13-19T20:00:30.123Z"),
                                  granted("5f0c", "9999-11-19T20:00:30.123Z"),
                                  granted("5f0c", "2026-11-19T20:00:30,123Z")}) {
    const auto got = answer_to(http(201, body));
    EXPECT_EQ(got.outcome, LeaseOutcome::Failed) << body;
    EXPECT_EQ(got.reason, "the scheduler's answer makes no sense (HTTP 201)") << body;
  }
  EXPECT_EQ(answer_to(http(200, good)).outcome, LeaseOutcome::Failed);
  EXPECT_EQ(answer_to(http(400, "<html>")).outcome, LeaseOutcome::Failed);
  EXPECT_EQ(answer_to(http(503, R"({"error":"no memory"})")).outcome, LeaseOutcome::Failed);
  EXPECT_EQ(answer_to(http(503, R"({"error":"no memory"})")).reason, "no memory");
}

TEST(LeaseAnswers, ASilentSchedulerIsNotWaitedForForEver) {
  for (const std::string& bytes : {std::string(), http(201, granted()).substr(0, 50)}) {
    BadServer server({bytes}, std::string::npos, true);
    const LeaseClient hasty(server.socket(), {.answer = 30ms});
    const auto got = hasty.acquire({.task_class = "ASR", .max_wait = 0ms});
    EXPECT_EQ(got.outcome, LeaseOutcome::Failed);
    EXPECT_EQ(got.reason, "the scheduler does not answer in time");
  }
}

TEST(LeaseAnswers, WithoutASchedulerTheReasonNamesTheSocket) {
  const auto got = LeaseClient("/nowhere/api.sock").acquire({.task_class = "ASR"});
  EXPECT_EQ(got.outcome, LeaseOutcome::Failed);
  EXPECT_EQ(got.reason, "/nowhere/api.sock: No such file or directory");
  const std::string long_path(200, 'x');
  EXPECT_EQ(LeaseClient(long_path).acquire({.task_class = "ASR"}).reason,
            long_path + ": File name too long");
}

TEST(LeaseAnswers, ARenewalThatIsNotUnderstoodLeavesTheLease) {
  BadServer server({http(201, granted()), http(200, "{}"), http(500, ""), http(404, "{}"), ""});
  {
    const auto client = server.client();
    auto got = client.acquire({.task_class = "ASR", .max_wait = 0ms});
    ASSERT_TRUE(got.lease);
    const auto expires = got.lease->expires_at();
    EXPECT_EQ(got.lease->renew().kind, LeaseRenewal::Kind::Failed);
    EXPECT_EQ(got.lease->renew().kind, LeaseRenewal::Kind::Failed);
    EXPECT_EQ(got.lease->expires_at(), expires);
    EXPECT_EQ(got.lease->renew().kind, LeaseRenewal::Kind::Gone);
  }
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 4u) << "nobody releases a lease that is gone";
  EXPECT_EQ(requests[0].substr(0, requests[0].find('\r')), "POST /v1/leases HTTP/1.1");
  EXPECT_EQ(requests[0].substr(requests[0].find("\r\n\r\n") + 4),
            R"({"taskType":"ASR","maxWaitMs":0})");
  EXPECT_EQ(requests[1].substr(0, requests[1].find('\r')), "POST /v1/leases/5f0c/renew HTTP/1.1");
}

TEST(LeaseAnswers, ANewLeaseInTheOldOnesPlaceReleasesTheOldOne) {
  BadServer server({http(201, granted("a1")), http(201, granted("b2")), http(204, ""), ""});
  {
    auto first = server.client().acquire({.task_class = "ASR"});
    auto second = server.client().acquire({.task_class = "ASR"});
    ASSERT_TRUE(first.lease && second.lease);
    *first.lease = std::move(*second.lease);
    EXPECT_EQ(first.lease->id(), "b2");
  }
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[2].substr(0, requests[2].find('\r')), "DELETE /v1/leases/a1 HTTP/1.1");
  EXPECT_EQ(requests[3].substr(0, requests[3].find('\r')), "DELETE /v1/leases/b2 HTTP/1.1");
}

TEST(LeaseJson, TextsHaveEscapes) {
  using lease_detail::JsonObject;
  const auto read = JsonObject::parse(
      R"( {"a":"\"\\\/\b\f\n\r\t","b":"\u0041\u00e9\u20AC\ud83d\ude00","c":-12 , "d":{"e":[1,{}]}} )");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read->text("a"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(*read->text("b"), "A\u00e9\u20ac\U0001f600");
  EXPECT_EQ(read->number("c"), -12);
  EXPECT_EQ(read->text("c"), nullptr);
  EXPECT_EQ(read->number("e"), std::nullopt) << "it is another object's";
}

TEST(LeaseJson, StrictAboutEverything) {
  using lease_detail::JsonObject;
  for (const char* good : {"{}", "{\"a\":[]}", "{\"a\":-0.5e+7}", "{\"a\":[true,false,null]}"}) {
    EXPECT_TRUE(JsonObject::parse(good)) << good;
  }
  for (const char* bad : {"",
                          "{",
                          "}",
                          "[]",
                          "\"a\"",
                          "{a:1}",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "{,}",
                          "{\"a\":1 \"b\":2}",
                          "{\"a\":01}",
                          "{\"a\":+1}",
                          "{\"a\":1.}",
                          "{\"a\":.5}",
                          "{\"a\":1e}",
                          "{\"a\":-}",
                          "{\"a\":nul}",
                          "{\"a\":True}",
                          "{\"a\":NaN}",
                          "{\"a\":'b'}",
                          "{\"a\":\"b}",
                          "{\"a\":\"\\x\"}",
                          "{\"a\":\"\\u12\"}",
                          "{\"a\":\"\\u12g4\"}",
                          "{\"a\":\"\\ud800\"}",
                          "{\"a\":\"\\ude00\"}",
                          "{\"a\":\"\\ud83d\\u0041\"}",
                          "{\"a\":\"\n\"}",
                          "{\"a\":1}{}",
                          "{\"a\":1,\"a\":2}",
                          "{\"a\":[1,]}",
                          "{\"a\":[1 2]}",
                          "{\"a\":[[[[[[[[[1]]]]]]]]]}"}) {
    EXPECT_FALSE(JsonObject::parse(bad)) << bad;
  }
  EXPECT_FALSE(JsonObject::parse(std::string("{}\0", 3)));
  EXPECT_FALSE(JsonObject::parse("{\"a\":" + std::string(60000, '[')));
}

}  // namespace
}  // namespace nvshare
