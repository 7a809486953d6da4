#include "daemon/http/receiver_url.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

namespace nvshare::daemon {
namespace {

TEST(ReceiverUrl, IsReadWhole) {
  const auto url = receiver_url("http://10.1.2.3:8080/nodes/a?key=b");
  ASSERT_TRUE(url) << url.error().message;
  EXPECT_EQ(url->host, "10.1.2.3:8080");
  EXPECT_EQ(url->path, "/nodes/a?key=b");
  const auto& four = reinterpret_cast<const sockaddr_in&>(url->at.address);
  EXPECT_EQ(four.sin_family, AF_INET);
  EXPECT_EQ(ntohl(four.sin_addr.s_addr), 0x0a010203u);
  EXPECT_EQ(ntohs(four.sin_port), 8080);
}

TEST(ReceiverUrl, MayLeaveOutPortAndPath) {
  const auto url = receiver_url("http://localhost");
  ASSERT_TRUE(url) << url.error().message;
  EXPECT_EQ(url->host, "localhost");
  EXPECT_EQ(url->path, "/");
  const auto& four = reinterpret_cast<const sockaddr_in&>(url->at.address);
  EXPECT_EQ(ntohl(four.sin_addr.s_addr), INADDR_LOOPBACK);
  EXPECT_EQ(ntohs(four.sin_port), 80);
  EXPECT_EQ(receiver_url("http://127.0.0.1/s")->path, "/s");
}

TEST(ReceiverUrl, MayBeOfIpv6) {
  const auto url = receiver_url("http://[fd00::1]:9000/s");
  ASSERT_TRUE(url) << url.error().message;
  EXPECT_EQ(url->host, "[fd00::1]:9000");
  const auto& six = reinterpret_cast<const sockaddr_in6&>(url->at.address);
  EXPECT_EQ(six.sin6_family, AF_INET6);
  EXPECT_EQ(ntohs(six.sin6_port), 9000);
}

TEST(ReceiverUrl, RefusesEverythingElse) {
  for (const std::string text :
       {"", "http://", "http:///s", "https://10.1.2.3/s", "ftp://10.1.2.3", "10.1.2.3:80/s",
        "http://dispatcher:80/s", "http://10.1.2/s", "http://10.1.2.3:x/s", "http://10.1.2.3:0/s",
        "http://10.1.2.3:65536/s", "http://me@10.1.2.3/s", "http://[fd00::1/s", "http://fd00::1/s",
        "http://10.1.2.3/a b", "http://10.1.2.3/a\r\nX: y", "http://10.1.2.3/a#b",
        "http://10.1.2.3/\xc3\xa4"}) {
    const auto url = receiver_url(text);
    ASSERT_FALSE(url) << text;
    EXPECT_NE(url.error().message.find("is not http://HOST:PORT/PATH"), std::string::npos);
  }
  const auto long_one = receiver_url("http://10.1.2.3/" + std::string(2000, 'x'));
  ASSERT_FALSE(long_one);
  EXPECT_LT(long_one.error().message.size(), 1200u);
}

}  // namespace
}  // namespace nvshare::daemon
