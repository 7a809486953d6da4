#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace nvshare::cli::testing {

// An installation of its own for a test: the real `nvshare`, beside it a scheduler and libraries
// that only look like ours, and a run directory that is not made yet. All of it is gone when this
// is, the schedulers that were started in the run directory too.
class Installation {
 public:
  Installation();
  ~Installation();
  Installation(const Installation&) = delete;
  Installation& operator=(const Installation&) = delete;

  // A file of the installation: "bin/nvshare", "bin/nvshare-scheduler", "lib/libnvshare.so",
  // "driver/libcuda.so.1".
  std::string path(const std::string& file) const { return (tree_ / file).string(); }
  const std::string& folder() const { return outer_; }  // for the test's own files
  const std::string& run_directory() const { return run_directory_; }
  // What a program needs to use it, "NAME=VALUE".
  std::vector<std::string> variables() const;

  std::vector<pid_t> schedulers() const;  // every one that was ever started there
  std::string runs() const;               // a line for each tenant they welcomed

 private:
  std::filesystem::path tree_;
  std::string outer_;
  std::string run_directory_;
};

}  // namespace nvshare::cli::testing
