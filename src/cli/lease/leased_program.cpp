#include "cli/lease/leased_program.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "cli/run/job_signals.h"
#include "cli/run/start_program.h"

namespace nvshare::cli {
namespace {

using Clock = HeldLease::Clock;

// poll takes no more than an int of milliseconds.
constexpr Duration kLongestPoll = 1h;

class Runner {
 public:
  Runner(const LeasedProgram& program, HeldLease& lease) : program_(program), lease_(lease) {}

  LeasedEnd run() {
    const InheritedSignals before = prepare_signals();
    // Ctrl-Z stops this process as it stops the program.
    signals_ = watch_signals(StopSignals::Usual);
    const Launch launch{program_.words, [this] { return program_.environment; }, true};
    pid_ = signals_ ? start_program(launch, before, [](pid_t) {}) : -errno;
    if (pid_ < 0) end_.error = -pid_;
    while (end_.error == 0 && !ended_) wait_for_news();
    lease_.release();
    return end_;
  }

 private:
  void wait_for_news() {
    std::array<pollfd, 2> waiting{{{signals_.get(), POLLIN, 0}, {-1, 0, 0}}};
    int patience = -1;
    if (!end_.taken_away) {
      waiting[1] = lease_.waiting();
      const auto left = std::clamp<Duration>(lease_.due() - Clock::now(), 0ns, kLongestPoll);
      patience = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
    }
    if (::poll(waiting.data(), waiting.size(), patience) < 0 && errno != EINTR) return;
    read_signals();
    if (!ended_ && !end_.taken_away) look_after_lease();
  }

  void read_signals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) collect();
      if (signal != SIGCHLD && !ended_ && is_for_us_alone(info, pid_)) ::kill(pid_, signal);
    }
  }

  // Other children are those of the process that became `nvshare lease run` by exec.
  void collect() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != pid_) continue;
      end_.status = status;
      ended_ = true;
    }
  }

  void look_after_lease() {
    switch (lease_.look(Clock::now())) {
      case HeldLease::News::None:
        return;
      case HeldLease::News::Unrenewed:
        return program_.tell(
            fmt::format("the lease is not renewed: {}; asking again", lease_.why()));
      case HeldLease::News::Renewed:
        return program_.tell("the lease is renewed again");
      case HeldLease::News::Gone:
        program_.tell(fmt::format("the lease was taken away: {}; ending {}", lease_.why(),
                                  program_.words[0]));
        end_.taken_away = true;
        ::kill(pid_, SIGTERM);
        ::kill(pid_, SIGCONT);  // a stopped program would not hear of it
    }
  }

  const LeasedProgram& program_;
  HeldLease& lease_;
  UniqueFd signals_;
  pid_t pid_ = 0;
  bool ended_ = false;
  LeasedEnd end_;
};

}  // namespace

LeasedEnd run_leased(const LeasedProgram& program, HeldLease& lease) {
  return Runner(program, lease).run();
}

}  // namespace nvshare::cli
