#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
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
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(output, STDOUT_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return pid;
}

// Reads until the other end is closed (true) or the time is over (false).
bool read_until(int fd, Clock::time_point deadline, std::string& output) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd polled = {fd, POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(left.count())) <= 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got <= 0) return true;
    output.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace

Outcome run_process(const std::vector<std::string>& command, int seconds) {
  Outcome outcome;
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return outcome;
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = start(command, write_end.get());
  write_end.reset();
  if (pid < 0) return outcome;
  const auto deadline = Clock::now() + std::chrono::seconds(seconds);
  if (!read_until(read_end.get(), deadline, outcome.output)) {
    outcome.timed_out = true;
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

}  // namespace nvshare::conformance
