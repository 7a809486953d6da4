#pragma once

#include <string>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/run/run_directory.h"
#include "cli/talk/http_answer.h"

namespace nvshare::cli {

struct HttpRequest {
  std::string method;
  std::string path;  // as it is sent
  std::string body;  // JSON; empty: none
};

// One request over the scheduler's HTTP socket and its answer, on a connection of its own. For the
// scheduler the process that begins the exchange is the owner of what the request asks for.
class HttpExchange {
 public:
  // Connects. The scheduler's queue of connections may be full: the wait ends after `patience`.
  static Result<HttpExchange> begin(const RunDirectory& directory, const HttpRequest& request,
                                    Duration patience);

  // What the next step waits for: poll's descriptor and events.
  int socket() const { return connection_.get(); }
  short events() const;
  // Sends and reads without waiting. True when the answer is there.
  Result<bool> go_on();
  const HttpAnswer& answer() const { return reader_.answer(); }

 private:
  HttpExchange(UniqueFd connection, std::string text)
      : connection_(std::move(connection)), unsent_(std::move(text)) {}
  void send_more();

  UniqueFd connection_;
  std::string unsent_;
  HttpReader reader_;
};

// The whole exchange. An error when no answer comes in time.
Result<HttpAnswer> ask_http(const RunDirectory& directory, const HttpRequest& request,
                            Duration timeout);

}  // namespace nvshare::cli
