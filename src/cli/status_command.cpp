#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <ostream>
#include <sstream>

#include "cli/answers.h"
#include "cli/commands.h"
#include "cli/control_session.h"
#include "cli/render.h"

namespace nvshare::cli {
namespace {

constexpr auto kShortestInterval = 100ms;
constexpr auto kLongestInterval = 1h;

// One look at the scheduler: the text to print, or what went wrong in `err`.
struct Frame {
  std::string text;
  int code = kGood;
};

Frame take_frame(bool json, bool one_line, Streams streams) {
  const Asked asked = ask_scheduler("status", status_request(), streams);
  if (!asked.json) return {"", asked.code};
  if (json) return {bare_answer(*asked.json, one_line) + "\n", kGood};
  const auto status = read_status(*asked.json);
  if (!status) return {"", complain("status", status.error().message, kFailed, streams)};
  return {status_text(*status, wants_colour()), kGood};
}

// "2", "0.5" or a time with its unit.
Result<Duration> read_interval(const std::string& text) {
  auto interval = parse_duration(text);
  if (!interval) interval = parse_duration(text + "s");
  if (!interval || *interval < kShortestInterval || *interval > kLongestInterval) {
    return Error{fmt::format("SECONDS: '{}' is not from 0.1 to 3600", text)};
  }
  return *interval;
}

// Until it is interrupted, or nobody reads any more.
int watch(Duration interval, bool json, Streams streams) {
  const bool terminal = ::isatty(STDOUT_FILENO) != 0 && !json;
  while (streams.out) {
    // What goes wrong is shown in its place: the scheduler may come, and come back.
    std::ostringstream wrong;
    const Frame frame = take_frame(json, true, {streams.out, wrong});
    if (terminal) streams.out << "\033[H\033[J";
    if (!json || frame.code == kGood) streams.out << frame.text << wrong.str();
    if (!terminal && !json) streams.out << "\n";
    streams.out.flush();
    const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(interval);
    ::poll(nullptr, 0, static_cast<int>(pause.count()));
  }
  return kFailed;
}

int run_status(const Arguments& arguments, Streams streams) {
  const bool json = arguments.has("json");
  const auto& given = arguments.positionals();
  if (!given.empty() && !arguments.has("watch")) {
    return complain("status", "SECONDS is only for --watch", kBadInput, streams);
  }
  if (arguments.has("watch")) {
    const auto interval = read_interval(given.empty() ? "1" : given[0]);
    if (!interval) return complain("status", interval.error().message, kBadInput, streams);
    return watch(*interval, json, streams);
  }
  const Frame frame = take_frame(json, false, streams);
  streams.out << frame.text;
  return frame.code;
}

int run_ps(const Arguments&, Streams streams) {
  const Asked asked = ask_scheduler("ps", status_request(), streams);
  if (!asked.json) return asked.code;
  const auto status = read_status(*asked.json);
  if (!status) return complain("ps", status.error().message, kFailed, streams);
  streams.out << processes_text(*status, wants_colour());
  return kGood;
}

}  // namespace

Command status_command() {
  CommandSpec spec;
  spec.name = "status";
  spec.summary = "Show the GPUs and who shares them";
  spec.positionals = {{"SECONDS", "with --watch: how often, default 1", false}};
  spec.options = {
      {"json", 'j', "", "for programs: what the scheduler answers"},
      {"watch", 'w', "", "show it again and again, until interrupted"},
  };
  spec.more =
      "CORES is the share of GPU time that a tenant may have, GETS what it had in the last\n"
      "second or so; SWAPPED is what of its memory is on the host now. The JSON is the answer to "
      "\"status\" in docs/protocol.md without \"ok\":\n"
      "bytes, nanoseconds and percent; with --watch one line for each look.\n\n"
      "examples:\n"
      "  nvshare status\n"
      "  nvshare status --watch 2\n"
      "  nvshare status --json | jq '.tenants[].share'";
  return {spec, run_status};
}

Command ps_command() {
  CommandSpec spec;
  spec.name = "ps";
  spec.summary = "List the processes that share GPUs";
  spec.more =
      "MEMORY is what a process has allocated, ON GPU how much of it is there now, PINNED\n"
      "what can never leave; USED is GPU time, HELD BACK how long its threads waited for their "
      "turn.";
  return {spec, run_ps};
}

}  // namespace nvshare::cli
