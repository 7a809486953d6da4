#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "config/options.h"

namespace nvshare::cli {

using config::Arguments;
using config::CommandSpec;
using config::Option;
using config::Positional;

// kTryAgain is EX_TEMPFAIL of sysexits.h: there is no lease now.
enum ExitCode { kGood = 0, kFailed = 1, kBadInput = 2, kTryAgain = 75 };

// Where a command writes: what was asked for, and what went wrong.
struct Streams {
  std::ostream& out;
  std::ostream& err;
};

struct Command {
  CommandSpec spec;
  // Given arguments that fit the spec. Answers an ExitCode.
  int (*run)(const Arguments& arguments, Streams streams);
  // Commands of its own, as `nvshare lease list` has them. Such a command needs no `run`, and its
  // spec has no more than a name and texts.
  std::vector<Command> parts{};
};

// The program without its process: finds the command, parses its arguments, runs it. Answers
// `--help` and `--version`, also without the dashes, and every mistake in one line with exit
// code 2.
int run_program(const std::vector<Command>& commands, const std::vector<std::string>& words,
                Streams streams);

}  // namespace nvshare::cli
