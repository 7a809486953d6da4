#include "cli/run/run_directory.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/unique_fd.h"
#include "cli/run/connect.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == 0) return std::nullopt;
  return std::string(value);
}

bool is_own_folder(const std::string& path, unsigned user) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == user;
}

// 0 when a scheduler answers, else the (positive) errno.
int knock(const std::string& directory) {
  const auto path = socket_path(directory, wire::kProgramSocket);
  if (!path) return ENOENT;
  const int connection = wire::connect_to(path->c_str());
  if (connection < 0) return -connection;
  UniqueFd closed_again(connection);
  return 0;
}

// A scheduler for all users has a socket that all may use. A private one is not started again by
// anybody, so nobody waits for it.
bool has_shared_socket(const std::string& directory) {
  struct stat found {};
  const auto path = socket_path(directory, wire::kProgramSocket);
  return path && ::stat(path->c_str(), &found) == 0 && S_ISSOCK(found.st_mode) &&
         (found.st_mode & 0006) != 0;
}

}  // namespace

Surroundings surroundings() {
  Surroundings around;
  around.chosen = variable(wire::kRunDirectoryVariable);
  around.user_runtime = variable("XDG_RUNTIME_DIR");
  around.system = variable("NVSHARE_SYSTEM_DIR").value_or(wire::kSystemRunDirectory);
  around.user = ::geteuid();
  return around;
}

bool scheduler_answers(const std::string& directory) {
  const auto path = socket_path(directory, wire::kProgramSocket);
  if (!path) return false;
  const int error = connect_at_once(*path, SOCK_SEQPACKET).error;
  return error == 0 || error == EAGAIN;
}

std::string private_directory(const Surroundings& around) {
  if (around.user_runtime && around.user_runtime->front() == '/' &&
      is_own_folder(*around.user_runtime, around.user)) {
    return *around.user_runtime + "/nvshare";
  }
  return fmt::format("{}/nvshare-{}", around.temporary, around.user);
}

Result<RunDirectory> find_run_directory(const Surroundings& around) {
  if (around.chosen) {
    // Absolute, for the program may change its folder before it connects.
    std::error_code failed;
    const auto absolute = std::filesystem::absolute(*around.chosen, failed);
    RunDirectory found{failed ? *around.chosen : absolute.string(), DirectoryKind::Chosen};
    if (has_shared_socket(found.path) && knock(found.path) == ECONNREFUSED) {
      found.silent = found.path;
    }
    return found;
  }
  const int system = knock(around.system);
  if (system == 0) return RunDirectory{around.system, DirectoryKind::System};
  if (system == EACCES) {
    return Error{fmt::format("{}: permission denied: ask an administrator to let everyone in",
                             around.system)};
  }
  RunDirectory found{private_directory(around), DirectoryKind::Private};
  if (system == ECONNREFUSED) found.silent = around.system;
  if (const auto safe = check_private(found.path, around.user); !safe) return safe.error();
  return found;
}

Result<void> check_private(const std::string& path, unsigned user) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return {};
    return Error{fmt::format("{}: {}", path, std::strerror(errno))};
  }
  const char* wrong = nullptr;
  if (!S_ISDIR(found.st_mode)) wrong = "is not a folder";
  if (wrong == nullptr && found.st_uid != user) wrong = "belongs to somebody else";
  if (wrong == nullptr && (found.st_mode & 022) != 0) wrong = "can be written to by others";
  if (wrong == nullptr) return {};
  return Error{fmt::format("{} {}: remove it, or name another folder in {}", path, wrong,
                           wire::kRunDirectoryVariable)};
}

Result<void> make_private(const std::string& path, unsigned user) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error{fmt::format("{}: cannot be made: {}", path, std::strerror(errno))};
  }
  return check_private(path, user);
}

Result<std::string> socket_path(const std::string& directory, const std::string& socket) {
  std::string path = directory + "/" + socket;
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Error{fmt::format("{}: too long for a socket: name a shorter folder in {}", directory,
                             wire::kRunDirectoryVariable)};
  }
  return path;
}

}  // namespace nvshare::cli
