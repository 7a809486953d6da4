#include "daemon/http/http_server.h"

#include <grp.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "daemon/http/testing.h"

namespace nvshare::daemon {
namespace {

using nlohmann::json;

TEST_F(HttpServerTest, RepliesAtOnce) {
  Served served;
  for (Client& client : served.both()) {
    client.get("/now");
    const auto reply = client.read();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->body, "{}");
    EXPECT_EQ(reply->headers.at("Content-Type"), "application/json");
    EXPECT_EQ(reply->headers.at("Cache-Control"), "no-store");
    EXPECT_EQ(reply->headers.at("X-Content-Type-Options"), "nosniff");
  }
}

TEST_F(HttpServerTest, RepliesLater) {
  Served served;
  Client tcp = served.tcp();
  Client local = served.local();
  tcp.get("/wait");
  const HttpCall first = served.waiting(1)[0];
  local.post("/wait", "{}");
  const HttpCall second = served.waiting(2)[1];
  served.answer(second, "second");
  EXPECT_EQ(local.read()->body, "second");
  EXPECT_TRUE(tcp.hears_nothing());
  served.answer(first, "first");
  EXPECT_EQ(tcp.read()->body, "first");
  EXPECT_EQ(served.gone_so_far(), 0u);
}

TEST_F(HttpServerTest, RepliesFromWithinTheHandler) {
  HttpServer* server = nullptr;
  HttpCall other{};
  Served served({}, [&](HttpCall call, const HttpRequest& request) -> std::optional<HttpReply> {
    server->reply(request.path == "/own" ? call : other, {201, "inside", {}});
    if (request.path == "/own") return std::nullopt;
    return HttpReply{204, "", {}};
  });
  served.in_loop([&] { server = &served.server(); });
  Client own = served.local();
  own.get("/own");
  EXPECT_EQ(own.read()->body, "inside");
  own.get("/wait");
  const HttpCall call = served.waiting(1)[0];
  served.in_loop([&] { other = call; });
  Client helper = served.tcp();
  helper.get("/other");
  EXPECT_EQ(helper.status(), 204);
  EXPECT_EQ(own.read()->body, "inside");
}

TEST_F(HttpServerTest, KeepsTheConnection) {
  Served served;
  Client client = served.tcp();
  for (std::size_t i = 0; i < 20; ++i) {
    client.post("/echo", std::to_string(i));
    EXPECT_EQ(client.read()->body, std::to_string(i));
    client.get("/wait");
    served.answer(served.waiting(i + 1)[i], "waited");
    EXPECT_EQ(client.read()->body, "waited");
  }
  client.close();
  Client next = served.tcp();
  next.get("/now");
  EXPECT_EQ(next.status(), 200);
  EXPECT_EQ(served.gone_so_far(), 0u);  // all of them had their reply
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Served served;
  Client client = served.local();
  const std::string wait = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string echo = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n";
  client.send(echo + "1" + wait + echo + "2" + wait + echo + "3");
  EXPECT_EQ(client.read()->body, "1");
  const HttpCall first = served.waiting(1)[0];
  EXPECT_TRUE(client.hears_nothing());
  served.answer(first, "first");
  EXPECT_EQ(client.read()->body, "first");
  EXPECT_EQ(client.read()->body, "2");
  served.answer(served.waiting(2)[1], "second");
  EXPECT_EQ(client.read()->body, "second");
  EXPECT_EQ(client.read()->body, "3");
}

TEST_F(HttpServerTest, HandsOverTheWholeRequest) {
  Served served({}, [](HttpCall, const HttpRequest& request) {
    const auto pid = request.peer ? json(request.peer->pid) : json();
    const auto uid = request.peer ? json(request.peer->uid) : json();
    const json said{{"method", request.method}, {"path", request.path}, {"query", request.query},
                    {"body", request.body},     {"pid", pid},           {"uid", uid}};
    return HttpReply{202, said.dump(), {{"Retry-After", "3"}}};
  });
  Client local = served.local();
  local.send("PATCH /a%20b/c?x=1%2B1&y&x=2 HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]");
  const auto reply = local.read();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 202);
  EXPECT_EQ(reply->headers.at("Retry-After"), "3");
  const json said = json::parse(reply->body);
  EXPECT_EQ(said["method"], "PATCH");
  EXPECT_EQ(said["path"], "/a b/c");
  EXPECT_EQ(said["query"], (json{{"x", "1+1"}, {"y", ""}}));
  EXPECT_EQ(said["body"], "[]");
  EXPECT_EQ(said["pid"], getpid());
  EXPECT_EQ(said["uid"], getuid());

