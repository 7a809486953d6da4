#include "daemon/http/loopback.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "daemon/http/http_server.h"

namespace nvshare::daemon {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// `text` as the bytes of an address.
bool reads_as(int family, std::string_view text, void* bytes) {
  if (text.find('\0') != std::string_view::npos) return false;
  return inet_pton(family, std::string(text).c_str(), bytes) == 1;
}

}  // namespace

std::optional<HostAndPort> host_and_port(std::string_view text) {
  const std::size_t bracket = text.starts_with('[') ? text.find(']') : 0;
  if (bracket == std::string_view::npos) return std::nullopt;
  const std::size_t colon = text.find(':', bracket);
  if (bracket > 0 && bracket + 1 != std::min(colon, text.size())) return std::nullopt;
  if (colon == std::string_view::npos) return HostAndPort{text, {}};
  const std::string_view port = text.substr(colon + 1);
  if (!std::all_of(port.begin(), port.end(), is_digit)) return std::nullopt;
  return HostAndPort{text.substr(0, colon), port};
}

void set_port(SocketAddress& at, std::uint16_t port) {
  if (at.address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(at.address).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(at.address).sin6_port = htons(port);
  }
}

std::optional<SocketAddress> numeric_address(std::string_view host) {
  SocketAddress found;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    auto& six = reinterpret_cast<sockaddr_in6&>(found.address);
    if (!reads_as(AF_INET6, host.substr(1, host.size() - 2), &six.sin6_addr)) return std::nullopt;
    six.sin6_family = AF_INET6;
    found.length = sizeof six;
    return found;
  }
  auto& four = reinterpret_cast<sockaddr_in&>(found.address);
  if (!reads_as(AF_INET, host, &four.sin_addr)) return std::nullopt;
  four.sin_family = AF_INET;
  found.length = sizeof four;
  return found;
}

std::optional<SocketAddress> loopback_address(std::string_view host) {
  const auto found = numeric_address(host);
  if (!found) return std::nullopt;
  const bool is_loopback =
      found->address.ss_family == AF_INET6
          ? IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(found->address).sin6_addr)
          : ntohl(reinterpret_cast<const sockaddr_in&>(found->address).sin_addr.s_addr) >> 24 ==
                IN_LOOPBACKNET;
  return is_loopback ? found : std::nullopt;
}

Result<UniqueFd> listen_on_loopback(const std::string& address) {
  const auto parts = host_and_port(address);
  auto at = parts ? loopback_address(parts->host) : std::nullopt;
  if (!at) {
    return Error{address + ": not a loopback address with a port (127.0.0.1:9402, [::1]:9402)"};
  }
  const auto port = parse_integer(parts->port, 0, 65535);
  if (!port) return Error{address + ": the port is no number from 0 to 65535"};
  set_port(*at, static_cast<std::uint16_t>(*port));

  const auto failed = [&] { return Error{fmt::format("{}: {}", address, std::strerror(errno))}; };
  UniqueFd fd(socket(at->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed();
  // Connections of the scheduler before this one may linger; they do not keep it from starting.
  const int on = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0) return failed();
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at->address), at->length) < 0) {
    return failed();
  }
  if (listen(fd.get(), SOMAXCONN) < 0) return failed();
  return fd;
}

}  // namespace nvshare::daemon
