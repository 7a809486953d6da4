#include "cli/talk/http_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <vector>

#include "cli/run/connect.h"
#include "cli/testing/api_server.h"
#include "cli/testing/process.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;
using testing::ApiRequest;
using testing::ApiServer;
using testing::http;

auto always(std::string answer) {
  return [answer](const ApiRequest&) { return answer; };
}

RunDirectory in(const std::string& folder) {
  return {folder, DirectoryKind::Chosen};
}

// The answer as "STATUS BODY", or the error.
std::string ask(const std::string& folder, const HttpRequest& request, Duration timeout = 10s) {
  const auto answer = ask_http(in(folder), request, timeout);
  if (!answer) return answer.error().message;
  return std::to_string(answer->status) + " " + answer->body;
}

// A run directory without servers.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/nvshare-http-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

TEST(HttpClient, SendsOneRequestAndReadsItsAnswer) {
  ApiServer server(always(http(201, R"({"result":"ACQUIRED"})")));
  EXPECT_EQ(ask(server.directory(), {"POST", "/v1/leases", R"({"taskType":"NMT"})"}),
            R"(201 {"result":"ACQUIRED"})");
  ASSERT_EQ(server.requests().size(), 1u);
  const ApiRequest request = server.requests()[0];
  EXPECT_EQ(request.head,
            "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
            "Connection: close\r\nContent-Type: application/json\r\nContent-Length: 18\r\n");
  EXPECT_EQ(request.body, R"({"taskType":"NMT"})");
  EXPECT_EQ(request.peer, ::getpid());
}

TEST(HttpClient, ARequestWithoutABodyNamesNoKindOfIt) {
  ApiServer server(always(http(200, "{}")));
  EXPECT_EQ(ask(server.directory(), {"GET", "/v1/leases", ""}), "200 {}");
  EXPECT_EQ(server.requests()[0].head.find("Content-Type"), std::string::npos);
}

TEST(HttpClient, AnAnswerThatIsLargerThanTheSocketComesWhole) {
  const std::string body(3 << 20, 'a');
  ApiServer server(always(http(200, body)));
  EXPECT_EQ(ask(server.directory(), {"GET", "/", ""}), "200 " + body);
}

TEST(HttpClient, ALargeRequestIsSentWholeBeforeItsAnswer) {
  const std::string body(1 << 20, 'b');
  ApiServer server(always(http(200, "{}")));
  EXPECT_EQ(ask(server.directory(), {"POST", "/", body}), "200 {}");
  EXPECT_EQ(server.requests()[0].body, body);
}

TEST(HttpClient, NobodyWaitsLongerThanTheTimeout) {
  ApiServer server(always(""));
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(ask(server.directory(), {"GET", "/", ""}, 200ms),
            "the scheduler does not answer: see its log, or end it and start it again");
  EXPECT_GE(std::chrono::steady_clock::now() - began, 200ms);
  EXPECT_TRUE(testing::eventually([&] { return server.withdrawn() == 1; }));
}

TEST(HttpClient, ASchedulerThatGoesAwayIsTold) {
  ApiServer server(always("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"));
  EXPECT_EQ(ask(server.directory(), {"GET", "/", ""}),
            "the scheduler closed the connection before its answer was complete");
}

TEST(HttpClient, WithoutASchedulerTheErrorSaysWhatToDo) {
  const Folder folder;
  EXPECT_EQ(ask(folder.path, {"GET", "/", ""}),
            "no scheduler is running in " + folder.path + ": start a program with nvshare run");
  EXPECT_EQ(ask("/" + std::string(200, 'a'), {"GET", "/", ""}),
            "/" + std::string(200, 'a') +
                ": too long for a socket: name a shorter folder in NVSHARE_RUN_DIR");
}

// A scheduler of a build without HTTP has its other sockets.
TEST(HttpClient, ASchedulerWithoutTheSocketOffersNoLeases) {
  const Folder folder;
  const UniqueFd listener(wire::listen_at((folder.path + "/scheduler.sock").c_str(), 0600));
  ASSERT_TRUE(listener);
  EXPECT_EQ(ask(folder.path, {"GET", "/", ""}), "this scheduler offers no leases");
}

// A blocking connect would wait for a scheduler that takes no connections.
TEST(HttpClient, ASchedulerThatHangsIsNotWaitedForToSayThatItOffersNoLeases) {
  const Folder folder;
  const std::string path = folder.path + "/scheduler.sock";
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  std::vector<Connection> unanswered;
  do {
    unanswered.push_back(connect_at_once(path, SOCK_SEQPACKET));
  } while (unanswered.back().error == 0);
  ASSERT_EQ(unanswered.back().error, EAGAIN);
  EXPECT_EQ(ask(folder.path, {"GET", "/", ""}), "this scheduler offers no leases");
}

}  // namespace
}  // namespace nvshare::cli
