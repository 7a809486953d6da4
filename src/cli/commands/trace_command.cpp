#include <fmt/format.h>
#include <poll.h>

#include <ostream>

#include "cli/commands/commands.h"
#include "cli/commands/control_session.h"
#include "cli/show/answers.h"

namespace nvshare::cli {
namespace {

constexpr int kLookEvery = 200;  // milliseconds

int run_trace(const Arguments& arguments, Streams streams) {
  const std::string name = arguments.positionals().empty() ? "" : arguments.positionals()[0];
  const bool follow = arguments.has("follow");
  std::optional<long> from;
  std::optional<long> end;  // what there was when it began
  while (streams.out) {
    const Asked asked = ask_scheduler("trace", trace_request(name, from), streams);
    if (!asked.json) return asked.code;
    const auto part = read_trace(*asked.json);
    if (!part) return complain("trace", part.error().message, kFailed, streams);
    if (part->lost > 0) {
      complain("trace", fmt::format("{} lines came too fast and are lost", part->lost), 0, streams);
    }
    for (const std::string& line : part->lines) streams.out << line << "\n";
    streams.out.flush();
    from = part->next;
    end = end.value_or(part->end);
    if (!follow && part->next >= *end) return kGood;
    if (part->next >= part->end) ::poll(nullptr, 0, kLookEvery);
  }
  return kFailed;
}

}  // namespace

Command trace_command() {
  CommandSpec spec;
  spec.name = "trace";
  spec.summary = "Show what the scheduler decided lately, turn by turn";
  spec.positionals = {{"NAME", "whose; default: everybody's", false}};
  spec.options = {{"follow", 'f', "", "go on, until interrupted"}};
  spec.more =
      "A line for each turn that began (grant: for how long, and why), was to end (drop) and\n"
      "ended (released: how long it was held, what the program's meter said, what was billed),\n"
      "for memory that was told to move and moved, and for leases that were asked for, acquired,\n"
      "refused, released and revoked. Nanoseconds and bytes. The last 4000 lines are kept,\n"
      "whatever the log says.\n\n"
      "examples:\n"
      "  nvshare trace train\n"
      "  nvshare trace --follow | grep event=drop\n"
      "  nvshare trace --follow | grep event=lease";
  return {spec, run_trace};
}

}  // namespace nvshare::cli
