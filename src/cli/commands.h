#pragma once

#include "cli/program.h"

namespace nvshare::cli {

// One for each command, each in a file of its own.
Command sim_command();
Command softgpu_command();  // only in builds with the software GPU

}  // namespace nvshare::cli
