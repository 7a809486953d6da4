#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace nvshare::daemon {

// The folder with the scheduler's sockets, held by one scheduler at a time.
class RunDirectory {
 public:
  // Makes it (0755, or 0700 when private) and locks it. An error when another scheduler has it, or
  // when a private one would be another user's.
  static Result<RunDirectory> take(const std::string& path, bool is_private);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  RunDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

}  // namespace nvshare::daemon
