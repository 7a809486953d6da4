#include "programs/job_options.h"

#include <fmt/format.h>

#include <functional>

namespace nvshare::programs {
namespace {

using Text = const std::string&;
using Set = std::function<Result<void>(JobOptions&, Text)>;

struct Flag {
  std::string_view name;
  std::string_view value;  // what stands for it in the help; empty: takes none
  std::string_view help;
  Set set;
};

constexpr std::pair<std::string_view, Pattern> kPatterns[] = {
    {"saturate", Pattern::Saturate}, {"bursty", Pattern::Bursty}, {"sync", Pattern::Sync},
    {"graph", Pattern::Graph},       {"copy", Pattern::Copy},     {"memset", Pattern::Memset},
    {"train", Pattern::Train},       {"infer", Pattern::Infer}};

Result<void> set_pattern(JobOptions& options, Text text) {
  for (const auto& [name, pattern] : kPatterns) {
    if (name == text) return options.pattern = pattern, Result<void>{};
  }
  return Error{fmt::format(
      "'{}' is none of saturate, bursty, sync, graph, copy, memset, train, infer", text)};
}

Set duration(Duration JobOptions::*field, Duration least) {
  return [=](JobOptions& options, Text text) -> Result<void> {
    const auto value = parse_duration(text);
    if (!value) return value.error();
    if (*value < least) return Error{fmt::format("'{}' is too short", text)};
    options.*field = *value;
    return {};
  };
}

template <typename Number>
Set number(Number JobOptions::*field, std::int64_t low, std::int64_t high) {
  return [=](JobOptions& options, Text text) -> Result<void> {
    const auto value = parse_integer(text, low, high);
    if (!value) return value.error();
    options.*field = static_cast<Number>(*value);
    return {};
  };
}

Set truth(bool JobOptions::*field) {
  return [=](JobOptions& options, Text) -> Result<void> {
    options.*field = true;
    return {};
  };
}

// "10" and "0.5" are seconds; "500ms" is taken too.
Result<void> set_length(JobOptions& options, Text text) {
  auto value = parse_duration(text);
  if (!value) value = parse_duration(text + "s");
  if (!value || *value == Duration::zero()) {
    return Error{fmt::format("'{}' is not a length of time (examples: 10, 0.5, 500ms)", text)};
  }
  options.length = *value;
  return {};
}

Set bytes(Bytes JobOptions::*field, Bytes least) {
  return [=](JobOptions& options, Text text) -> Result<void> {
    const auto value = parse_bytes(text);
    if (!value) return value.error();
    if (*value < least) return Error{fmt::format("'{}' is too little", text)};
    options.*field = *value;
    return {};
  };
}

Result<void> set_progress(JobOptions& options, Text text) {
  const auto value = parse_duration(text);
  if (!value) return value.error();
  if (*value < 1ms) return Error{fmt::format("'{}' is too short", text)};
  options.progress = *value;
  return {};
}

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all{
      {"--seconds", "S", "how long it works (5)", set_length},
      {"--launches", "N", "ends after so many launches of each thread, whatever the time",
       number(&JobOptions::launches, 1, 1'000'000'000)},
      {"--kernel", "T", "length of a kernel (1ms); 0ns: an empty one",
       duration(&JobOptions::kernel, 0ns)},
      {"--memory", "SIZE", "device memory that it takes and holds",
       bytes(&JobOptions::memory, Bytes{0})},
      {"--piece", "SIZE", "in pieces of this size (64Mi)", bytes(&JobOptions::piece, mib(1))},
      {"--workspace", "SIZE",
       "takes so much from the device's pool for each batch of launches, and gives it back",
       bytes(&JobOptions::workspace, Bytes{0})},
      {"--expandable", "",
       "takes it as PyTorch's expandable segments do: made piece by piece (of 2Mi, 4Mi, ...), and "
       "mapped into one range",
       truth(&JobOptions::expandable)},
      {"--pattern", "P",
       "saturate, bursty, sync, graph, copy, memset, train (changes all of its memory, a piece "
       "before each kernel) or infer (reads all of it, and changes half a percent)",
       set_pattern},
      {"--busy", "T", "bursty: how much work at a time (60ms)", duration(&JobOptions::busy, 1us)},
      {"--idle", "T", "bursty: how long it then does nothing (40ms)",
       duration(&JobOptions::idle, 0ns)},
      {"--device", "N", "which device (0)", number(&JobOptions::device, 0, 63)},
      {"--streams", "N", "streams of each thread (1); 0: the default stream",
       number(&JobOptions::streams, 0, 64)},
      {"--threads", "N", "threads (1)", number(&JobOptions::threads, 1, 64)},
      {"--queue", "N", "launches between waits (8)", number(&JobOptions::queue, 1, 100'000)},
      {"--per-thread-stream", "", "each thread uses its own default stream",
       truth(&JobOptions::per_thread_stream)},
      {"--fill", "", "fills its memory", truth(&JobOptions::fill)},
      {"--check", "",
       "fills its memory, and looks at the end whether everything is as it should be",
       truth(&JobOptions::check)},
      {"--progress", "T", "says so often how far it is", set_progress},
      {"--quiet", "", "says nothing at the end", truth(&JobOptions::quiet)},
      {"--help", "", "this", truth(&JobOptions::help)},
  };
  return all;
}

const Flag* find_flag(std::string_view name) {
  for (const Flag& flag : flags()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

}  // namespace

Result<JobOptions> parse_job(const std::vector<std::string>& words) {
  JobOptions options;
  bool streams_given = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const Flag* flag = find_flag(name);
    if (flag == nullptr) return Error{fmt::format("{}: no such option (see --help)", words[i])};
    std::string value;
    if (!flag->value.empty()) {
      if (equals == std::string::npos && i + 1 == words.size()) {
        return Error{fmt::format("{}: {} is missing", name, flag->value)};
      }
      value = equals == std::string::npos ? words[++i] : words[i].substr(equals + 1);
    } else if (equals != std::string::npos) {
      return Error{fmt::format("{}: takes no value", name)};
    }
    if (const auto set = flag->set(options, value); !set) return set.error().with_context(name);
    streams_given = streams_given || name == "--streams";
  }
  if (options.per_thread_stream && streams_given) {
    return Error{"--streams and --per-thread-stream: only one of the two"};
  }
  if (options.per_thread_stream) options.streams = 0;
  if (options.pattern == Pattern::Train || options.pattern == Pattern::Infer) {
    const auto* name = options.pattern == Pattern::Train ? "train" : "infer";
    if (options.memory < options.piece) {
      return Error{fmt::format("--pattern {}: needs --memory", name)};
    }
    if (options.threads > 1 || options.streams > 1) {
      return Error{fmt::format("--pattern {}: one thread and one stream", name)};
    }
  }
  return options;
}

std::string job_help() {
  std::string text =
      "usage: gpu-job [OPTIONS]\n\nKeeps a GPU busy in a way that can be counted.\n\n";
  for (const Flag& flag : flags()) {
    text += fmt::format("  {:<22}{}\n", fmt::format("{} {}", flag.name, flag.value), flag.help);
  }
  return text +
         "\nAt the end it prints one line: what it did (kernels, or copies and memsets), how much\n"
         "GPU time that was, how long it took, and the share of the GPU that this is. Exit codes:\n"
         "0, 1 when something failed or --check found something wrong, 2 for wrong options.\n"
         "SIGTERM and SIGINT end it early, as if its time were up.\n";
}

}  // namespace nvshare::programs
