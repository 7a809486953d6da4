#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace nvshare::softgpu {

// The worker program as a child, spoken with by lines.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment = {}) {
    int to[2];
    int from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      for (const std::string& one : environment) ::putenv(const_cast<char*>(one.c_str()));
      std::vector<char*> raw{const_cast<char*>(NVSHARE_SOFTGPU_WORKER)};
      for (const std::string& one : arguments) raw.push_back(const_cast<char*>(one.c_str()));
      raw.push_back(nullptr);
      ::execv(NVSHARE_SOFTGPU_WORKER, raw.data());
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = ::fdopen(to[1], "w");
    out_ = ::fdopen(from[0], "r");
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)),
        in_(std::exchange(other.in_, nullptr)),
        out_(std::exchange(other.out_, nullptr)) {}
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (in_ != nullptr) std::fclose(in_);
    if (out_ != nullptr) std::fclose(out_);
  }

  pid_t pid() const { return pid_; }

  // The next line it says, without its end; empty when it says no more.
  std::string line() {
    char text[256];
    if (std::fgets(text, sizeof text, out_) == nullptr) return "";
    std::string all = text;
    while (!all.empty() && all.back() == '\n') all.pop_back();
    return all;
  }
  void go(const std::string& line = "go") {
    std::fprintf(in_, "%s\n", line.c_str());
    std::fflush(in_);
  }
  void kill_hard() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Waits for its end; its exit status, or -1.
  int finish() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
  std::FILE* in_ = nullptr;
  std::FILE* out_ = nullptr;
};

}  // namespace nvshare::softgpu
