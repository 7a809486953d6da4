#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace nvshare::cli {

// What the choice of the run directory depends on.
struct Surroundings {
  std::optional<std::string> chosen;        // NVSHARE_RUN_DIR
  std::optional<std::string> user_runtime;  // XDG_RUNTIME_DIR
  std::string system;                       // of the system's scheduler; tests: NVSHARE_SYSTEM_DIR
  std::string temporary = "/tmp";
  unsigned user = 0;
};

// As this process finds them.
Surroundings surroundings();

enum class DirectoryKind { Chosen, System, Private };

// The directory with the scheduler's sockets, which need not be there.
struct RunDirectory {
  std::string path;
  DirectoryKind kind = DirectoryKind::Private;
  // The directory of a scheduler for all users that has left its socket but does not answer: the
  // system's, or the chosen one. Such a scheduler is probably restarting. Empty: there is none.
  std::string silent{};
};

// NVSHARE_RUN_DIR where it is set; else the system's where its scheduler answers; else the user's
// own. Makes nothing. An error when the user's own is not safe to use.
Result<RunDirectory> find_run_directory(const Surroundings& around);

// Whether a scheduler listens on its socket for programs. Never waits.
bool scheduler_answers(const std::string& directory);

// The user's own: in XDG_RUNTIME_DIR where that is his, else in the temporary folder.
std::string private_directory(const Surroundings& around);

// Whether a folder is one that only `user` can put sockets into: his own, no link, and not writable
// for others. One that does not exist is.
Result<void> check_private(const std::string& path, unsigned user);
// Makes it where it does not exist, and checks it.
Result<void> make_private(const std::string& path, unsigned user);

// The path of a socket in a run directory; an error when it is too long for one.
Result<std::string> socket_path(const std::string& directory, const std::string& socket);

}  // namespace nvshare::cli
