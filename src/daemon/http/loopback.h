#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

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

// A socket address, without a port.
struct LoopbackAddress {
  sockaddr_storage address{};
  socklen_t length = 0;
};
// Of "127.0.0.1" (or any other 127.x.y.z) and "[::1]"; none of everything else.
std::optional<LoopbackAddress> loopback_address(std::string_view host);

}  // namespace nvshare::daemon
