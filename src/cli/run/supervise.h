#pragma once

#include "cli/run/keeper.h"
#include "cli/run/start_program.h"

namespace nvshare::cli {

// Runs the program in a tenant: forks a keeper, which asks for the tenant and starts the program,
// and waits for the program's end. Passes signals on that reach this process alone, and stops and
// continues with the program as a job of a shell. Returns the exit code, or ends this process by
// the program's signal. Signals stay blocked: the caller is about to end.
int supervise(const Launch& launch, const Tenancy& tenancy);

}  // namespace nvshare::cli
