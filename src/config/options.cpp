#include "config/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/suggest.h"

namespace nvshare::config {
namespace {

constexpr Option kHelp{"help", 'h', "", "this text"};

std::vector<Option> options_of(const CommandSpec& spec) {
  std::vector<Option> all = spec.options;
  all.push_back(kHelp);
  return all;
}

// A word of the command line that begins with a dash: which option, and the value stuck to it.
struct Named {
  Option option;
  std::optional<std::string> value;
};

Result<Named> named_long(const std::vector<Option>& known, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(2, equals == word.npos ? word.npos : equals - 2);
  const auto at = std::find_if(known.begin(), known.end(),
                               [&](const Option& option) { return option.name == name; });
  if (at == known.end()) {
    std::vector<std::string> dashed;
    for (const Option& option : known) dashed.push_back(fmt::format("--{}", option.name));
    const std::string given = fmt::format("--{}", name);
    const std::vector<std::string_view> candidates(dashed.begin(), dashed.end());
    return Error{fmt::format("unknown option {}{}", given, did_you_mean(given, candidates))};
  }
  if (equals == word.npos) return Named{*at, std::nullopt};
  if (at->value.empty()) return Error{fmt::format("--{} takes no value", at->name)};
  return Named{*at, std::string(word.substr(equals + 1))};
}

Result<Named> named_short(const std::vector<Option>& known, std::string_view word) {
  const auto at = std::find_if(known.begin(), known.end(), [&](const Option& option) {
    return option.letter != 0 && option.letter == word[1];
  });
  if (at == known.end()) return Error{fmt::format("unknown option -{}", word[1])};
  if (word.size() == 2) return Named{*at, std::nullopt};
  if (at->value.empty()) return Error{fmt::format("-{} takes no value", word[1])};
  return Named{*at, std::string(word.substr(2))};
}

Result<void> check_count(const CommandSpec& spec, const std::vector<std::string>& given) {
  for (std::size_t i = given.size(); i < spec.positionals.size(); ++i) {
    if (spec.positionals[i].required) {
      return Error{fmt::format("{} is missing", spec.positionals[i].name)};
    }
  }
  if (given.size() > spec.positionals.size() && !spec.takes_program) {
    return Error{fmt::format("unexpected argument '{}'", given[spec.positionals.size()])};
  }
  return {};
}

std::string left_side(const Option& option) {
  std::string text = option.letter != 0 ? fmt::format("-{}, ", option.letter) : "    ";
  text += fmt::format("--{}", option.name);
  if (!option.value.empty()) text += fmt::format(" {}", option.value);
  return text;
}

std::string usage(std::string_view program, const CommandSpec& spec) {
  std::string text = fmt::format("usage: {}", program);
  if (!spec.name.empty()) text += fmt::format(" {}", spec.name);
  text += " [options]";
  if (spec.takes_program) text += " [--]";
  for (const Positional& one : spec.positionals) {
    text += one.required ? fmt::format(" {}", one.name) : fmt::format(" [{}]", one.name);
  }
  return text + (spec.takes_program ? " [ARGS...]" : "");
}

}  // namespace

std::optional<std::string> Arguments::value(std::string_view option) const {
  const auto at = options_.find(std::string(option));
  return at == options_.end() ? std::nullopt : std::optional(at->second.back());
}

std::vector<std::string> Arguments::values(std::string_view option) const {
  const auto at = options_.find(std::string(option));
  return at == options_.end() ? std::vector<std::string>{} : at->second;
}

Result<Arguments> parse(const CommandSpec& spec, const std::vector<std::string>& words) {
  const std::vector<Option> known = options_of(spec);
  Arguments given;
  bool options = true;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    // A lone "-" is an argument: by custom it means standard input or output.
    if (!options || word.size() < 2 || word[0] != '-') {
      given.positionals_.push_back(word);
      if (spec.takes_program) options = false;
      continue;
    }
    if (word == "--") {
      options = false;
      continue;
    }
    auto named = word[1] == '-' ? named_long(known, word) : named_short(known, word);
    if (!named) return named.error();
    if (!named->option.value.empty() && !named->value) {
      if (i + 1 == words.size()) {
        return Error{
            fmt::format("--{} needs a value: {}", named->option.name, named->option.value)};
      }
      named->value = words[++i];
    }
    given.options_[std::string(named->option.name)].push_back(named->value.value_or(""));
  }
  if (given.has("help")) return given;
  if (const auto counted = check_count(spec, given.positionals_); !counted) return counted.error();
  return given;
}

std::string help_of(std::string_view program, const CommandSpec& spec) {
  std::string text = fmt::format("{}\n\n{}.\n", usage(program, spec), spec.summary);
  std::size_t width = 0;
  for (const Option& option : options_of(spec)) width = std::max(width, left_side(option).size());
  for (const Positional& one : spec.positionals) width = std::max(width, one.name.size());
  if (!spec.positionals.empty()) text += "\n";
  for (const Positional& one : spec.positionals) {
    text += fmt::format("  {:<{}}  {}\n", one.name, width, one.help);
  }
  text += "\noptions:\n";
  for (const Option& option : options_of(spec)) {
    text += fmt::format("  {:<{}}  {}\n", left_side(option), width, option.help);
  }
  if (!spec.more.empty()) text += fmt::format("\n{}\n", spec.more);
  return text;
}

}  // namespace nvshare::config
