#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ostream>

#include "cli/commands/commands.h"
#include "cli/commands/control_session.h"
#include "cli/show/answers.h"
#include "cli/show/render.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;

const Positional kName{"NAME", "whose: see nvshare status", true};
const Option kNoWait{"no-wait", 0, "", "return at once, while the memory is still on its way"};

// A program can take minutes to stop; one that has not moved a byte for so long is stuck.
constexpr auto kPatience = 60s;
// The scheduler is asked often at first, so that a short move is timed well.
constexpr int kFirstLook = 10;  // milliseconds
constexpr int kLaterLook = 50;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// "62GiB left the GPU in 1.24 s (50.0 GiB/s)"
std::string moved_text(Bytes bytes, const char* how, double seconds) {
  const double gib = static_cast<double>(bytes.count) / static_cast<double>(nvshare::gib(1).count);
  return fmt::format("{} {} in {:.2f} s ({:.1f} GiB/s)", to_text(bytes), how, seconds,
                     gib / std::max(seconds, 1e-3));
}

// What of its memory is on the host and would fit the GPU.
Bytes away(const TenantInfo& tenant) {
  return tenant.swapped - tenant.beyond;
}

Bytes on_the_way(const TenantInfo& tenant) {
  return tenant.incoming + tenant.outgoing;
}

// A line that is written over, where somebody watches.
class Progress {
 public:
  explicit Progress(Streams streams) : streams_(streams), shows_(::isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& text) {
    if (!shows_) return;
    streams_.err << "\r\x1b[K" << text << std::flush;
    shown_ = true;
  }
  void clear() {
    if (std::exchange(shown_, false)) streams_.err << "\r\x1b[K" << std::flush;
  }

 private:
  Streams streams_;
  bool shows_;
  bool shown_ = false;
};

// One command that has been accepted: the tenant as it was then, and as it was seen last.
struct Watched {
  std::string_view command;
  TenantInfo first;
  TenantInfo last;
  bool changed = true;
  Clock::time_point begin;
};

// Asks for a change; nothing, and the exit code, when it was refused.
std::optional<Watched> begin(std::string_view command, const std::string& request, Streams streams,
                             int& code) {
  const auto began = Clock::now();
  const Asked asked = ask_scheduler(command, request, streams);
  code = asked.code;
  if (!asked.json) return std::nullopt;
  const auto tenant = read_tenant(*asked.json);
  if (!tenant) {
    code = complain(command, tenant.error().message, kFailed, streams);
    return std::nullopt;
  }
  return Watched{command, *tenant, *tenant, read_changed(*asked.json), began};
}

// Looks again; false, and the exit code, when the tenant is not there any more.
bool look(Watched& watched, Streams streams, int& code) {
  const Asked asked = ask_scheduler(watched.command, status_request(), streams);
  code = asked.code;
  if (!asked.json) return false;
  const auto status = read_status(*asked.json);
  if (!status) {
    code = complain(watched.command, status.error().message, kFailed, streams);
    return false;
  }
  for (const TenantInfo& one : status->tenants) {
    if (one.name != watched.first.name) continue;
    watched.last = one;
    return true;
  }
  code =
      complain(watched.command, fmt::format("{} has ended", watched.first.name), kFailed, streams);
  return false;
}

// Until `left` says that nothing is on its way any more, or that it is not worth waiting (none).
// The exit code: kGood when it has come to that.
template <typename Left>
int wait_until_done(Watched& watched, Left left, Streams streams) {
  Progress progress(streams);
  Clock::time_point moved = Clock::now();
  Bytes before = left(watched.last).value_or(Bytes{});
  const Bytes all = before;
  for (;;) {
    const std::optional<Bytes> now = left(watched.last);
    if (!now || *now <= Bytes{}) return kGood;
    if (*now != std::exchange(before, *now)) moved = Clock::now();
    if (Clock::now() - moved > kPatience) {
      progress.clear();
      return complain(watched.command,
                      fmt::format("{} does not move its memory: see nvshare why {}",
                                  watched.first.name, watched.first.name),
                      kFailed, streams);
    }
    progress.show(
        fmt::format("{}: {} of {} to go", watched.first.name, to_text(*now), to_text(all)));
    const bool young = Clock::now() - watched.begin < 2s;
    ::poll(nullptr, 0, young ? kFirstLook : kLaterLook);
    int code = kGood;
    if (!look(watched, streams, code)) {
      progress.clear();
      return code;
    }
  }
}

