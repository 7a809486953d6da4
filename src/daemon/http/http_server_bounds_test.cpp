#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "daemon/http/http_server.h"
#include "daemon/http/testing.h"

namespace nvshare::daemon {
namespace {

constexpr std::size_t kLongest = HttpServer::kLongestBody;

TEST_F(HttpServerTest, ABodyHasABound) {
  Served served;
  Client fits = served.tcp();
  fits.post("/echo", std::string(kLongest, 'x'));
  EXPECT_EQ(fits.read()->body.size(), kLongest);
  // Answered before the body comes.
  Client long_one = served.tcp();
  long_one.send(fmt::format("POST /echo HTTP/1.1\r\nContent-Length: {}\r\n\r\n", kLongest + 1));
  EXPECT_EQ(long_one.status(), 413);
  EXPECT_TRUE(long_one.ended());
  // Nor does a body that comes all the same lose the reply.
  for (Client& client : served.both()) {
    client.post("/echo", std::string(1 << 20, 'x'));
    EXPECT_EQ(client.status(), 413);
  }
  Client no_number = served.local();
  no_number.send("POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n");
  EXPECT_EQ(no_number.status(), 413);
  EXPECT_EQ(served.handled(), 1u);
}

TEST_F(HttpServerTest, ABodyInChunksHasTheSameBound) {
  Served served;
  const std::string head = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string chunk = "4000\r\n" + std::string(0x4000, 'x') + "\r\n";
  Client client = served.local();
  client.send(head + chunk + chunk + chunk + chunk + "0\r\n\r\n");
  EXPECT_EQ(client.read()->body.size(), kLongest);
  client.send(head + chunk + chunk + chunk + chunk + "1\r\nx\r\n0\r\n\r\n");
  EXPECT_EQ(client.status(), 413);
  client.get("/now");
  EXPECT_EQ(client.status(), 200);
  EXPECT_EQ(served.handled(), 2u);
}

TEST_F(HttpServerTest, BadRequestsAreAnswered) {
  Served served;
  Client malformed = served.tcp();
  malformed.send("no HTTP at all\r\n\r\n");
  EXPECT_EQ(malformed.status(), 400);
  Client header = served.tcp();
  header.send("GET /now HTTP/1.1\r\nno colon\r\n\r\n");
  EXPECT_EQ(header.status(), 400);
  Client huge = served.tcp();
  huge.send("GET /now HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n");
  EXPECT_EQ(huge.status(), 431);
  Client many = served.tcp();
  std::string headers;
  for (int i = 0; i < 20'000; ++i) headers += "A: b\r\n";
  many.send("GET /now HTTP/1.1\r\n" + headers + "\r\n");
  EXPECT_EQ(many.status(), 431);
  Client uri = served.tcp();
  uri.send("GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n");
  EXPECT_EQ(uri.status(), 414);
  EXPECT_EQ(served.handled(), 0u);
  Client next = served.tcp();
  next.get("/now");
  EXPECT_EQ(next.status(), 200);
}

TEST_F(HttpServerTest, ASlowClientDelaysNoOther) {
  Served served;
  Client slow = served.tcp();
  Client quick = served.local();
  const std::string body(50, 'x');
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n" + body;
  for (const char c : request) {
    EXPECT_TRUE(slow.hears_nothing());
    slow.send(std::string(1, c));
    quick.get("/now");
    ASSERT_EQ(quick.status(), 200);
  }
  EXPECT_EQ(slow.read()->body, body);
}

TEST_F(HttpServerTest, AFloodOfRequestsIsSpreadOverTurns) {
  const Served* in = nullptr;
  std::map<long, std::size_t> calls;  // by turn
  Served served({}, [&](HttpCall, const HttpRequest&) {
    ++calls[in->turns()];
    return HttpReply{200, "{}", {}};
  });
  in = &served;
  std::vector<Client> clients;
  for (int i = 0; i < 200; ++i) clients.push_back(i % 2 == 0 ? served.tcp() : served.local());
  served.in_loop([&] {
    for (Client& client : clients) client.get("/count");
  });
  for (Client& client : clients) EXPECT_EQ(client.status(), 200);
  served.in_loop([&] {
    // The end of one turn and the begin of the next one have the same number here.
    for (const auto& [turn, count] : calls) EXPECT_LE(count, 2 * HttpServer::kCallsPerTurn);
  });
  EXPECT_EQ(served.gone_so_far(), 0u);
}

TEST_F(HttpServerTest, TheServerMayEndInAFlood) {
  Served served;
  Client waits = served.tcp();
  waits.get("/wait");
  const HttpCall call = served.waiting(1)[0];
  std::vector<Client> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(served.local());
  served.in_loop([&] {
    for (Client& client : clients) client.get("/now");
    served.server().end_of_turn();
  });
  served.end_server(call);
  for (Client& client : clients) client.read();
  EXPECT_TRUE(waits.ended());
}

// A client that does not read its reply.
TEST_F(HttpServerTest, AClientThatDoesNotReadDelaysNoOther) {
  Served served({.idle = 200ms}, [](HttpCall, const HttpRequest&) {
    return HttpReply{200, std::string(8 << 20, 'x'), {}};
  });
  Client deaf = served.tcp();
  deaf.get("/large");
  while (deaf.hears_nothing()) std::this_thread::yield();
  Client quick = served.local();
  quick.get("/now");
  EXPECT_EQ(quick.status(), 200);
  EXPECT_TRUE(quick.ended());
  EXPECT_FALSE(deaf.read());  // ended before it had all of it
}

TEST_F(HttpServerTest, ARequestHasToComeInTime) {
  Served served({.request = 300ms, .idle = 1h});
  Client keeps = served.tcp();
  keeps.get("/now");
  EXPECT_EQ(keeps.status(), 200);
  Client waits = served.tcp();
  waits.get("/wait");
  const HttpCall call = served.waiting(1)[0];
  Client silent = served.tcp();
  Client second = served.local();
  second.get("/now");
  EXPECT_EQ(second.status(), 200);
  second.send("POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc");
  // Each byte comes soon after the last one.
  Client drips = served.local();
  drips.send("GET /now HTTP/1.1\r\nX: ");
  const auto since = std::chrono::steady_clock::now();
  while (drips.hears_nothing() && std::chrono::steady_clock::now() - since < kLongEnough) {
    drips.send("x");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (Client* client : {&drips, &silent, &second}) EXPECT_TRUE(client->ended());
  // A connection between two requests, and one that waits, are not meant.
  keeps.get("/now");
  EXPECT_EQ(keeps.status(), 200);
  served.answer(call, "{}");
  EXPECT_EQ(waits.status(), 200);
  EXPECT_EQ(served.gone_so_far(), 0u);
}

TEST_F(HttpServerTest, AnIdleConnectionEnds) {
  Served served({.request = 1h, .idle = 300ms});
  Client half = served.tcp();
  half.send("GET /now HT");
  Client waits = served.tcp();
  waits.get("/now");
  EXPECT_EQ(waits.status(), 200);
  waits.get("/wait");
  const HttpCall call = served.waiting(1)[0];
  Client idle = served.local();
  idle.get("/now");
  EXPECT_EQ(idle.status(), 200);
  EXPECT_TRUE(idle.ended());
  half.send("TP/1.1\r\n\r\n");
  EXPECT_EQ(half.status(), 200);
  served.answer(call, "{}");
  EXPECT_EQ(waits.status(), 200);
}

TEST_F(HttpServerTest, ConnectionsBeyondTheMaximumAreRefused) {
  Served served({.connections = 4});
  std::vector<Client> clients;
  for (std::size_t i = 0; i < 4; ++i) {
    clients.push_back(i % 2 == 0 ? served.tcp() : served.local());
    clients.back().get("/wait");
    served.waiting(i + 1);
  }
  for (Client& refused : served.both()) EXPECT_TRUE(refused.ended());
  EXPECT_NE(served.log().find("event=too_many_http_connections connections=4"), std::string::npos);
  const auto calls = served.waiting(4);
  for (std::size_t i = 0; i < 3; ++i) {
    served.answer(calls[i], "{}");
    EXPECT_EQ(clients[i].status(), 200);
  }
  clients[3].close();
  served.gone(1);
  Client next = served.local();
  next.get("/now");
  EXPECT_EQ(next.status(), 200);
}

// A client answers /now.
bool is_taken(Client& client) {
  client.get("/now");
  const auto reply = client.read();
  return reply && reply->status == 200;
}

TEST_F(HttpServerTest, TcpLeavesConnectionsForUsers) {
  Served served({.connections = 8});
  std::vector<Client> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(served.tcp());
    EXPECT_TRUE(is_taken(clients.back()));
  }
  EXPECT_TRUE(served.tcp().ended());
  Client local = served.local();
  EXPECT_TRUE(is_taken(local));
  clients.pop_back();
  Client next;
  const auto since = std::chrono::steady_clock::now();
  do {
    next = served.tcp();
  } while (!is_taken(next) && std::chrono::steady_clock::now() - since < kLongEnough);
  EXPECT_TRUE(is_taken(next)) << "once one has closed";
}

TEST_F(HttpServerTest, OneUserLeavesConnectionsForOthersAndAllForRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be other users";
  Served served({.connections = 32});
  const auto client_of = [&](uid_t user) {
    EXPECT_EQ(seteuid(user), 0);  // the kernel notes the effective user when a program connects
    Client client = served.local();
    EXPECT_EQ(seteuid(0), 0);
    return client;
  };
  std::vector<Client> clients;
  const auto most_of = [&](uid_t user) {
    int taken = 0;
    while (true) {
      clients.push_back(client_of(user));
      if (!is_taken(clients.back())) return taken;
      ++taken;
    }
  };
  EXPECT_EQ(most_of(1001), 16);
  EXPECT_EQ(most_of(1002), 14);
  EXPECT_TRUE(served.tcp().ended());
  EXPECT_EQ(most_of(0), 2);
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
  }
  return 0;
}

TEST_F(HttpServerTest, AThousandCallsWait) {
  constexpr std::size_t kCalls = 1000;
  const std::size_t threads = entries("/proc/self/task");
  Served served;
  [[maybe_unused]] const long before = resident_kib();
  EXPECT_LE(entries("/proc/self/task"), threads + 1);
  std::vector<Client> clients;
  for (std::size_t i = 0; i < kCalls; ++i) {
    clients.push_back(i % 2 == 0 ? served.tcp() : served.local());
    clients.back().post("/wait", std::string(2000, 'x'));
  }
  const auto calls = served.waiting(kCalls);
#ifndef NVSHARE_UNDER_SANITIZER
  // 16 KiB of libmicrohttpd's each, and little else.
  EXPECT_LT(resident_kib() - before, 32 * 1024);
#endif
  for (std::size_t i = kCalls; i-- > 0;) served.answer(calls[i], std::to_string(calls[i].value));
  std::vector<bool> answered(kCalls + 1);
  for (Client& client : clients) {
    const auto reply = client.read();
    ASSERT_TRUE(reply);
    answered.at(std::stoul(reply->body)) = true;
  }
  EXPECT_EQ(std::count(answered.begin(), answered.end(), true), std::ptrdiff_t{kCalls});
  EXPECT_EQ(served.gone_so_far(), 0u);
}

TEST_F(HttpServerTest, TheLoopRestsWhateverAClientLeavesUndone) {
  Served served({}, [](HttpCall, const HttpRequest&) {
    return HttpReply{200, std::string(8 << 20, 'x'), {}};
  });
  std::vector<Client> clients;
  const std::string chunked = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n";
  for (const std::string& part :
       {std::string("GET /now HTTP/1.1\r\n\r\n"), std::string("GET /wait HTTP/1.1\r\n\r\n"),
        std::string("GET /large HTTP/1.1\r\n\r\n"), std::string("GET /la"),
        std::string("GET /now HTTP/1.1\r\nX:"), chunked + "\r\n4\r\nab",
        chunked + "Expect: 100-continue\r\n\r\n", std::string("GET /now HTTP/1.1\r\n\r\nGET"),
        "GET /wait HTTP/1.1\r\n\r\n" + std::string(100'000, 'x')}) {
    for (Client& client : served.both()) {
      client.send(part);
      clients.push_back(std::move(client));
    }
  }
  clients.push_back(served.tcp());
  clients.back().get("/now");
  EXPECT_EQ(clients.back().status(), 200);
  clients.back().half_close();
  // Once everything is as far as it gets, this thread's tasks are the only turns.
  const auto rests = [&] {
    served.in_loop([] {});
    const long turns = served.turns();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    served.in_loop([] {});
    return served.turns() - turns <= 3;
  };
  bool rested = false;
  for (int i = 0; i < 100 && !rested; ++i) rested = rests();
  EXPECT_TRUE(rested);
}

// The next connection is turned away and does not wake the loop for ever.
TEST_F(HttpServerTest, DescriptorsMayRunOut) {
  Served served;
  Client keeps = served.tcp();
  keeps.get("/wait");
  const HttpCall call = served.waiting(1)[0];
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none_left{static_cast<rlim_t>(socket.get()) + 1, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none_left);
  Client refused(std::move(socket));
  EXPECT_TRUE(refused.connect(served.tcp_address(), sizeof(sockaddr_in)));
  EXPECT_TRUE(refused.ended());
  setrlimit(RLIMIT_NOFILE, &before);
  served.in_loop([] {});  // the line is written after the end of the connection
  EXPECT_NE(served.log().find("event=out_of_descriptors http_connections=1"), std::string::npos);
  served.answer(call, "{}");
  EXPECT_EQ(keeps.status(), 200);
  Client next = served.tcp();
  next.get("/now");
  EXPECT_EQ(next.status(), 200);
}

}  // namespace
}  // namespace nvshare::daemon
