#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace nvshare::daemon {

// "127.0.0.1:9402", "[::1]:9402" or "localhost", in two; without a port that is empty. None when
// what stands behind the colon is no number.
struct HostAndPort {
  std::string_view host;
  std::string_view port;
};
std::optional<HostAndPort> host_and_port(std::string_view text);

struct SocketAddress {
  sockaddr_storage address{};
  socklen_t length = 0;
};
void set_port(SocketAddress& at, std::uint16_t port);
// Of "10.1.2.3" and "[fd00::1]", without a port; none of everything else.
std::optional<SocketAddress> numeric_address(std::string_view host);
// Of "127.0.0.1" (or any other 127.x.y.z) and "[::1]", without a port; none of everything else.
std::optional<SocketAddress> loopback_address(std::string_view host);

}  // namespace nvshare::daemon
