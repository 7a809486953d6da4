#include "cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "base/suggest.h"

namespace nvshare::cli {
namespace {

constexpr std::string_view kProgram = "nvshare";

std::string program_help(const std::vector<Command>& commands) {
  std::string text = fmt::format(
      "usage: {0} COMMAND [options]\n\n"
      "Several programs share one NVIDIA GPU.\n\ncommands:\n",
      kProgram);
  std::size_t width = 0;
  for (const Command& command : commands) {
    if (!command.spec.hidden) width = std::max(width, command.spec.name.size());
  }
  for (const Command& command : commands) {
    if (command.spec.hidden) continue;
    text += fmt::format("  {:<{}}  {}\n", command.spec.name, width, command.spec.summary);
  }
  text += fmt::format("\n{0} help COMMAND tells more; {0} version prints the version.\n", kProgram);
  return text;
}

int mistake(std::ostream& err, std::string_view what, std::string_view command = "") {
  const std::string space = command.empty() ? "" : " ";
  err << fmt::format("{0}{1}{2}: {3} (see {0}{1}{2} --help)\n", kProgram, space, command, what);
  return kBadInput;
}

int run_command(const Command& command, const std::vector<std::string>& words, Streams streams) {
  const auto arguments = parse(command.spec, words);
  if (!arguments) return mistake(streams.err, arguments.error().message, command.spec.name);
  if (arguments->has("help")) {
    streams.out << help_of(kProgram, command.spec);
    return kGood;
  }
  return command.run(*arguments, streams);
}

// `help`, `help COMMAND` and `version`, which people try first, as options; anything else as it is.
std::vector<std::string> as_options(const std::vector<std::string>& words) {
  const auto is_ours = [](const std::string& word) { return word == "help" || word == "version"; };
  if (words.empty() || !is_ours(words[0])) return words;
  if (words.size() == 1) return {"--" + words[0]};
  if (words.size() > 2 || words[0] == "version") return words;
  return is_ours(words[1]) ? std::vector<std::string>{"--help"}
                           : std::vector<std::string>{words[1], "--help"};
}

int dispatch(const std::vector<Command>& commands, const std::vector<std::string>& words,
             Streams streams) {
  if (words.empty()) {
    streams.err << program_help(commands);
    return kBadInput;
  }
  const std::string& first = words[0];
  if (first == "--help" || first == "-h") {
    streams.out << program_help(commands);
    return kGood;
  }
  if (first == "--version") {
    streams.out << fmt::format("{} {}\n", kProgram, NVSHARE_VERSION);
    return kGood;
  }
  if (first.rfind('-', 0) == 0) return mistake(streams.err, "unknown option " + first);
  if (first == "help" || first == "version") {
    return mistake(streams.err, fmt::format("unexpected argument '{}'", words.back()));
  }
  std::vector<std::string_view> names{"help", "version"};
  for (const Command& command : commands) {
    if (command.spec.name == first) {
      return run_command(command, {words.begin() + 1, words.end()}, streams);
    }
    if (!command.spec.hidden) names.push_back(command.spec.name);
  }
  return mistake(streams.err,
                 fmt::format("unknown command '{}'{}", first, did_you_mean(first, names)));
}

}  // namespace

int run_program(const std::vector<Command>& commands, const std::vector<std::string>& words,
                Streams streams) {
  const int code = dispatch(commands, as_options(words), streams);
  // What could not be written, to a full disk say, was not done.
  if (!streams.out.flush() && code == kGood) {
    streams.err << fmt::format("{}: cannot write to standard output\n", kProgram);
    return kFailed;
  }
  return code;
}

}  // namespace nvshare::cli
