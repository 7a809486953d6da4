#include "daemon/http/http_rules.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

// 200 for a request that goes on.
int status(const std::vector<HttpHeader>& headers, bool over_tcp = true) {
  const auto refusal = refusal_of(headers, over_tcp);
  return refusal ? refusal->status : 200;
}

TEST(HttpRules, OrdinaryRequestsGoOn) {
  EXPECT_EQ(status({}), 200);
  EXPECT_EQ(status({{"Host", "localhost:9402"}, {"User-Agent", "curl/7.88.1"}, {"Accept", "*/*"}}),
            200);
  EXPECT_EQ(status({{"Host", "127.0.0.1"},
                    {"Content-Length", "65536"},
                    {"Content-Type", "application/json; charset=utf-8"}}),
            200);
}

TEST(HttpRules, AnyOriginIsAWebPage) {
  for (const char* origin : {"http://localhost:9402", "https://evil.example", "null", ""}) {
    EXPECT_EQ(status({{"Origin", origin}}), 403);
    EXPECT_EQ(status({{"oRIGIN", origin}}, false), 403);
  }
}

TEST(HttpRules, OtherSitesAreWebPages) {
  for (const char* site : {"none", "same-origin", "Same-Origin", " none "}) {
    EXPECT_EQ(status({{"Sec-Fetch-Site", site}}), 200) << site;
  }
  for (const char* site : {"cross-site", "same-site", "", "nonesuch"}) {
    EXPECT_EQ(status({{"Sec-Fetch-Site", site}}, false), 403) << site;
  }
}

TEST(HttpRules, HostsOverTcpAreLoopback) {
  for (const char* host : {"localhost", "LocalHost:9402", "127.0.0.1", "127.0.0.1:1",
                           "127.1.2.3:80", "[::1]", "[::1]:9402", "localhost:"}) {
    EXPECT_EQ(status({{"Host", host}}), 200) << host;
  }
  for (const char* host : {"",
                           "evil.example",
                           "localhost.evil.example",
                           "evil.example:9402",
                           "localhost.",
                           "127.0.0.1.",
                           "127.0.0.1.evil.example",
                           "10.0.0.1",
                           "0.0.0.0",
                           "[::]",
                           "[::1",
                           "::1",
                           "[::1]x",
                           "[::1]x:1",
                           "[]",
                           "localhost:9402x",
                           "localhost:80:80",
                           "127.1",
                           "evil@localhost",
                           "localhost@evil"}) {
    EXPECT_EQ(status({{"Host", host}}), 403) << host;
    EXPECT_EQ(status({{"Host", host}}, false), 200) << host;
  }
  EXPECT_EQ(status({{"Host", std::string_view("127.0.0.1\0x", 11)}}), 403);
  EXPECT_EQ(status({{"Host", "localhost"}, {"host", "evil.example"}}), 403);
}

TEST(HttpRules, BodiesAreJson) {
  const auto with_body = [](std::string_view type) {
    return status({{"Content-Type", type}, {"Content-Length", "2"}});
  };
  EXPECT_EQ(with_body("application/json"), 200);
  EXPECT_EQ(with_body("Application/JSON ; charset=utf-8"), 200);
  EXPECT_EQ(with_body("application/x-www-form-urlencoded"), 200);  // curl -d
  for (const char* type : {"text/plain", "multipart/form-data; boundary=x", "", "application/jsonx",
                           "text/plain; application/json", "json"}) {
    EXPECT_EQ(with_body(type), 415) << type;
    EXPECT_EQ(status({{"Content-Type", type}, {"Transfer-Encoding", "chunked"}}), 415) << type;
    EXPECT_EQ(status({{"Content-Type", type}}), 200) << type;
    EXPECT_EQ(status({{"Content-Type", type}, {"Content-Length", "0"}}), 200) << type;
  }
}

TEST(HttpRules, BodiesHaveABound) {
  EXPECT_EQ(status({{"Content-Length", "65536"}}), 200);
  EXPECT_EQ(status({{"Content-Length", "65537"}}), 413);
  EXPECT_EQ(status({{"Content-Length", "99999999999999999999999999"}}), 413);
  EXPECT_EQ(status({{"Content-Length", "1"}, {"content-length", "65537"}}), 413);
}

TEST(HttpRules, ErrorsAreJson) {
  EXPECT_EQ(http_error(404, "no \"such\"\nthing").body, R"({"error":"no \"such\"\nthing"})");
  EXPECT_EQ(http_error(404, "caf\xe9").body, "{\"error\":\"caf\xef\xbf\xbd\"}");
  EXPECT_EQ(body_too_long().body, R"({"error":"a body has at most 65536 bytes"})");
}

}  // namespace
}  // namespace nvshare::daemon
