// Replies that go on.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "daemon/http/http_server.h"
#include "daemon/http/testing.h"

namespace nvshare::daemon {
namespace {

using namespace std::chrono_literals;

// A stream whose first event has come.
HttpCall begin_stream(Served& served, Client& client, std::size_t number) {
  client.get("/stream");
  const auto head = client.read();
  EXPECT_TRUE(head && head->status == 200);
  EXPECT_EQ(client.event(), "first");
  return served.streams(number).back();
}

TEST_F(HttpServerTest, AStreamHasItsPiecesAsTheyCome) {
  Served served;
  std::size_t number = 0;
  for (Client& client : served.both()) {
    client.get("/stream");
    const auto head = client.read();
    ASSERT_TRUE(head);
    EXPECT_EQ(head->status, 200);
    EXPECT_EQ(head->headers.at("Content-Type"), "text/event-stream");
    EXPECT_EQ(head->headers.at("Cache-Control"), "no-store");
    EXPECT_EQ(client.event(), "first");
    const HttpCall call = served.streams(++number).back();
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(client.hears_nothing());
      served.send(call, fmt::format("{}\n\n", i));
      EXPECT_EQ(client.event(), std::to_string(i));
    }
    const std::string long_one(100'000, 'x');
    served.send(call, long_one + "\n\n");
    EXPECT_EQ(client.event(), long_one);
    EXPECT_EQ(served.gone_so_far(), number - 1);
    client.close();
    EXPECT_EQ(served.gone(number).back(), call);
    served.send(call, "nobody hears it\n\n");
  }
}

TEST_F(HttpServerTest, AStreamEndsWithItsClient) {
  Served served;
  std::vector<Client> clients;
  for (std::size_t i = 0; i < 3; ++i) {
    clients.push_back(i == 0 ? served.tcp() : served.local());
    begin_stream(served, clients.back(), i + 1);
  }
  clients[0].reset();
  served.gone(1);
  clients[1].half_close();
  served.gone(2);
  EXPECT_TRUE(clients[1].ended());
  served.send(served.streams(3)[2], "goes on\n\n");
  EXPECT_EQ(clients[2].event(), "goes on");
}

TEST_F(HttpServerTest, AClientOfHttp10HasAStreamWithoutChunks) {
  Served served;
  Client client = served.local();
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const HttpCall call = served.streams(1)[0];
  const auto head = client.read();
  ASSERT_TRUE(head);
  EXPECT_EQ(head->headers.count("Transfer-Encoding"), 0u);
  EXPECT_EQ(client.event(), "first");
  served.send(call, "second\n\n");
  EXPECT_EQ(client.event(), "second");
}

TEST_F(HttpServerTest, AStreamAndACallThatWaitsAreTwoThings) {
  Served served;
  Client stream = served.local();
  const HttpCall call = begin_stream(served, stream, 1);
  Client waits = served.local();
  waits.get("/wait");
  const HttpCall waiting = served.waiting(1)[0];
  served.answer(call, "a stream has no second reply");
  served.send(waiting, "no stream");
  EXPECT_TRUE(stream.hears_nothing());
  EXPECT_TRUE(waits.hears_nothing());
  served.answer(waiting, "reply");
  EXPECT_EQ(waits.read()->body, "reply");
  served.send(call, "event\n\n");
  EXPECT_EQ(stream.event(), "event");
}

TEST_F(HttpServerTest, AReplyThatComesLaterMayGoOn) {
  Served served;
  Client client = served.tcp();
  client.get("/wait");
  const HttpCall call = served.waiting(1)[0];
  served.in_loop([&] {
    served.server().reply(call, {200, "late\n\n", {}, "text/event-stream", true});
  });
  ASSERT_TRUE(client.read());
  EXPECT_EQ(client.event(), "late");
  served.send(call, "next\n\n");
  EXPECT_EQ(client.event(), "next");
}

// More than all buffers of the kernel take.
TEST_F(HttpServerTest, AClientThatDoesNotReadGetsTheNewestPiece) {
  constexpr int kPieces = 600;
  constexpr std::size_t kSize = 64 * 1024;
  Served served;
  for (std::size_t road = 0; road < 2; ++road) {
    Client slow = road == 0 ? served.tcp() : served.local();
    Client quick = served.local();
    const HttpCall to_slow = begin_stream(served, slow, 2 * road + 1);
    const HttpCall to_quick = begin_stream(served, quick, 2 * road + 2);
    for (int i = 0; i < kPieces; ++i) {
      const std::string piece = fmt::format("{:08}{}", i, std::string(kSize, 'x'));
      served.send(to_slow, piece + "\n\n");
      served.send(to_quick, piece + "\n\n");
      ASSERT_EQ(quick.event(), piece) << "nobody waits for the slow one";
    }
    int heard = 0;
    int last = -1;
    while (last < kPieces - 1) {
      const auto event = slow.event();
      ASSERT_TRUE(event);
      ASSERT_EQ(event->size(), 8 + kSize) << "a piece is whole";
      const int number = std::stoi(event->substr(0, 8));
      EXPECT_GT(number, last);
      last = number;
      ++heard;
    }
    EXPECT_LT(heard, kPieces);
    EXPECT_TRUE(slow.hears_nothing());
  }
}

TEST_F(HttpServerTest, AStreamThatTakesNothingForTooLongIsClosed) {
  HttpBounds bounds;
  bounds.idle = 500ms;
  Served served(bounds);
  Client slow = served.local();
  Client quiet = served.local();
  const HttpCall to_slow = begin_stream(served, slow, 1);
  const HttpCall to_quiet = begin_stream(served, quiet, 2);
  served.send(to_slow, std::string(4 << 20, 'x'));
  EXPECT_EQ(served.gone(1)[0], to_slow);
  std::this_thread::sleep_for(2 * bounds.idle);
  served.send(to_quiet, "still there\n\n");
  EXPECT_EQ(quiet.event(), "still there");
}

TEST_F(HttpServerTest, AStreamCountsAsAConnection) {
  HttpBounds bounds;
  bounds.connections = 4;
  Served served(bounds);
  std::vector<Client> streams;
  for (std::size_t i = 0; i < 2; ++i) {
    streams.push_back(served.tcp());
    begin_stream(served, streams.back(), i + 1);
  }
  Client next = served.tcp();  // TCP has half of the connections
  EXPECT_TRUE(next.ended());
  streams.clear();
  served.gone(2);
  Client later = served.tcp();
  later.get("/now");
  EXPECT_EQ(later.status(), 200);
}

TEST_F(HttpServerTest, TheServerMayEndWithStreams) {
  Served served;
  std::vector<Client> clients;
  for (std::size_t i = 0; i < 20; ++i) {
    clients.push_back(i % 2 == 0 ? served.tcp() : served.local());
    begin_stream(served, clients.back(), i + 1);
  }
  // Of five, some bytes are on their way; one of those does not take them.
  for (std::size_t i = 0; i < 5; ++i) {
    served.send(served.streams(20)[i], std::string(i == 0 ? 32 << 20 : 10, 'x'));
  }
  served.end_server(served.streams(20)[9]);
  for (std::size_t i = 10; i < 20; ++i) EXPECT_TRUE(clients[i].ended()) << i;
}

}  // namespace
}  // namespace nvshare::daemon
