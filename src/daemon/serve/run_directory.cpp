#include "daemon/serve/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

Error failed(const std::string& path) {
  return Error{fmt::format("{}: {}", path, std::strerror(errno))};
}

// With the folders above it.
Result<void> make_folder(const std::string& path, mode_t mode) {
  for (std::size_t end = path.find('/', 1); end != path.npos; end = path.find('/', end + 1)) {
    const std::string above = path.substr(0, end);
    if (mkdir(above.c_str(), 0755) < 0 && errno != EEXIST && errno != EROFS) return failed(above);
  }
  if (mkdir(path.c_str(), mode) == 0) {
    // Whatever the mask is.
    return chmod(path.c_str(), mode) == 0 ? Result<void>() : failed(path);
  }
  if (errno != EEXIST) return failed(path);
  return {};
}

}  // namespace

Result<RunDirectory> RunDirectory::take(const std::string& path, bool is_private) {
  if (path.empty() || path[0] != '/') {
    return Error{fmt::format("'{}': the run directory is to be a whole path", path)};
  }
  if (const auto made = make_folder(path, is_private ? 0700 : 0755); !made) return made.error();
  struct stat folder {};
  if (stat(path.c_str(), &folder) < 0) return failed(path);
  if (!S_ISDIR(folder.st_mode)) return Error{path + ": is not a folder"};
  if (is_private && folder.st_uid != geteuid()) return Error{path + ": belongs to another user"};
  const std::string name = path + "/" + wire::kSchedulerLock;
  UniqueFd lock(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return failed(name);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    if (errno != EWOULDBLOCK) return failed(name);
    return Error{fmt::format("another scheduler runs in {}", path)};
  }
  return RunDirectory(path, std::move(lock));
}

}  // namespace nvshare::daemon
