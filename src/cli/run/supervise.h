#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "wire/messages.h"

namespace nvshare::cli {

struct Launch {
  std::vector<std::string> words;        // the program and its arguments
  std::vector<std::string> environment;  // "NAME=VALUE", all of it
};

// The connection that holds the tenant, and how to get it back when the scheduler was away.
struct TenantConnection {
  UniqueFd socket;
  std::function<UniqueFd()> again;  // an empty one when there is no scheduler; must not wait long
  std::function<void(bool back)> tell;
  std::function<void(const wire::Shortage&)> tell_shortage;
};

// How a program ended.
struct Ending {
  int exec_error = 0;  // not 0: it was not started, and why
  int status = 0;      // as waitpid gives it
};

// Starts the program as a child in the same process group, and waits for its end. Passes signals on
// that reach this process alone, stops and continues with the program as a job of a shell, and
// collects the processes it leaves behind. Leaves the process's signals blocked: whoever calls this
// is about to end.
Ending supervise(const Launch& launch, TenantConnection connection);

// Ends this process as another one ended: the exit code to return, or the same signal.
int end_like(int status);

}  // namespace nvshare::cli
