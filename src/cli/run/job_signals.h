#pragma once

#include <sys/signalfd.h>
#include <sys/types.h>

#include <csignal>

#include "base/unique_fd.h"

namespace nvshare::cli {

// The signals of `nvshare run` as its parent left them. The program gets them back.
struct InheritedSignals {
  sigset_t mask;
  struct sigaction child;
  struct sigaction pipe;
};

// Notes them, and makes children wait to be collected. No signal is blocked yet.
InheritedSignals prepare_signals();

// Gives them back: between fork and exec.
void restore_signals(const InheritedSignals& before);

// The signals with which a terminal stops its jobs: they are watched, or stop this process as
// they stop the program.
enum class StopSignals { Watched, Usual };

// Blocks every signal that a program may expect, and SIGCHLD. They are read from the descriptor,
// which is empty on an error (errno).
UniqueFd watch_signals(StopSignals stops = StopSignals::Watched);

// Whether a signal that this process read did not reach the program by itself.
bool is_for_us_alone(const signalfd_siginfo& info, pid_t program);

// Whether a status of waitpid says: stopped by a signal with which shells stop their jobs. SIGSTOP
// is none of them: its sender continues the program alone.
bool stops_a_job(int status);

// Stops this process by `signal`, so that a shell sees its job stop. Returns after a SIGCONT.
void stop_too(int signal);

// Ends this process as another one ended: the exit code to return, or the same signal.
int end_like(int status);

}  // namespace nvshare::cli
