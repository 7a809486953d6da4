#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run/environment.h"

// Where the parts of nvshare are, seen from this program: in the build as installed.
namespace nvshare::cli {

// The folder above the one that this program is in.
Result<std::string> install_folder();

Result<std::string> scheduler_program();
// libnvshare.so. An error also when its path cannot stand in LD_PRELOAD.
Result<std::string> preload_library();

// Whether a program would find the CUDA driver where this one does.
bool driver_is_there();

// The environment of a program that takes part: this one's, with the library before whatever is
// preloaded already, and the run directory. `changes` come first.
std::vector<std::string> sharing_environment(const std::string& library,
                                             const std::string& run_directory,
                                             std::vector<Variable> changes = {});

}  // namespace nvshare::cli
