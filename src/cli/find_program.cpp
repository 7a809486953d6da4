#include "cli/find_program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace nvshare::cli {
namespace {

int look(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return errno == ENOTDIR ? ENOENT : errno;
  if (!S_ISREG(found.st_mode)) return EACCES;
  // With the rights that exec will have, not the real user's.
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

}  // namespace

int exit_code_of_exec(int error) {
  return error == ENOENT ? kNotFound : kNotExecutable;
}

int find_program(const std::string& name) {
  if (name.empty()) return ENOENT;
  if (name.find('/') != name.npos) return look(name);
  const char* variable = std::getenv("PATH");
  const std::string_view path = variable != nullptr ? variable : "/bin:/usr/bin";
  int best = ENOENT;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string folder(path.substr(at, end - at));
    at = end + 1;
    const int found = look((folder.empty() ? "." : folder) + "/" + name);
    if (found == 0) return 0;
    if (found == EACCES) best = EACCES;
  }
  return best;
}

}  // namespace nvshare::cli
