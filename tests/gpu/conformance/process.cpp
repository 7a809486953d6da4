#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/unique_fd.h"

namespace nvshare::conformance {
namespace {

using Clock = std::chrono::steady_clock;

// Other descriptors stay open in the child on purpose: handles of exported memory travel that way.
pid_t start(const std::vector<std::string>& command, int output) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    // Nothing of this may outlive the program, however that ends.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    const rlimit no_core = {0, 0};  // dying is part of the programme
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(output, STDOUT_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return pid;
}

// What a child has still to do to stay alive: get further, and not take too long in all.
class Patience {
 public:
  Patience(int seconds, int progress, int most)
      : seconds_(seconds),
        progress_(progress),
        deadline_(Clock::now() + std::chrono::seconds(seconds)),
        last_(Clock::now() + std::chrono::seconds(most)) {}

  bool over() {
    const unsigned now = progress_ < 0 ? seen_ : progress_in(progress_);
    if (now != seen_) {
      seen_ = now;
      deadline_ = Clock::now() + std::chrono::seconds(seconds_);
    }
    return Clock::now() >= std::min(deadline_, last_);
  }

 private:
  int seconds_;
  int progress_;
  unsigned seen_ = 0;
  Clock::time_point deadline_;
  Clock::time_point last_;
};

// Reads until the other end is closed (true) or patience is over (false).
bool read_until(int fd, Patience patience, std::string& output) {
  while (!patience.over()) {
    pollfd polled = {fd, POLLIN, 0};
    if (::poll(&polled, 1, 100) <= 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got <= 0) return true;
    output.append(buffer, static_cast<std::size_t>(got));
  }
  return false;
}

}  // namespace

unsigned progress_in(int file) {
  unsigned call = 0;
  return ::pread(file, &call, sizeof call, 0) == sizeof call ? call : 0;
}

Outcome run_process(const std::vector<std::string>& command, int seconds, int progress, int most) {
  Outcome outcome;
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return outcome;
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = start(command, write_end.get());
  write_end.reset();
  if (pid < 0) return outcome;
  if (!read_until(read_end.get(), Patience(seconds, progress, most), outcome.output)) {
    outcome.timed_out = true;
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

Companion::Companion(const std::vector<std::string>& command, int seconds) : pid_(-1) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  pid_ = start(command, write_end.get());
  pollfd polled = {read_end.get(), POLLIN, 0};
  ::poll(&polled, 1, seconds * 1000);
}

Companion::~Companion() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace nvshare::conformance
