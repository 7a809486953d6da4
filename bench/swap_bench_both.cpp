#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "swap_bench.h"

// Two processes as at a switch: one's memory goes out while the other's comes in, with no scheduler
// in between. Each has its part of the engine, and its own context on the card.
namespace nvshare::interposer {
namespace {

void tell(int pipe, double value) {
  if (::write(pipe, &value, sizeof value) != sizeof value) fail("the other process has gone");
}

double hear(int pipe) {
  double value = 0;
  if (::read(pipe, &value, sizeof value) != sizeof value) fail("the other process has gone");
  return value;
}

// Its memory is out at first. Of every command it tells when it can begin and when it has ended.
[[noreturn]] void serve(std::uint64_t bytes, int commands, int answers) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  static gate::Gate gate;
  hear(commands);
  open_driver();
  const Pieces pieces = allocate(gate, bytes);
  give_arena(gate, pieces.bytes());
  fill(pieces, 300);
  timed_move(true, gate, pieces.bytes());
  tell(answers, 0);
  hear(commands);
  tell(answers, timed_move(false, gate, pieces.bytes()));
  check(pieces, 300);
  fill(pieces, 400);
  tell(answers, 0);
  hear(commands);
  tell(answers, timed_move(true, gate, pieces.bytes()));
  hear(commands);  // until then it is there
  std::_Exit(0);
}

}  // namespace

Neighbour::Neighbour(std::uint64_t bytes) : bytes_(bytes) {
  int commands[2];
  int answers[2];
  if (::pipe(commands) != 0 || ::pipe(answers) != 0) fail("no pipe");
  const pid_t child = ::fork();
  if (child < 0) fail("no other process");
  if (child == 0) {
    ::close(commands[1]);
    ::close(answers[0]);
    serve(bytes, commands[0], answers[1]);
  }
  ::close(commands[0]);
  ::close(answers[1]);
  ::signal(SIGPIPE, SIG_IGN);
  child_ = child;
  commands_ = commands[1];
  answers_ = answers[0];
}

Neighbour::~Neighbour() {
  ::close(commands_);
  ::waitpid(child_, nullptr, 0);
}

Both Neighbour::measure(gate::Gate& gate, std::uint64_t* arena) {
  tell(commands_, 0);
  const Pieces pieces = allocate(gate, bytes_);
  if (*arena < pieces.bytes()) give_arena(gate, pieces.bytes() - *arena);
  *arena = std::max(*arena, pieces.bytes());
  fill(pieces, 500);
  Both both;
  double longest = 0;
  for (int i = 0; i < 2; ++i) {
    hear(answers_);
    tell(commands_, 0);
    const double mine = timed_move(i == 0, gate, pieces.bytes());
    const double its = hear(answers_);
    both.out[i] = i == 0 ? mine : its;
    both.in[i] = i == 0 ? its : mine;
    longest += std::max(mine, its);
  }
  check(pieces, 500);
  tell(commands_, 0);
  both.rate = gib_per_second(4 * pieces.bytes(), longest);
  for (const CUdeviceptr address : pieces.addresses) moving::swap::swap_free(address);
  return both;
}

}  // namespace nvshare::interposer
