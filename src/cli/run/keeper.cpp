#include "cli/run/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cli/run/descriptors.h"
#include "cli/run/job_signals.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Milliseconds between two tries to reach the scheduler. A larger number leaves the run's programs
// longer without their tenant (Run.TakesPartAgainWhenTheSchedulerIsBack).
constexpr int kTryAgainEvery = 250;
// The same after the keeper was killed: the scheduler closes its connection within milliseconds.
constexpr int kTakeOverEvery = 20;
// How long. A larger number costs processor time where no scheduler is there
// (Keeping.WithoutItsKeeperItDoesNotLookForTheSchedulerAllTheTime).
constexpr auto kTakeOverFor = 1s;

pid_t peer_of(int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return 0;
  return peer.pid;
}

// The children of a process's first thread.
std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
  return {std::istream_iterator<pid_t>(file), {}};
}

// Processes below, without `except` and those below that one.
int count_below(pid_t pid, pid_t except) {
  int count = 0;
  for (const pid_t child : children_of(pid)) {
    if (child != except) count += 1 + count_below(child, except);
  }
  return count;
}

bool ends_the_waiting(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

}  // namespace

Keeper::Keeper(pid_t program, UniqueFd connection, const Tenancy& tenancy, UniqueFd signals,
               UniqueFd notes)
    : program_(program),
      connection_(std::move(connection)),
      joined_(connection_),
      tenancy_(tenancy),
      signals_(std::move(signals)),
      notes_(std::move(notes)),
      in_front_(!notes_) {}

int Keeper::keep() {
  if (!joined_) join_again();
  // A signal about a child may have come to `nvshare run` before it was the keeper.
  collect();
  for (;;) {
    if (!ended_ || anybody_left()) wait_for_news();
    if (ended_ && !told_ended_) program_ended();
    if (ended_ && (!stays_ || !anybody_left())) return status_;
  }
}

void Keeper::wait_for_news() {
  std::array<pollfd, 3> waiting{
      {{signals_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}, {notes_.get(), POLLIN, 0}}};
  // By the clock: children that end all the time do not put it off.
  const bool takes_over = in_front_ && !was_connected_ && Clock::now() - began_at_ < kTakeOverFor;
  const int every = takes_over ? kTakeOverEvery : kTryAgainEvery;
  const auto due = tried_at_ + std::chrono::milliseconds(every);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
  const int wait = connection_ ? -1 : static_cast<int>(std::clamp<long>(left, 0, every));
  if (::poll(waiting.data(), waiting.size(), wait) < 0 && errno != EINTR) return;
  read_signals();
  if (joined_) read_connection();
  if (notes_) read_notes();
  while (in_front_ && !ended_ && stopped_by_ != 0) {
    stop_too(std::exchange(stopped_by_, 0));
    go_on();
  }
  if (!joined_ && (connection_ || Clock::now() >= due)) join_again();
}

void Keeper::read_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      collect();
    } else if (in_front_ && told_ended_ && ends_the_waiting(signal)) {
      status_ = signal;
      stays_ = false;
    } else if (in_front_ && !ended_ && is_for_us_alone(info, program_)) {
      ::kill(program_, signal);
    }
  }
}

void Keeper::collect() {
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
    // Other children are processes that the program left behind.
    if (pid == program_ && !ended_) changed(status);
  }
}

void Keeper::changed(int status) {
  if (stops_a_job(status)) {
    ++stops_;
    if (in_front_) stopped_by_ = WSTOPSIG(status);
    if (notes_) send_note(notes_.get(), {NoteKind::Stopped, WSTOPSIG(status), stops_});
  } else if (!WIFSTOPPED(status) && !WIFCONTINUED(status)) {
    status_ = status;
    ended_ = true;
  }
}

// A shell continues the whole group. A SIGCONT for `nvshare run` alone is for the program, too.
void Keeper::go_on() {
  int status = 0;
  const pid_t pid = ::waitpid(program_, &status, WNOHANG | WUNTRACED | WCONTINUED);
  if (pid == 0) ::kill(program_, SIGCONT);
  if (pid > 0) changed(status);
}

void Keeper::read_notes() {
  Note note{};
  Heard heard;
  while ((heard = receive_note(notes_.get(), note, false)) == Heard::Note) {
    if (ended_) continue;
    if (note.kind == NoteKind::Signal) ::kill(program_, note.value);
    // After an older stop than the present one there is nothing to continue.
    if (note.kind == NoteKind::Continue && note.number == stops_) go_on();
  }
  // `nvshare run` was killed: the program runs on, in its tenant.
  if (heard == Heard::Closed) notes_.reset();
}

void Keeper::read_connection() {
  alignas(8) char packet[wire::kMaxMessage];
  int length;
  while ((length = wire::receive(connection_.get(), packet, false)) > 0 || length == -EMSGSIZE) {
    const auto* header =
        length > 0 ? wire::look_at(packet, static_cast<std::size_t>(length)) : nullptr;
    if (const auto* shortage = wire::as<wire::Shortage>(header))
      tenancy_.tell_shortage(wire::whole(*shortage));
  }
  if (length == -EAGAIN) return;
  connection_.reset();
  joined_ = false;
  tenancy_.tell(false);
  told_gone_ = true;
}

// Never waits for the scheduler, because signals and the program's end must not wait for it.
void Keeper::join_again() {
  if (!connection_) tried_at_ = Clock::now();
  joined_ = tenancy_.again(connection_);
  if (!joined_) return;
  was_connected_ = true;
  if (notes_) send_note(notes_.get(), {NoteKind::Ready, 0, 0, tenancy_.place()});
  if (told_gone_) tenancy_.tell(true);
  told_gone_ = false;
}

void Keeper::program_ended() {
  told_ended_ = true;
  // The scheduler's words before the program's end are there by the time the end is heard of.
  if (joined_) read_connection();
  if (in_front_) {
    if (anybody_left()) tenancy_.tell_left(processes_left());
    return;
  }
  stays_ = anybody_left();
  // The name is free before `nvshare run` ends: the next run may want it.
  if (!stays_) connection_.reset();
  if (stays_) become_silent();
  send_note(notes_.get(), {NoteKind::Ended, status_, stays_ ? 1 : 0});
  notes_.reset();
}

// Lets go of everything that others wait for: the pipe of `$(nvshare run ...)`, a lock and a mount.
void Keeper::become_silent() {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), fd);
  close_all_but({connection_.get(), signals_.get(), notes_.get()});
  [[maybe_unused]] const int moved = ::chdir("/");
  ::prctl(PR_SET_NAME, "nvshare-keeper");
}

// A private scheduler that a process below started becomes a child of the keeper. That child does
// not count: it stays until the keeper has ended, so the two would wait for each other.
bool Keeper::anybody_left() const {
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return false;
  const pid_t scheduler = connection_ ? peer_of(connection_.get()) : 0;
  if (scheduler <= 0) return true;
  const auto children = children_of(::getpid());
  return children != std::vector{scheduler};
}

int Keeper::processes_left() const {
  return count_below(::getpid(), connection_ ? peer_of(connection_.get()) : 0);
}

}  // namespace nvshare::cli