  Client tcp = served.tcp();
  tcp.send("BREW /pot HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const json other = json::parse(tcp.read()->body);
  EXPECT_EQ(other["method"], "BREW");
  EXPECT_TRUE(other["pid"].is_null());
  tcp.send("HEAD /pot HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(tcp.read(false)->status, 202);
}

TEST_F(HttpServerTest, TheGroupsOfAClientAreTheKernelsWord) {
  std::vector<gid_t> groups;
  Served served({}, [&](HttpCall, const HttpRequest& request) {
    groups = request.peer->groups;
    return HttpReply{200, "{}", {}};
  });
  const auto seen = [&] {
    Client client = served.local();
    client.get("/groups");
    EXPECT_EQ(client.status(), 200);
    std::vector<gid_t> now;
    served.in_loop([&] { now = groups; });
    return std::set<gid_t>(now.begin(), now.end());
  };
  std::vector<gid_t> own(static_cast<std::size_t>(getgroups(0, nullptr)));
  ASSERT_GE(getgroups(static_cast<int>(own.size()), own.data()), 0);
  std::set<gid_t> all(own.begin(), own.end());
  all.insert(getegid());
  EXPECT_EQ(seen(), all);
  if (geteuid() != 0) return;
  std::vector<gid_t> many;
  for (gid_t group = 5000; group < 5100; ++group) many.push_back(group);
  ASSERT_EQ(setgroups(many.size(), many.data()), 0);
  const auto with_many = seen();
  ASSERT_EQ(setgroups(own.size(), own.data()), 0);
  std::set<gid_t> wanted(many.begin(), many.end());
  wanted.insert(getegid());
  EXPECT_EQ(with_many, wanted);
}

TEST_F(HttpServerTest, AClientThatClosesIsGone) {
  Served served;
  std::vector<Client> clients;
  clients.push_back(served.tcp());
  clients.push_back(served.local());
  clients.push_back(served.tcp());
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].get("/wait");
    served.waiting(i + 1);
  }
  const auto calls = served.waiting(3);
  clients[0].close();
  EXPECT_EQ(served.gone(1).back(), calls[0]);
  clients[1].close();
  EXPECT_EQ(served.gone(2).back(), calls[1]);
  clients[2].reset();
  EXPECT_EQ(served.gone(3).back(), calls[2]);
  for (const HttpCall call : calls) served.answer(call, "too late");
  Client next = served.tcp();
  next.get("/now");
  EXPECT_EQ(next.status(), 200);
  EXPECT_EQ(served.gone_so_far(), 3u);
}

// The reply and the end of the connection meet in one turn of the loop.
TEST_F(HttpServerTest, AReplyThatReachesNobodyIsToldAsGone) {
  Served served;
  std::size_t gone = 0;
  for (const bool closes_first : {true, false}) {
    for (Client& client : served.both()) {
      client.get("/wait");
      const HttpCall call = served.waiting(gone + 1).back();
      served.in_loop([&] {
        if (closes_first) client.close();
        served.server().reply(call, {200, "{}", {}});
        EXPECT_EQ(served.gone_so_far(), gone) << "not from within reply()";
        client.close();
      });
      EXPECT_EQ(served.gone(++gone).back(), call);
      served.in_loop([&] { served.server().reply(call, {200, "{}", {}}); });
    }
  }
  EXPECT_EQ(served.gone_so_far(), gone) << "once each";
}

// A client that reads too little of its reply until its time is over.
TEST_F(HttpServerTest, AReplyThatIsNotSentWholeIsToldAsGone) {
  HttpCall large{};
  Served served({.idle = 200ms}, [&](HttpCall call, const HttpRequest&) {
    large = call;
    return HttpReply{200, std::string(8 << 20, 'x'), {}};
  });
  Client deaf = served.tcp();
  deaf.get("/large");
  EXPECT_EQ(served.gone(1).back(), large);
  Client reads = served.local();
  reads.get("/large");
  EXPECT_TRUE(reads.read());
  EXPECT_EQ(served.sent(1).back(), large);
}

