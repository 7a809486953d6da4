#pragma once

#include <string>

#include "base/unique_fd.h"

namespace nvshare::cli {

// A connected descriptor (close-on-exec, non-blocking), or empty with its errno.
struct Connection {
  UniqueFd socket;
  int error = 0;
};

// Connects to a Unix socket of this type (SOCK_SEQPACKET, SOCK_STREAM) without waiting. EAGAIN: the
// scheduler's queue of connections is full.
Connection connect_at_once(const std::string& path, int type);

}  // namespace nvshare::cli
