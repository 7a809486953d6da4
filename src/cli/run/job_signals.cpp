#include "cli/run/job_signals.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace nvshare::cli {
namespace {

// Signals that a program may expect to get.
constexpr std::array kWatched{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD};
// The terminal sends these to the whole group. `nvshare run` watches them so that it does not stop
// before the program did.
constexpr std::array kStopping{SIGTSTP, SIGTTIN, SIGTTOU};

sigset_t only(int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  return set;
}

void have_usual_action(int signal) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
}

}  // namespace

InheritedSignals prepare_signals() {
  InheritedSignals before{};
  ::sigprocmask(SIG_BLOCK, nullptr, &before.mask);
  // An inherited SIG_IGN would have the kernel collect the children, and their ends with them.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &usual, &before.child);
  // The reader of standard error may go before the program ends.
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, &before.pipe);
  return before;
}

void restore_signals(const InheritedSignals& before) {
  ::sigaction(SIGCHLD, &before.child, nullptr);
  ::sigaction(SIGPIPE, &before.pipe, nullptr);
  ::sigprocmask(SIG_SETMASK, &before.mask, nullptr);
}

UniqueFd watch_signals(StopSignals stops) {
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int signal : kWatched) ::sigaddset(&watched, signal);
  if (stops == StopSignals::Watched) {
    for (const int signal : kStopping) ::sigaddset(&watched, signal);
  }
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  return UniqueFd(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
}

// The kernel sends the terminal's signals to the whole group, so the program has them already. The
// program also has what it sent to its group itself. But when a terminal hangs up, the kernel tells
// only the leader of its session, and continues it.
bool is_for_us_alone(const signalfd_siginfo& info, pid_t program) {
  if (info.ssi_code <= 0) return static_cast<pid_t>(info.ssi_pid) != program;
  return (info.ssi_signo == SIGHUP || info.ssi_signo == SIGCONT) && ::getsid(0) == ::getpid();
}

bool stops_a_job(int status) {
  if (!WIFSTOPPED(status)) return false;
  const int signal = WSTOPSIG(status);
  return std::find(kStopping.begin(), kStopping.end(), signal) != kStopping.end();
}

void stop_too(int signal) {
  have_usual_action(signal);
  const sigset_t set = only(signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  // The SIGCONT that continued this process is done with.
  const sigset_t continued = only(SIGCONT);
  const timespec at_once{0, 0};
  while (::sigtimedwait(&continued, nullptr, &at_once) == SIGCONT) {
  }
}

int end_like(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  // The program has left its core, where it was to leave one; this process's is of no use.
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_DUMPABLE, 0);
  have_usual_action(signal);
  const sigset_t set = only(signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  return 128 + signal;
}

}  // namespace nvshare::cli
