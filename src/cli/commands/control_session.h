#pragma once

#include <optional>
#include <string>

#include "cli/program.h"

namespace nvshare::cli {

// What the commands that only talk to the scheduler have in common: find it, ask, and say what went
// wrong in one line.
struct Asked {
  std::optional<std::string> json;  // the answer, when it was accepted
  int code = 0;                     // the exit code, when it was not
};
Asked ask_scheduler(std::string_view command, const std::string& request, Streams streams);

// One line to the error stream; the exit code it was given.
int complain(std::string_view command, std::string_view what, int code, Streams streams);

// Whether what is printed goes to a terminal that shows colours.
bool wants_colour();

}  // namespace nvshare::cli
