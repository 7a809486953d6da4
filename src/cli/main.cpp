#include <iostream>

#include "cli/commands.h"

int main(int argc, char** argv) {
  using namespace nvshare::cli;
  const std::vector<Command> commands{
      sim_command(),
#ifdef NVSHARE_HAVE_SOFTGPU
      softgpu_command(),
#endif
  };
  return run_program(commands, {argv + 1, argv + argc}, {std::cout, std::cerr});
}
