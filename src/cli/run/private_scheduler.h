#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cli/run/run_directory.h"

namespace nvshare::cli {

// A connection to the program socket of the scheduler in `directory`. Where none answers, a private
// one is started there, and only one however many ask at once: it outlives this process. An error
// may have further lines: the end of the scheduler's log.
Result<UniqueFd> connect_or_start(const RunDirectory& directory);

}  // namespace nvshare::cli
