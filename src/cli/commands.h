#pragma once

#include "cli/program.h"

namespace nvshare::cli {

// One for each command, each in a file of its own.
Command sim_command();

}  // namespace nvshare::cli
