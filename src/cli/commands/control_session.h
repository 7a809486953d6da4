#pragma once

#include <optional>
#include <string>

#include "cli/program.h"
#include "cli/show/terminal_frame.h"
#include "cli/talk/http_client.h"

namespace nvshare::cli {

// What the commands that only talk to the scheduler have in common: find it, ask, and say what went
// wrong in one line.
struct Asked {
  std::optional<std::string> json;  // the answer, when it was accepted
  int code = 0;                     // the exit code, when it was not
};
Asked ask_scheduler(std::string_view command, const std::string& request, Streams streams);

// The same over HTTP: the body of an answer that grants what was asked for.
Asked ask_api(std::string_view command, const HttpRequest& request, Streams streams);
// The exit code for the status of an answer that does not.
int exit_code_of_status(int status);

// One line to the error stream; the exit code it was given.
int complain(std::string_view command, std::string_view what, int code, Streams streams);

// Nothing where standard output is no terminal, or one that can only be written to.
std::optional<TerminalSize> terminal_size();
// Whether what is printed goes to a terminal that shows colours.
bool wants_colour();

}  // namespace nvshare::cli