// The library lets no request through of a Unix socket that is closed.
TEST_F(HttpServerTest, ARequestSaysThatItsClientHasHungUp) {
  std::vector<bool> hung_up;
  Served served({}, [&](HttpCall, const HttpRequest& request) {
    hung_up.push_back(request.hung_up);
    return HttpReply{200, "{}", {}};
  });
  Client closes = served.tcp();
  served.in_loop([&] {
    closes.get("/ask");
    closes.close();
  });
  const auto since = std::chrono::steady_clock::now();
  while (served.handled() == 0 && std::chrono::steady_clock::now() - since < kLongEnough) {
    std::this_thread::yield();
  }
  for (Client& client : served.both()) {
    served.in_loop([&] {
      client.get("/ask");
      client.half_close();
    });
    EXPECT_EQ(client.status(), 200);
  }
  Client stays = served.local();
  stays.get("/ask");
  EXPECT_EQ(stays.status(), 200);
  served.in_loop([&] { EXPECT_EQ(hung_up, (std::vector<bool>{true, true, true, false})); });
}

// Unread requests behind the one that waits do not hide the end.
TEST_F(HttpServerTest, AClientThatSendsOnAndClosesIsGone) {
  Served served;
  Client client = served.tcp();
  client.get("/wait");
  served.waiting(1);
  client.send(std::string(40'000, 'x'));
  client.close();
  EXPECT_EQ(served.gone(1), served.waiting(1));
}

TEST_F(HttpServerTest, AClientThatHalfClosesWhileItWaitsIsGone) {
  Served served;
  for (Client& client : served.both()) {
    client.get("/wait");
    client.half_close();
    EXPECT_TRUE(client.ended());
  }
  EXPECT_EQ(served.gone(2), served.waiting(2));
}

TEST_F(HttpServerTest, AClientThatHalfClosesGetsAReplyThatIsThere) {
  Served served;
  for (Client& client : served.both()) {
    client.get("/now");
    client.half_close();
    EXPECT_EQ(client.status(), 200);
  }
}

TEST_F(HttpServerTest, AClientMayCloseInTheMiddleOfAnything) {
  Served served({}, [](HttpCall, const HttpRequest&) {
    return HttpReply{200, std::string(8 << 20, 'x'), {}};
  });
  for (const bool reset : {false, true}) {
    for (Client& client : served.both()) {
      client.get("/large");
      while (client.hears_nothing()) std::this_thread::yield();
      reset ? client.reset() : client.close();
    }
    for (const char* part : {"", "GE", "GET /wait HTTP/1.1\r\nHo",
                             "POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"}) {
      Client client = served.tcp();
      client.send(part);
      reset ? client.reset() : client.close();
    }
  }
  Client next = served.tcp();
  next.get("/large");
  EXPECT_EQ(next.read()->body.size(), std::size_t{8 << 20});
  served.gone(4);  // the large replies
  EXPECT_EQ(served.gone_so_far(), 4u);
}

TEST_F(HttpServerTest, TheEndOfTheServerEndsItsConnections) {
  Served served;
  Client waits = served.tcp();
  waits.get("/wait");
  Client half = served.local();
  half.send("GET /wa");
  Client idle = served.local();
  idle.get("/now");
  EXPECT_EQ(idle.status(), 200);
  Client left = served.tcp();
  left.get("/wait");
  const HttpCall call = served.waiting(2)[1];
  served.end_server(call);
  for (Client* client : {&waits, &half, &idle, &left}) EXPECT_TRUE(client->ended());
  EXPECT_EQ(served.gone_so_far(), 0u);
}

TEST_F(HttpServerTest, WebPagesAreRefused) {
  Served served;
  const auto status = [&](Client client, const std::string& headers) {
    client.send("POST /echo HTTP/1.1\r\n" + headers + "Content-Length: 2\r\n\r\n{}");
    const auto reply = client.read();
    EXPECT_TRUE(reply && (reply->status == 200 || json::parse(reply->body).contains("error")));
    return reply ? reply->status : 0;
  };
  EXPECT_EQ(status(served.tcp(), "Host: localhost\r\nOrigin: http://localhost:9402\r\n"), 403);
  EXPECT_EQ(status(served.local(), "Origin: null\r\n"), 403);
  EXPECT_EQ(status(served.tcp(), "Host: rebound.example:9402\r\n"), 403);
  EXPECT_EQ(status(served.tcp(), "Sec-Fetch-Site: cross-site\r\n"), 403);
  EXPECT_EQ(status(served.tcp(), "Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(served.handled(), 0u);
  EXPECT_EQ(status(served.tcp(), "Host: [::1]:9402\r\nContent-Type: application/json\r\n"), 200);
  EXPECT_EQ(status(served.local(), "Host: any.example\r\n"), 200);
}

}  // namespace
}  // namespace nvshare::daemon
