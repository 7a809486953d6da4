#include "daemon/http/http_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/http/loopback.h"

namespace nvshare::daemon {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// A literal address cannot be rebound to another machine's page; a name can, except for localhost.
bool is_loopback_host(std::string_view value) {
  const auto parts = host_and_port(value);
  return parts && (same(parts->host, "localhost") || loopback_address(parts->host));
}

// application/x-www-form-urlencoded is what `curl -d` says of a body of any kind. A page could send
// it, too; its Origin gives it away.
bool is_known_type(std::string_view value) {
  const std::string_view type = trimmed(value.substr(0, value.find(';')));
  return same(type, "application/json") || same(type, "application/x-www-form-urlencoded");
}

bool is_known_site(std::string_view value) {
  return same(value, "none") || same(value, "same-origin");
}

bool brings_a_body(const std::vector<HttpHeader>& headers) {
  return std::any_of(headers.begin(), headers.end(), [](const HttpHeader& header) {
    return same(header.name, "Transfer-Encoding") ||
           (same(header.name, "Content-Length") && trimmed(header.value) != "0");
  });
}

}  // namespace

HttpReply http_error(int status, const std::string& line) {
  const nlohmann::json body{{"error", line}};
  using Handler = nlohmann::json::error_handler_t;
  return {status, body.dump(-1, ' ', false, Handler::replace), {}};
}

HttpReply body_too_long() {
  return http_error(413, fmt::format("a body has at most {} bytes", HttpServer::kLongestBody));
}

std::optional<HttpReply> refusal_of(const std::vector<HttpHeader>& headers, bool over_tcp) {
  const bool body = brings_a_body(headers);
  for (const HttpHeader& header : headers) {
    const std::string_view value = trimmed(header.value);
    if (same(header.name, "Origin")) {
      return http_error(403, "requests of web pages are refused (header Origin)");
    }
    if (same(header.name, "Sec-Fetch-Site") && !is_known_site(value)) {
      return http_error(403, "requests of web pages are refused (header Sec-Fetch-Site)");
    }
    if (over_tcp && same(header.name, "Host") && !is_loopback_host(value)) {
      return http_error(403, "the header Host names neither localhost nor a loopback address");
    }
    if (same(header.name, "Content-Length") &&
        !parse_integer(value, 0, static_cast<std::int64_t>(HttpServer::kLongestBody))) {
      return body_too_long();
    }
    if (body && same(header.name, "Content-Type") && !is_known_type(value)) {
      return http_error(415, "a body must be application/json");
    }
  }
  return std::nullopt;
}

}  // namespace nvshare::daemon
