#include "cli/run/supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace nvshare::cli {
namespace {

// Takes the keeper out of the program's session. The kernel takes a parent in the same session, but
// in another group, for a shell: Ctrl-Z would stop a program that no shell can continue. The keeper
// needs another group, because the program's `kill -9 0` must not reach the keeper.
void leave_session(pid_t program, int signals) {
  ::setsid();
  // Signals of the terminal from before the fork did not reach the program. A signal that reached
  // both comes once all the same, because the program still blocks signals.
  signalfd_siginfo info;
  while (::read(signals, &info, sizeof info) == sizeof info) {
    const auto signal = static_cast<int>(info.ssi_signo);
    if (info.ssi_code > 0 && signal != SIGCHLD) ::kill(program, signal);
  }
}

// In the keeper: everything until its end. The exit code means something only when the program was
// not started.
int be_keeper(const Launch& launch, const Tenancy& tenancy, const InheritedSignals& before,
              UniqueFd notes) {
  UniqueFd connection;
  // A private scheduler is started here. It must not become a child of the run, so nobody is a
  // subreaper yet.
  if (const int code = tenancy.join(connection); code != 0) return code;
  // Before `nvshare run` blocks signals. A Ctrl-Z that stops the keeper alone would hang the job,
  // because the shell does not hear of the stop.
  UniqueFd signals = watch_signals();
  if (!signals) return tenancy.cannot_start(errno);
  send_note(notes.get(), {NoteKind::Ready, 0, 0, tenancy.place()});
  Note go{};
  // `nvshare run` was ended by a signal meanwhile: nothing is started.
  if (receive_note(notes.get(), go, true) != Heard::Note) return 1;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t program = start_program(launch, before, [&](pid_t pid) {
    leave_session(pid, signals.get());
    send_note(notes.get(), {NoteKind::Started, pid});
  });
  if (program < 0) return tenancy.cannot_start(-program);
  Keeper(program, std::move(connection), tenancy, std::move(signals), std::move(notes)).keep();
  return 0;
}

// Fills the places of standard input, output and error where the caller has closed them. A socket
// there would be lost when the keeper becomes silent. The program finds them closed, as without us.
void fill_standard_descriptors() {
  UniqueFd last;
  do {
    (void)last.release();
    last.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
  } while (last && last.get() <= STDERR_FILENO);
}

int collect(pid_t keeper) {
  int status = 0;
  while (::waitpid(keeper, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// `nvshare run` itself, while its keeper has the program.
class Front {
 public:
  Front(pid_t keeper, const Tenancy& tenancy, UniqueFd notes)
      : keeper_(keeper), tenancy_(tenancy), notes_(std::move(notes)) {}

  // The exit code, or the end by a signal.
  int stand() {
    Note ready{};
    // The keeper has told why.
    if (receive_note(notes_.get(), ready, true) != Heard::Note) return end_like(collect(keeper_));
    tenancy_.take_over(ready.place);
    // From here on signals are the program's. Before, they end this process as any other.
    signals_ = watch_signals();
    if (!signals_) return tenancy_.cannot_start(errno);
    // Whatever the keeper leaves behind when it is killed becomes a child of this process.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    collect_orphans();  // whose signals came before
    send_note(notes_.get(), {NoteKind::Go});
    while (!ended_) {
      // Signals wait until there is a program to pass them on to.
      const int signals = program_ > 0 ? signals_.get() : -1;
      std::array<pollfd, 2> waiting{{{signals, POLLIN, 0}, {notes_.get(), POLLIN, 0}}};
      if (::poll(waiting.data(), waiting.size(), -1) < 0) continue;
      if (program_ > 0) pass_signals_on();
      if (!read_notes()) return without_keeper();
    }
    return end_like(status_);
  }

 private:
  // Collects children that are neither the keeper nor the program: of the process that became
  // `nvshare run` by exec, and orphans where this is process 1 of a container. Else each of them
  // stays a zombie until this process ends.
  void collect_orphans() const {
    for (;;) {
      siginfo_t ended{};
      if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0) return;
      const pid_t pid = ended.si_pid;
      if (pid == 0 || pid == keeper_ || pid == program_) return;
      ::waitpid(pid, nullptr, 0);
    }
  }

  void pass_signals_on() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) collect_orphans();
      if (info.ssi_signo == SIGCHLD || !is_for_us_alone(info, program_)) continue;
      send_note(notes_.get(), {NoteKind::Signal, static_cast<int>(info.ssi_signo)});
    }
  }

  // False when the keeper is gone. Stops only behind the last note, because a shell does not
  // continue a program that has ended.
  bool read_notes() {
    Note note{};
    Note stopped{};  // value is 0: there is no such note
    Heard heard;
    while ((heard = receive_note(notes_.get(), note, false)) == Heard::Note) {
      if (note.kind == NoteKind::Started) program_ = note.value;
      if (note.kind == NoteKind::Ready) tenancy_.take_over(note.place);
      if (note.kind == NoteKind::Stopped) stopped = note;
      if (note.kind == NoteKind::Ended) {
        status_ = note.value;
        ended_ = true;
        // Where nobody else collects orphans, as in many containers, the keeper must not be one.
        if (note.number == 0) collect(keeper_);
        return true;
      }
    }
    if (stopped.value != 0) {
      stop_too(stopped.value);
      send_note(notes_.get(), {NoteKind::Continue, 0, stopped.number});
    }
    return heard == Heard::Nothing;
  }

  // The keeper ends by itself only where the program could not be started. A killed keeper leaves
  // the program to this process, which then is the keeper. It stays until the last process of the
  // run has ended: processes cannot be given to a new keeper.
  int without_keeper() {
    const int status = collect(keeper_);
    siginfo_t program{};
    const bool is_ours = program_ > 0 && ::waitid(P_PID, static_cast<id_t>(program_), &program,
                                                  WEXITED | WNOHANG | WNOWAIT) == 0;
    if (!WIFSIGNALED(status) || !is_ours) return end_like(status);
    return end_like(Keeper(program_, UniqueFd(), tenancy_, std::move(signals_), UniqueFd()).keep());
  }

  pid_t keeper_;
  const Tenancy& tenancy_;
  UniqueFd notes_;
  UniqueFd signals_;
  pid_t program_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace

int supervise(const Launch& launch, const Tenancy& tenancy) {
  fill_standard_descriptors();
  const InheritedSignals before = prepare_signals();
  NotePair notes = make_note_pair();
  if (!notes.run) return tenancy.cannot_start(errno);
  const pid_t keeper = ::fork();
  if (keeper < 0) return tenancy.cannot_start(errno);
  if (keeper == 0) {
    notes.run.reset();
    ::_exit(be_keeper(launch, tenancy, before, std::move(notes.keeper)));
  }
  notes.keeper.reset();
  return Front(keeper, tenancy, std::move(notes.run)).stand();
}

}  // namespace nvshare::cli
