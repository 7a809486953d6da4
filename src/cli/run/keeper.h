#pragma once

#include <chrono>
#include <functional>

#include "base/unique_fd.h"
#include "cli/run/keeper_notes.h"
#include "wire/messages.h"

namespace nvshare::cli {

// How a run gets its tenant, and gets it back.
struct Tenancy {
  // Asks for the tenant the first time: 0 and the connection, or the exit code. Tells why itself.
  std::function<int(UniqueFd& connection)> join;
  // Asks for the tenant again, and never waits. Without a connection it makes one, and asks. With
  // one it reads the answer, where that has come. True when the run has its tenant; an empty
  // connection when there is no scheduler, or the scheduler refuses.
  std::function<bool(UniqueFd& connection)> again;
  // The tenant as the run has it now, and the way to tell that to another process of the run.
  std::function<Place()> place;
  std::function<void(const Place&)> take_over;
  std::function<void(bool back)> tell;
  std::function<void(const wire::Shortage&)> tell_shortage;
  // Tells how many processes the program has left, where `nvshare run` waits for their end.
  std::function<void(int processes)> tell_left;
  // Tells that exec failed with this errno, and has the exit code.
  std::function<int(int error)> cannot_start;
};

// The process that holds a run's tenant. It is the program's parent and the subreaper of all below,
// so that the scheduler finds the run above each of them. It stays until its last child has ended.
class Keeper {
 public:
  // `signals` is of watch_signals(). With `notes` the keeper works for `nvshare run`. Without them
  // the keeper is `nvshare run`: it passes signals on, and stops with the program.
  Keeper(pid_t program, UniqueFd connection, const Tenancy& tenancy, UniqueFd signals,
         UniqueFd notes);

  // Returns when no child is left: the program's status. In `nvshare run` also when INT, TERM or
  // HUP comes after the program's end: the status of a process that this signal has ended.
  int keep();

 private:
  void wait_for_news();
  void read_signals();
  void collect();
  void changed(int status);
  void go_on();
  void read_notes();
  void read_connection();
  void join_again();
  void program_ended();
  void become_silent();
  bool anybody_left() const;
  int processes_left() const;

  pid_t program_;
  UniqueFd connection_;
  bool joined_;  // else the connection waits for the scheduler's answer
  const Tenancy& tenancy_;
  UniqueFd signals_;
  UniqueFd notes_;
  bool in_front_;
  int status_ = 0;
  bool ended_ = false;       // the program
  bool told_ended_ = false;  // and `nvshare run` knows
  bool stays_ = true;        // after the program's end, for the processes that it left
  bool told_gone_ = false;   // the scheduler
  bool was_connected_ = false;
  std::chrono::steady_clock::time_point began_at_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point tried_at_{};  // to connect again
  int stops_ = 0;
  int stopped_by_ = 0;  // a signal that this process has yet to stop by
};

}  // namespace nvshare::cli
