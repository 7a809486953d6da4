#pragma once

#include <optional>

#include "daemon/http/http_server.h"

// What the kernel says of the other end of a connection.
namespace nvshare::daemon {

// The client has closed the connection, or its sending half. The event of it may still be to be
// read; unread requests do not hide it.
bool has_hung_up(int fd);
bool is_over_tcp(int fd);
// None over TCP.
std::optional<HttpPeer> peer_of(int fd);

}  // namespace nvshare::daemon
