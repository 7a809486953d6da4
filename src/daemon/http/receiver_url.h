#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/http/loopback.h"

namespace nvshare::daemon {

// Where something is posted to.
struct ReceiverUrl {
  SocketAddress at;
  std::string host;  // with the port, as in the header Host
  std::string path;  // with the query
};

// "http://HOST:PORT/PATH". HOST is a numeric address or localhost. A name is refused, because the
// C library resolves names in a call that blocks: it would need a thread that nobody can end.
Result<ReceiverUrl> receiver_url(std::string_view text);

}  // namespace nvshare::daemon
