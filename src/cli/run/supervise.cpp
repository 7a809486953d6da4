#include "cli/run/supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "wire/channel.h"

namespace nvshare::cli {
namespace {

// Signals that a program may expect to get. Stop signals that the terminal sends to the whole group
// are among them so that this process does not stop before the program did.
constexpr std::array kWatched{SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                              SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD};
constexpr int kTryAgainEvery = 250;  // milliseconds

sigset_t only(int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  return set;
}

// How signals were before; the program gets them back.
struct Signals {
  sigset_t mask;
  struct sigaction child;
  struct sigaction pipe;
};

Signals watch_signals() {
  Signals before{};
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int signal : kWatched) ::sigaddset(&watched, signal);
  ::sigprocmask(SIG_BLOCK, &watched, &before.mask);
  // An inherited SIG_IGN would have the kernel collect the children, and their ends with them.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &usual, &before.child);
  // Whoever reads what this process tells may go before the program ends.
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, &before.pipe);
  return before;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

// The child's pid, or a negative errno of exec. Nothing is allocated between fork and exec.
pid_t start(const Launch& launch, const Signals& before) {
  const auto arguments = pointers(launch.words);
  const auto environment = pointers(launch.environment);
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return -errno;
  UniqueFd failure(pair[0]);
  UniqueFd fails(pair[1]);
  const pid_t child = ::fork();
  if (child < 0) return -errno;
  if (child == 0) {
    ::sigaction(SIGCHLD, &before.child, nullptr);
    ::sigaction(SIGPIPE, &before.pipe, nullptr);
    ::sigprocmask(SIG_SETMASK, &before.mask, nullptr);
    ::execvpe(arguments[0], arguments.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const auto told = ::write(fails.get(), &error, sizeof error);
    ::_exit(127);
  }
  fails.reset();
  int error = 0;
  ssize_t got;
  do {
    got = ::read(failure.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof error) return child;
  ::waitpid(child, nullptr, 0);
  return -error;
}

// Stops this process as the program was stopped, so that a shell sees its job stop. Comes back when
// somebody continues it.
void stop_too(int signal) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
  const sigset_t set = only(signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  // What continued it is done with.
  const sigset_t continued = only(SIGCONT);
  const timespec at_once{0, 0};
  while (::sigtimedwait(&continued, nullptr, &at_once) == SIGCONT) {
  }
}

// What a shell with job control stops its jobs with. SIGSTOP is meant for one process alone, and
// whoever sent it continues that one alone.
bool stops_a_job(int status) {
  if (!WIFSTOPPED(status)) return false;
  const int signal = WSTOPSIG(status);
  return signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

class Supervisor {
 public:
  Supervisor(pid_t child, TenantConnection connection, int signals)
      : child_(child), connection_(std::move(connection)), signals_(signals) {}

  int wait_for_end() {
    while (!ended_) {
      std::array<pollfd, 2> waiting{{{signals_, POLLIN, 0}, {connection_.socket.get(), POLLIN, 0}}};
      const int ready =
          ::poll(waiting.data(), waiting.size(), connection_.socket ? -1 : kTryAgainEvery);
      if (ready < 0) continue;
      if (waiting[0].revents != 0) read_signals();
      // After the signals, and in any case: what the scheduler said before the program ended, it
      // said before the end was heard of.
      if (connection_.socket) read_connection();
      if (!connection_.socket && ready == 0) connect_again();
    }
    return status_;
  }

 private:
  void read_signals() {
    signalfd_siginfo info;
    while (!ended_ && ::read(signals_, &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) {
        collect();
      } else if (is_for_us_alone(info)) {
        ::kill(child_, signal);
      }
    }
  }

  // What the terminal sends, the kernel sends to the whole group, and the program has it already;
  // so has it what it sent to its group itself. But when a terminal hangs up, the kernel tells the
  // leader of its session only, and continues it.
  bool is_for_us_alone(const signalfd_siginfo& info) const {
    if (info.ssi_code <= 0) return static_cast<pid_t>(info.ssi_pid) != child_;
    return (info.ssi_signo == SIGHUP || info.ssi_signo == SIGCONT) && ::getsid(0) == ::getpid();
  }

  void collect() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
      if (pid != child_) continue;  // somebody that the program left behind
      if (stops_a_job(status))
        stop_until_continued(status);
      else if (!WIFSTOPPED(status))
        end(status);
      if (ended_) return;
    }
  }

  void end(int status) {
    status_ = status;
    ended_ = true;
  }

  // A shell continues the whole group; whoever continues this process alone means the program too.
  void stop_until_continued(int status) {
    while (stops_a_job(status)) {
      stop_too(WSTOPSIG(status));
      const pid_t pid = ::waitpid(child_, &status, WNOHANG | WUNTRACED | WCONTINUED);
      if (pid == 0) ::kill(child_, SIGCONT);
      if (pid <= 0 || WIFCONTINUED(status)) return;
    }
    if (!WIFSTOPPED(status)) end(status);
  }

  void read_connection() {
    alignas(8) char packet[wire::kMaxMessage];
    int length;
    while ((length = wire::receive(connection_.socket.get(), packet, false)) > 0 ||
           length == -EMSGSIZE) {
      const auto* header =
          length > 0 ? wire::look_at(packet, static_cast<std::size_t>(length)) : nullptr;
      if (const auto* shortage = wire::as<wire::Shortage>(header)) {
        connection_.tell_shortage(*shortage);
      }
    }
    if (length == -EAGAIN) return;
    connection_.socket.reset();
    connection_.tell(false);
  }

  void connect_again() {
    connection_.socket = connection_.again();
    if (connection_.socket) connection_.tell(true);
  }

  pid_t child_;
  TenantConnection connection_;
  int signals_;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace

Ending supervise(const Launch& launch, TenantConnection connection) {
  // So that processes which the program leaves behind stay below this one, and so in their tenant.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Signals before = watch_signals();
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int signal : kWatched) ::sigaddset(&watched, signal);
  UniqueFd signals(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return {errno, 0};
  const pid_t child = start(launch, before);
  if (child < 0) return {-child, 0};
  return {0, Supervisor(child, std::move(connection), signals.get()).wait_for_end()};
}

int end_like(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  // The program has left its core, where it was to leave one; this process's is of no use.
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_DUMPABLE, 0);
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
  const sigset_t set = only(signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  return 128 + signal;
}

}  // namespace nvshare::cli
