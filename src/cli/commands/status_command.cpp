#include <fmt/format.h>
#include <poll.h>

#include <ostream>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/commands/control_session.h"
#include "cli/show/answers.h"
#include "cli/show/render.h"

namespace nvshare::cli {
namespace {

constexpr auto kShortestInterval = 100ms;
constexpr auto kLongestInterval = 1h;

const Option kJson{"json", 'j', "", "for programs: what the scheduler answers"};

// One look at the scheduler: the text to print, or what went wrong in `err`.
struct Frame {
  std::string text;
  int code = kGood;
};

Frame take_frame(std::string_view command, bool json, bool one_line, Streams streams) {
  const Asked asked = ask_scheduler(command, status_request(), streams);
  if (!asked.json) return {"", asked.code};
  if (json) return {bare_answer(*asked.json, one_line) + "\n", kGood};
  const auto status = read_status(*asked.json);
  if (!status) return {"", complain(command, status.error().message, kFailed, streams)};
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

// Again and again, until it is interrupted or nobody reads any more.
int watch(std::string_view command, const Arguments& arguments, Streams streams) {
  const auto& given = arguments.positionals();
  const auto interval = read_interval(given.empty() ? "1" : given[0]);
  if (!interval) return complain(command, interval.error().message, kBadInput, streams);
  const bool json = arguments.has("json");
  while (streams.out) {
    // What goes wrong is shown in its place: the scheduler may come, and come back.
    std::ostringstream wrong;
    const Frame frame = take_frame(command, json, true, {streams.out, wrong});
    const std::string text = frame.text + wrong.str();
    if (json) {
      if (frame.code == kGood) streams.out << frame.text;
    } else if (const auto size = terminal_size()) {  // which may change
      streams.out << terminal_frame(text, *size);
    } else {
      streams.out << text << "\n";
    }
    streams.out.flush();
    const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(*interval);
    ::poll(nullptr, 0, static_cast<int>(pause.count()));
  }
  return kFailed;
}

int run_top(const Arguments& arguments, Streams streams) {
  return watch("top", arguments, streams);
}

int run_status(const Arguments& arguments, Streams streams) {
  if (arguments.has("watch")) return watch("status", arguments, streams);
  if (!arguments.positionals().empty()) {
    return complain("status", "SECONDS is only for --watch", kBadInput, streams);
  }
  const Frame frame = take_frame("status", arguments.has("json"), false, streams);
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
      kJson,
      {"watch", 'w', "", "show it again and again, as nvshare top does"},
  };
  spec.more =
      "CORES is the share of GPU time that a tenant may have, GETS what it had in the last\n"
      "five seconds, and since its limit changed; on several GPUs that is the mean. SWAPPED is\n"
      "what of its memory is on the host now, MOVING what is on its way there or back (STATE "
      "tells\n"
      "whose). Parts stand below their user, container or run; that line has the sums.\n"
      "BUSY is the part of the last second in which kernels ran, as NVML has it: moving\n"
      "memory does not count.\n"
      "Where leases are, or were asked for, a line below the GPUs tells how many are held, how\n"
      "many requests wait, whether the GPU is under high pressure, and how busy it is.\n\n"
      "The JSON is the answer to \"status\" in docs/protocol.md without \"ok\": bytes, "
      "nanoseconds\n"
      "and percent; with --watch one line for each look.\n\n"
      "examples:\n"
      "  nvshare status\n"
      "  nvshare status --json | jq '.tenants[].share'";
  return {spec, run_status};
}

Command top_command() {
  CommandSpec spec;
  spec.name = "top";
  spec.summary = "Show the GPUs and who shares them, again and again";
  spec.positionals = {{"SECONDS", "how often, default 1", false}};
  spec.options = {kJson};
  spec.more =
      "What nvshare status shows, until it is interrupted. Into a file or a pipe goes one block\n"
      "after the other, with an empty line in between; with --json a line for each.\n\n"
      "examples:\n"
      "  nvshare top\n"
      "  nvshare top 0.5\n"
      "  nvshare top --json | jq '.tenants[].share'";
  return {spec, run_top};
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