int stays_awake(const Watched& watched, Streams streams) {
  const std::string& name = watched.first.name;
  return complain(
      watched.command,
      fmt::format("{0} has work for the GPU and is awake: nvshare sleep --hold {0} stops "
                  "it until it is woken",
                  name),
      kFailed, streams);
}

std::string slept_text(const Watched& watched) {
  const TenantInfo& tenant = watched.last;
  const char* already = watched.changed ? "" : " already";
  std::string text =
      fmt::format("{} {}{}: ", tenant.name, tenant.hold ? "is held asleep" : "sleeps", already);
  const Bytes left = tenant.moves.out - watched.first.moves.out;
  if (left > Bytes{}) {
    text += moved_text(left, "left the GPU", seconds_since(watched.begin));
  } else {
    text += fmt::format("{} of it on the host", to_text(away(tenant)));
  }
  if (tenant.pinned > Bytes{}) text += fmt::format("; {} cannot move", to_text(tenant.pinned));
  const Bytes kept = tenant.resident - tenant.pinned;
  if (kept > Bytes{}) {
    text += fmt::format("; {} stay on the GPU: the host has no place for them", to_text(kept));
  }
  return text;
}

int run_sleep(const Arguments& arguments, Streams streams) {
  const bool hold = arguments.has("hold");
  int code = kGood;
  auto watched = begin("sleep", sleep_request(arguments.positionals()[0], hold), streams, code);
  if (!watched) return code;
  if (!watched->last.asleep) return stays_awake(*watched, streams);
  if (arguments.has("no-wait")) {
    streams.out << fmt::format("{} falls asleep: {} to leave the GPU\n", watched->first.name,
                               to_text(watched->first.to_leave));
    return kGood;
  }
  const auto left = [](const TenantInfo& tenant) {
    return tenant.asleep ? std::optional(tenant.to_leave) : std::nullopt;
  };
  code = wait_until_done(*watched, left, streams);
  if (code != kGood) return code;
  if (!watched->last.asleep) return stays_awake(*watched, streams);
  streams.out << slept_text(*watched) << "\n";
  return kGood;
}

std::string woken_text(const Watched& watched) {
  const TenantInfo& tenant = watched.last;
  std::string text = fmt::format("{} is awake{}", tenant.name, watched.changed ? "" : " already");
  const Bytes came = tenant.moves.in - watched.first.moves.in;
  if (came > Bytes{}) text += ": " + moved_text(came, "came back", seconds_since(watched.begin));
  if (away(tenant) > Bytes{}) {
    text +=
        fmt::format("; {} stay on the host until it has work: the GPU has no free room for them",
                    to_text(away(tenant)));
  }
  return text;
}

int run_wake(const Arguments& arguments, Streams streams) {
  int code = kGood;
  auto watched = begin("wake", wake_request(arguments.positionals()[0]), streams, code);
  if (!watched) return code;
  if (arguments.has("no-wait")) {
    streams.out << fmt::format("{} is awake\n", watched->first.name);
    return kGood;
  }
  code = wait_until_done(
      *watched, [](const TenantInfo& tenant) { return std::optional(on_the_way(tenant)); },
      streams);
  if (code != kGood) return code;
  streams.out << woken_text(*watched) << "\n";
  return kGood;
}

}  // namespace

Command sleep_command() {
  CommandSpec spec;
  spec.name = "sleep";
  spec.summary = "Let a program give its GPU memory back until it needs the GPU again";
  spec.positionals = {kName};
  spec.options = {{"hold", 0, "", "also when it has work: it waits until nvshare wake"}, kNoWait};
  spec.more =
      "All that can move leaves the GPU for the host's memory, and the program keeps running. Its\n"
      "next launch or allocation brings everything back. Without --hold a program that has work\n"
      "stays awake. The setting idle_out puts programs to sleep by itself.\n\n"
      "examples:\n"
      "  nvshare sleep chat\n"
      "  nvshare sleep --hold train\n"
      "  nvshare config idle_out=10min";
  return {spec, run_sleep};
}

Command wake_command() {
  CommandSpec spec;
  spec.name = "wake";
  spec.summary = "Bring a sleeping program's memory back";
  spec.positionals = {kName};
  spec.options = {kNoWait};
  spec.more =
      "Its memory comes back at once where there is free room for it, before its next request.\n"
      "Otherwise it comes when the program has work, in its turn.\n\n"
      "examples:\n"
      "  nvshare wake chat";
  return {spec, run_wake};
}

}  // namespace nvshare::cli
