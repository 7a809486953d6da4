#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace nvshare::cli {

// A helper process that talks over its standard input and output. It is gone when this is.
class CapturedChild {
 public:
  // `environment` holds all of it, "NAME=VALUE"; its error stream goes to /dev/null.
  static Result<CapturedChild> start(const std::vector<std::string>& words,
                                     const std::vector<std::string>& environment);
  CapturedChild(CapturedChild&& other) noexcept;
  CapturedChild& operator=(CapturedChild&&) = delete;
  ~CapturedChild();

  pid_t pid() const { return pid_; }
  // The next line it writes; an error when it ends or writes none in time.
  Result<std::string> read_line(Duration timeout);

 private:
  CapturedChild(pid_t pid, UniqueFd input, UniqueFd output);
  pid_t pid_;
  UniqueFd input_;
  UniqueFd output_;
  std::string unread_;
};

}  // namespace nvshare::cli
