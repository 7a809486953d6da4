#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace nvshare::cli::testing {

// A scheduler's control socket for one test, in a run directory of its own that NVSHARE_RUN_DIR
// names while it lives.
class ControlServer {
 public:
  // Answers each line with what `answer` makes of it; one that says nothing is not answered.
  explicit ControlServer(std::function<std::string(const std::string&)> answer);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  const std::string& directory() const { return directory_; }
  // The lines that came; to be asked when nobody is connected any more.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  void serve();
  void talk(int connection);

  std::function<std::string(const std::string&)> answer_;
  std::string directory_;
  UniqueFd listening_;
  UniqueFd stop_;
  UniqueFd stopped_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace nvshare::cli::testing
