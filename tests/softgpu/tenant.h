#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace nvshare::softgpu {

// A process on the card, started with this process's environment, that does what it is told
// (tenant_main.cpp). Killed without warning when it goes out of scope.
class Tenant {
 public:
  Tenant() {
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      execl(NVSHARE_TENANT, NVSHARE_TENANT, static_cast<char*>(nullptr));
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = fdopen(from[0], "r");
    started_ = read_line();
  }
  ~Tenant() {
    kill_now();
    if (to_ >= 0) close(to_);
    if (from_ != nullptr) fclose(from_);
  }
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  std::string tell(const std::string& line) {
    const std::string whole = line + "\n";
    if (write(to_, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) return "gone";
    return read_line();
  }

  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  unsigned pid() const { return static_cast<unsigned>(pid_); }
  const std::string& started() const { return started_; }  // "0" when all went well

 private:
  std::string read_line() {
    char line[256];
    if (fgets(line, sizeof line, from_) == nullptr) return "gone";
    std::string text = line;
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  pid_t pid_ = -1;
  int to_ = -1;
  FILE* from_ = nullptr;
  std::string started_;
};

}  // namespace nvshare::softgpu
