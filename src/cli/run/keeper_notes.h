#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/uuid.h"
#include "wire/messages.h"

// What `nvshare run` and its keeper say to each other, over a pair of sockets.
namespace nvshare::cli {

enum class NoteKind : std::int32_t {
  Ready,     // keeper: the run has its tenant, as `place` says
  Go,        // run: the program may start
  Started,   // keeper: value is the program's pid
  Signal,    // run: the program is to get the signal `value`
  Stopped,   // keeper: the signal `value` stopped the program; number counts the stops
  Continue,  // run: continued after the stop `number`
  Ended,     // keeper: value is the program's status; number is 0 when the keeper ends, too
};

// The name of a run's tenant, and the GPUs that the run's programs see. `nvshare run` asks for this
// tenant again when the keeper is killed, because the keeper alone heard the scheduler's answer.
struct Place {
  char name[wire::kNameLength] = {};
  std::uint32_t gpu_count = 0;
  std::array<Uuid, wire::kMostRunGpus> gpus{};
};

Place make_place(const std::string& name, const std::vector<Uuid>& gpus);
std::string name_in(const Place& place);
std::vector<Uuid> gpus_in(const Place& place);

struct Note {
  NoteKind kind;
  std::int32_t value = 0;
  std::int32_t number = 0;
  Place place{};
};

struct NotePair {
  UniqueFd run;
  UniqueFd keeper;
};

// Both are empty on an error (errno). The program does not inherit them.
NotePair make_note_pair();

// Never waits, and never raises SIGPIPE: a note to a process that does not read is lost.
void send_note(int socket, const Note& note);

enum class Heard { Note, Nothing, Closed };

// Takes the next note; waits for one where `wait` is true.
Heard receive_note(int socket, Note& note, bool wait);

}  // namespace nvshare::cli
