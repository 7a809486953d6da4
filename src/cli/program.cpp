#include "cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "base/suggest.h"

namespace nvshare::cli {
namespace {

constexpr std::string_view kProgram = "nvshare";

// nvshare itself, or a command that has commands of its own.
struct Group {
  std::string name;  // "nvshare", "nvshare lease"
  std::string_view summary;
  std::string_view more;
  const std::vector<Command>& commands;

  bool is_program() const { return name == kProgram; }
};

std::string group_help(const Group& group) {
  std::string text =
      fmt::format("usage: {0} COMMAND [options]\n\n{1}.\n\ncommands:\n", group.name, group.summary);
  std::size_t width = 0;
  for (const Command& command : group.commands) {
    if (!command.spec.hidden) width = std::max(width, command.spec.name.size());
  }
  for (const Command& command : group.commands) {
    if (command.spec.hidden) continue;
    text += fmt::format("  {:<{}}  {}\n", command.spec.name, width, command.spec.summary);
  }
  text += fmt::format(
      "\n{} help COMMAND tells more{}\n", group.name,
      group.is_program() ? fmt::format("; {} version prints the version.", kProgram) : ".");
  return group.more.empty() ? text : text + fmt::format("\n{}\n", group.more);
}

int mistake(std::ostream& err, std::string_view what, std::string_view name) {
  err << fmt::format("{0}: {1} (see {0} --help)\n", name, what);
  return kBadInput;
}

int dispatch(const Group& group, const std::vector<std::string>& given, Streams streams);

int run_command(const Group& group, const Command& command, const std::vector<std::string>& words,
                Streams streams) {
  const std::string name = fmt::format("{} {}", group.name, command.spec.name);
  if (!command.parts.empty()) {
    return dispatch({name, command.spec.summary, command.spec.more, command.parts}, words, streams);
  }
  const auto arguments = parse(command.spec, words);
  if (!arguments) return mistake(streams.err, arguments.error().message, name);
  if (arguments->has("help")) {
    streams.out << help_of(group.name, command.spec);
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

int dispatch(const Group& group, const std::vector<std::string>& given, Streams streams) {
  const std::vector<std::string> words = as_options(given);
  if (words.empty()) {
    streams.err << group_help(group);
    return kBadInput;
  }
  const std::string& first = words[0];
  if (first == "--help" || first == "-h") {
    streams.out << group_help(group);
    return kGood;
  }
  if (first == "--version") {
    streams.out << fmt::format("{} {}\n", kProgram, NVSHARE_VERSION);
    return kGood;
  }
  if (first.rfind('-', 0) == 0) return mistake(streams.err, "unknown option " + first, group.name);
  if (first == "help" || first == "version") {
    return mistake(streams.err, fmt::format("unexpected argument '{}'", words.back()), group.name);
  }
  std::vector<std::string_view> names{"help", "version"};
  for (const Command& command : group.commands) {
    if (command.spec.name == first) {
      return run_command(group, command, {words.begin() + 1, words.end()}, streams);
    }
    if (!command.spec.hidden) names.push_back(command.spec.name);
  }
  return mistake(streams.err,
                 fmt::format("unknown command '{}'{}", first, did_you_mean(first, names)),
                 group.name);
}

}  // namespace

int run_program(const std::vector<Command>& commands, const std::vector<std::string>& words,
                Streams streams) {
  const Group program{std::string(kProgram), "Several programs share one NVIDIA GPU", "", commands};
  const int code = dispatch(program, words, streams);
  // What could not be written, to a full disk say, was not done.
  if (!streams.out.flush() && code == kGood) {
    streams.err << fmt::format("{}: cannot write to standard output\n", kProgram);
    return kFailed;
  }
  return code;
}

}  // namespace nvshare::cli
