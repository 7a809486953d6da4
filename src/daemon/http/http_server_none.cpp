// What stands for the server where libmicrohttpd is missing (docs/decisions/0002-dependencies.md).

#include "daemon/http/http_server.h"

namespace nvshare::daemon {

Result<std::unique_ptr<HttpServer>> HttpServer::start(Reactor&, Log&, Handler, Ended,
                                                      const HttpBounds&) {
  return Error{"this build has no HTTP: libmicrohttpd was not there"};
}

}  // namespace nvshare::daemon
