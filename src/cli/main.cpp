#include <iostream>

#include "cli/commands/commands.h"

int main(int argc, char** argv) {
  using namespace nvshare::cli;
  const std::vector<Command> commands{
      run_command(),     status_command(),       top_command(),   ps_command(),
      limit_command(),   why_command(),          trace_command(), pause_command(),
      resume_command(),  sleep_command(),        wake_command(),  config_command(),
      doctor_command(),  doctor_probe_command(), sim_command(),   lease_command(),
#ifdef NVSHARE_HAVE_SOFTGPU
      softgpu_command(),
#endif
  };
  return run_program(commands, {argv + 1, argv + argc}, {std::cout, std::cerr});
}
