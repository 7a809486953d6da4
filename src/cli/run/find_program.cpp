#include "cli/run/find_program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
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

std::string why_not_started(const std::string& name, int error) {
  const bool is_path = name.find('/') != name.npos;
  struct stat found {};
  const bool is_there = ::stat(name.c_str(), &found) == 0;
  const bool is_file = is_there && S_ISREG(found.st_mode);
  if (error == ENOENT && !is_path) {
    return name + ": there is no such program in PATH: " +
           (is_file ? "did you mean './" + name + "'?" : "check its name, or give its path");
  }
  if (error == ENOENT && is_file) {
    return name + ": what is to run it is missing: see the first line of a script, ldd of others";
  }
  if (error == ENOENT) return name + ": there is no such file: check its path";
  if (error == EACCES && is_there && S_ISDIR(found.st_mode)) {
    return name + ": is a folder: name a program in it";
  }
  if (error == EACCES && is_file) {
    return name + ": may not be run: chmod +x it, or give its interpreter, as in python " + name;
  }
  return name + ": " + std::strerror(error);
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
