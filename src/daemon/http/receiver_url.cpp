#include "daemon/http/receiver_url.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace nvshare::daemon {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr std::size_t kLongest = 1024;

// A space or a control character would end the request's line.
bool may_stand_in_a_path(char c) {
  return c > ' ' && c < 0x7f && c != '#';
}

}  // namespace

Result<ReceiverUrl> receiver_url(std::string_view text) {
  const Error wrong{
      fmt::format("'{}' is not http://HOST:PORT/PATH with a numeric HOST or localhost",
                  text.substr(0, kLongest))};
  if (!text.starts_with(kScheme) || text.size() > kLongest) return wrong;
  text.remove_prefix(kScheme.size());
  const std::size_t slash = std::min(text.find('/'), text.size());
  const auto parts = host_and_port(text.substr(0, slash));
  if (!parts) return wrong;
  auto at = numeric_address(parts->host == "localhost" ? "127.0.0.1" : parts->host);
  const auto port = parse_integer(parts->port.empty() ? "80" : parts->port, 1, 65535);
  const std::string_view path = slash == text.size() ? "/" : text.substr(slash);
  if (!at || !port || !std::ranges::all_of(path, may_stand_in_a_path)) return wrong;
  set_port(*at, static_cast<std::uint16_t>(*port));
  return ReceiverUrl{*at, std::string(text.substr(0, slash)), std::string(path)};
}

}  // namespace nvshare::daemon
