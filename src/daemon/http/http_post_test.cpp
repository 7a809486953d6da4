#include "daemon/http/http_post.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "daemon/http/testing_receiver.h"

namespace nvshare::daemon {
namespace {

using namespace std::chrono_literals;

// What became of one post: "" for good, or the reason.
std::string post(const std::string& url, const std::string& body = "{}") {
  Reactor reactor = *Reactor::make();
  std::optional<std::string> said;
  HttpPost one(reactor, [&](const Result<void>& how) {
    said = how ? "" : how.error().message;
    reactor.stop();
  });
  const auto to = receiver_url(url);
  if (!to) return to.error().message;
  if (const auto begun = one.begin(*to, body); !begun) return begun.error().message;
  EXPECT_TRUE(one.under_way());
  reactor.run([&] { return one.end_of_turn(); });
  EXPECT_FALSE(one.under_way());
  return said.value_or("nothing was said");
}

TEST(HttpPost, SendsARequestThatReceiversUnderstand) {
  const Receiver receiver;
  EXPECT_EQ(post(receiver.url("/nodes/a?b=c"), "{\"x\":1}"), "");
  EXPECT_EQ(receiver.bodies().at(0), "{\"x\":1}");
  const std::string head = receiver.heads().at(0);
  EXPECT_TRUE(head.starts_with("POST /nodes/a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")) << head;
  EXPECT_NE(head.find("\r\nContent-Type: application/json\r\n"), head.npos);
  EXPECT_NE(head.find("\r\nConnection: close\r\n"), head.npos);
}

TEST(HttpPost, SendsABodyLongerThanTheBuffersOfTheKernel) {
  const Receiver receiver;
  const std::string body(16 << 20, 'x');
  EXPECT_EQ(post(receiver.url(), body), "");
  EXPECT_EQ(receiver.bodies().at(0).size(), body.size());
}

TEST(HttpPost, SaysWhyItFailed) {
  Receiver receiver;
  for (const auto& [answer, reason] :
       {std::pair{"HTTP/1.1 500 Oops\r\n\r\n", "it answered 500"},
        {"HTTP/1.0 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n", "it answered 302"},
        {"HTTP/1.1 99", "it closed before its answer"},
        {"HTTP/1.1 abc what\r\n\r\n", "its answer is no HTTP"},
        {"SSH-2.0-OpenSSH_9.2\r\n", "its answer is no HTTP"}}) {
    receiver.set_answer(answer);
    EXPECT_EQ(post(receiver.url()), reason) << answer;
  }
  for (const char* good :
       {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.0 204\r\n\r\n"}) {
    receiver.set_answer(good);
    EXPECT_EQ(post(receiver.url()), "") << good;
  }
}

TEST(HttpPost, ALongAnswerIsNotKept) {
  Receiver receiver("HTTP/1.1 200 OK\r\n\r\n" + std::string(1 << 20, 'x'));
  EXPECT_EQ(post(receiver.url()), "");
}

TEST(HttpPost, NobodyListensThere) {
  std::string url;
  {
    const Receiver receiver;
    url = receiver.url();
  }
  EXPECT_EQ(post(url), "Connection refused");
}

TEST(HttpPost, AReceiverThatHangsIsGivenUp) {
  const Receiver receiver("");
  const Time begin = monotonic_now();
  EXPECT_EQ(post(receiver.url()), "no answer in 5 s");
  EXPECT_GE(monotonic_now() - begin, HttpPost::kPatience);
  EXPECT_EQ(receiver.bodies().size(), 1u);
}

TEST(HttpPost, APostThatIsCancelledSaysNothing) {
  const Receiver receiver("");
  Reactor reactor = *Reactor::make();
  bool said = false;
  HttpPost one(reactor, [&](const Result<void>&) { said = true; });
  ASSERT_TRUE(one.begin(*receiver_url(receiver.url()), "{}"));
  one.cancel();
  EXPECT_FALSE(one.under_way());
  EXPECT_EQ(one.end_of_turn(), std::nullopt);
  EXPECT_FALSE(said);
  ASSERT_TRUE(one.begin(*receiver_url(receiver.url()), "{}")) << "the next one";
}

}  // namespace
}  // namespace nvshare::daemon
