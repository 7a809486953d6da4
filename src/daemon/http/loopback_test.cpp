#include "daemon/http/loopback.h"

#include <gtest/gtest.h>

#include <string>

#include "daemon/http/http_server.h"

namespace nvshare::daemon {
namespace {

TEST(ListenOnLoopback, ListensThere) {
  for (const std::string host : {"127.0.0.1", "127.0.0.2", "[::1]"}) {
    const auto listener = listen_on_loopback(host + ":0");
    // A machine may have no IPv6.
    if (!listener && host == "[::1]") continue;
    ASSERT_TRUE(listener) << listener.error().message;
    sockaddr_storage at{};
    socklen_t length = sizeof at;
    ASSERT_EQ(getsockname(listener->get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
    EXPECT_EQ(at.ss_family, host == "[::1]" ? AF_INET6 : AF_INET);
    const std::uint16_t port = ntohs(reinterpret_cast<const sockaddr_in&>(at).sin_port);
    const auto second = listen_on_loopback(host + ":" + std::to_string(port));
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().message,
              host + ":" + std::to_string(port) + ": Address already in use");
  }
}

TEST(ListenOnLoopback, RefusesEverythingElse) {
  for (const char* address : {"", ":9402", "9402", "0.0.0.0:9402", "10.1.2.3:9402", "[::]:9402",
                              "::1:9402", "[::1]9402", "localhost:9402", "example.com:80",
                              "127.0.0.1:9402:1", "127.0.0.1:x", "127.0.0.1:-1", "[::1:9402"}) {
    const auto listener = listen_on_loopback(address);
    ASSERT_FALSE(listener) << address;
    EXPECT_EQ(
        listener.error().message,
        std::string(address) + ": not a loopback address with a port (127.0.0.1:9402, [::1]:9402)");
  }
  for (const char* address : {"127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "[::1]"}) {
    const auto listener = listen_on_loopback(address);
    ASSERT_FALSE(listener) << address;
    EXPECT_EQ(listener.error().message,
              std::string(address) + ": the port is no number from 0 to 65535");
  }
}

}  // namespace
}  // namespace nvshare::daemon
