#include "cli/run/start_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace nvshare::cli {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

struct Pipe {
  UniqueFd reading;
  UniqueFd writing;
};

bool open_pipe(Pipe& both) {
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return false;
  both.reading.reset(pair[0]);
  both.writing.reset(pair[1]);
  return true;
}

// False when the other end is closed.
bool read_all(int fd, void* value, std::size_t size) {
  ssize_t got;
  do {
    got = ::read(fd, value, size);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(size);
}

// Milliseconds between two looks at a child that has not called exec. A larger number leaves a
// terminal longer without its shell after a Ctrl-Z before exec.
constexpr int kLookEvery = 50;

// 0 when the child has called exec, else exec's errno. Also 0 for a child that a signal stopped
// before exec, because the shell continues the child only when it hears of the stop.
int error_of_exec(pid_t child, int failure) {
  pollfd waiting{failure, POLLIN, 0};
  while (::poll(&waiting, 1, kLookEvery) <= 0) {
    siginfo_t stopped{};
    ::waitid(P_PID, static_cast<id_t>(child), &stopped, WSTOPPED | WNOHANG | WNOWAIT);
    if (stopped.si_pid == child) return 0;
  }
  int error = 0;
  return read_all(failure, &error, sizeof error) ? error : 0;
}

}  // namespace

// Nothing is allocated between fork and exec.
pid_t start_program(const Launch& launch, const InheritedSignals& before,
                    const std::function<void(pid_t)>& forked) {
  const auto arguments = pointers(launch.words);
  const std::vector<std::string> variables = launch.environment();
  const auto environment = pointers(variables);
  Pipe failure;
  Pipe gate;
  if (!open_pipe(failure) || !open_pipe(gate)) return -errno;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return -errno;
  if (child == 0) {
    if (launch.ends_with_parent) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    // The parent may have ended before it was asked for.
    if (launch.ends_with_parent && ::getppid() != parent) ::_exit(127);
    gate.writing.reset();
    char open;
    // The parent was killed before the program began: then there is no program.
    if (!read_all(gate.reading.get(), &open, 1)) ::_exit(127);
    restore_signals(before);
    ::execvpe(arguments[0], arguments.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const auto told = ::write(failure.writing.get(), &error, sizeof error);
    ::_exit(127);
  }
  forked(child);
  failure.writing.reset();
  [[maybe_unused]] const auto opened = ::write(gate.writing.get(), "", 1);
  const int error = error_of_exec(child, failure.reading.get());
  if (error == 0) return child;
  ::waitpid(child, nullptr, 0);
  return -error;
}

int become_program(const std::vector<std::string>& words,
                   const std::vector<std::string>& environment) {
  const auto arguments = pointers(words);
  const auto variables = pointers(environment);
  ::execvpe(arguments[0], arguments.data(), variables.data());
  return errno;
}

}  // namespace nvshare::cli
