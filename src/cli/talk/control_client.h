#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/run/run_directory.h"

namespace nvshare::cli {

// What the scheduler answered to one request.
struct Reply {
  bool accepted = false;
  std::string json;   // the whole line
  std::string error;  // why not
};

// A connection to the scheduler's control socket. docs/protocol.md has the requests.
class ControlClient {
 public:
  // Errors say what to do next.
  static Result<ControlClient> connect(const RunDirectory& directory);

  // Sends one line and waits for the answer. An error when none that makes sense comes in time;
  // a refusal is an answer.
  Result<Reply> ask(const std::string& request, Duration timeout = 5s);

 private:
  explicit ControlClient(UniqueFd connection) : connection_(std::move(connection)) {}
  UniqueFd connection_;
  std::string unread_;
};

}  // namespace nvshare::cli
