#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nvshare::config {

// "--policy P", "-o FILE", or with no `value` a flag.
struct Option {
  std::string_view name;   // without the dashes
  char letter = 0;         // the short form; 0: none
  std::string_view value;  // what stands for the value in the help; empty: a flag
  std::string_view help;
};

struct Positional {
  std::string_view name;
  std::string_view help;
  bool required = true;
};

// What a command takes, from which its arguments are parsed and its help is written.
struct CommandSpec {
  std::string_view name;     // empty: the program has no commands
  std::string_view summary;  // one line
  std::vector<Positional> positionals;
  std::vector<Option> options;
  std::string_view more;  // examples and the like, at the end of the help
  // Everything from the first positional argument on is taken as it stands and may be of any
  // number: `run -- PROGRAM ARGS`.
  bool takes_program = false;
  // For nvshare itself: not listed, not suggested.
  bool hidden = false;
};

// What was given, checked against the spec. Names are those of the spec.
class Arguments {
 public:
  bool has(std::string_view option) const { return options_.contains(std::string(option)); }
  // The last one counts. Nothing when it was not given.
  std::optional<std::string> value(std::string_view option) const;
  // All of them, in their order: for an option that may be given several times.
  std::vector<std::string> values(std::string_view option) const;
  const std::vector<std::string>& positionals() const { return positionals_; }

 private:
  friend Result<Arguments> parse(const CommandSpec& spec, const std::vector<std::string>& words);
  std::map<std::string, std::vector<std::string>> options_;
  std::vector<std::string> positionals_;
};

// Understands --flag, --option VALUE, --option=VALUE, -o VALUE, -oVALUE, and -- after which nothing
// is an option. `--help` is always there and makes everything else optional. An error is one line.
Result<Arguments> parse(const CommandSpec& spec, const std::vector<std::string>& words);

std::string help_of(std::string_view program, const CommandSpec& spec);

}  // namespace nvshare::config
