#include "cli/run/installed.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "cli/run/environment.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPreload = "LD_PRELOAD";

}  // namespace

Result<std::string> install_folder() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return Error{"/proc/self/exe: " + failed.message()};
  return program.parent_path().parent_path().string();
}

Result<std::string> scheduler_program() {
  const auto folder = install_folder();
  if (!folder) return folder.error();
  const std::string path = *folder + "/bin/nvshare-scheduler";
  if (::access(path.c_str(), X_OK) == 0) return path;
  return Error{fmt::format("{} is missing: install nvshare again", path)};
}

Result<std::string> preload_library() {
  const auto folder = install_folder();
  if (!folder) return folder.error();
  for (const char* place : {"/lib/libnvshare.so", "/lib/nvshare/libnvshare.so"}) {
    const std::string path = *folder + place;
    if (::access(path.c_str(), R_OK) != 0) continue;
    if (path.find_first_of(" :\t\n") == path.npos) return path;
    return Error{fmt::format("'{}': install nvshare in a folder without blanks and colons", path)};
  }
  return Error{fmt::format("{}/lib/libnvshare.so is missing: install nvshare again", *folder)};
}

bool driver_is_there() {
  // Stays loaded: a driver is not made to be unloaded, and this process is about to end or to wait.
  return ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
}

std::vector<std::string> sharing_environment(const std::string& library,
                                             const std::string& run_directory,
                                             std::vector<Variable> changes) {
  const char* preloaded = std::getenv(kPreload);
  const bool some = preloaded != nullptr && *preloaded != 0;
  changes.push_back(
      {kPreload, fmt::format("{}{}{}", library, some ? ":" : "", some ? preloaded : "")});
  changes.push_back({wire::kRunDirectoryVariable, run_directory});
  return changed_environment(changes);
}

}  // namespace nvshare::cli
