#pragma once

#include "cli/program.h"

namespace nvshare::cli {

// One for each command.
Command run_command();
Command status_command();
Command top_command();
Command ps_command();
Command limit_command();
Command why_command();
Command trace_command();
Command pause_command();
Command resume_command();
Command sleep_command();
Command wake_command();
Command config_command();
Command doctor_command();
Command doctor_probe_command();
Command sim_command();
Command lease_command();
Command lease_run_command();  // of lease_command()
Command softgpu_command();    // only in builds with the software GPU

}  // namespace nvshare::cli
