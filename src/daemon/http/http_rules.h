#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "daemon/http/http_server.h"

namespace nvshare::daemon {

struct HttpHeader {
  std::string_view name;
  std::string_view value;
};

// Why a request is refused before its body is read and before the handler hears of it; none when
// it may go on. Web pages cannot ask: a browser sends Origin or Sec-Fetch-Site for them, and over
// TCP the name of the page's host, which no page can choose to be a loopback name.
std::optional<HttpReply> refusal_of(const std::vector<HttpHeader>& headers, bool over_tcp);

// 413, also for a body that tells its length only as it comes.
HttpReply body_too_long();

}  // namespace nvshare::daemon
