#include <fmt/format.h>
#include <poll.h>

#include <ostream>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/commands/control_session.h"
#include "cli/show/answers.h"
#include "cli/show/lease_text.h"

namespace nvshare::cli {
namespace {

constexpr int kLookEvery = 1000;  // milliseconds

const Option kJson{"json", 'j', "", "for programs: what the scheduler answers"};
const HttpRequest kLeases{"GET", "/v1/leases?limit=1000", ""};  // the most that there is
const HttpRequest kClasses{"GET", "/v1/classes", ""};
const HttpRequest kStatus{"GET", "/v1/status", ""};

WallTime wall_now() {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

// The answer, and what `read` finds in it.
template <typename T>
struct Look {
  std::optional<T> found;
  std::string json;
  int code = kGood;  // when nothing was found; that is told
};

template <typename T>
using Reader = Result<T> (*)(const std::string&);

template <typename T>
Look<T> look_at(std::string_view command, const HttpRequest& request, Reader<T> read,
                Streams streams) {
  const Asked asked = ask_api(command, request, streams);
  if (!asked.json) return {std::nullopt, "", asked.code};
  auto found = read(*asked.json);
  if (found) return {std::move(*found), *asked.json, kGood};
  return {std::nullopt, "", complain(command, found.error().message, kFailed, streams)};
}

// Prints the answer as it is, or as `show` has it.
template <typename T, typename Show>
int print(std::string_view command, const HttpRequest& request, Reader<T> read,
          const Arguments& arguments, Streams streams, Show show) {
  const auto look = look_at(command, request, read, streams);
  if (!look.found) return look.code;
  streams.out << (arguments.has("json") ? bare_answer(look.json, false) + "\n" : show(*look.found));
  return kGood;
}

int run_list(const Arguments& arguments, Streams streams) {
  return print("lease list", kLeases, read_leases, arguments, streams,
               [](const auto& leases) { return leases_text(leases, wall_now(), wants_colour()); });
}

int run_classes(const Arguments& arguments, Streams streams) {
  return print("lease classes", kClasses, read_classes, arguments, streams,
               [](const auto& classes) { return classes_text(classes, wants_colour()); });
}

int run_status(const Arguments& arguments, Streams streams) {
  return print("lease status", kStatus, read_lease_status, arguments, streams,
               [](const auto& status) { return lease_status_text(status, wants_colour()); });
}

int run_release(const Arguments& arguments, Streams streams) {
  const std::string& id = arguments.positionals()[0];
  if (!is_lease_id(id)) {
    return complain("lease release",
                    fmt::format("'{}' is no lease: nvshare lease list shows them", id), kBadInput,
                    streams);
  }
  const Asked asked = ask_api("lease release", {"DELETE", "/v1/leases/" + id, ""}, streams);
  if (asked.json) streams.out << fmt::format("{} is released\n", id);
  return asked.code;
}

std::optional<LeaseLook> take_look(int& code, Streams streams) {
  auto status = look_at("lease watch", kStatus, read_lease_status, streams);
  code = status.code;
  if (!status.found) return std::nullopt;
  auto leases = look_at("lease watch", kLeases, read_leases, streams);
  code = leases.code;
  if (!leases.found) return std::nullopt;
  return LeaseLook{std::move(*status.found), std::move(*leases.found)};
}

// Into a file or a pipe goes what has changed. What goes wrong is told once, and ends only the
// first look: the scheduler may come back.
class ChangesPrinter {
 public:
  int print(const std::optional<LeaseLook>& look, const std::string& wrong, int code,
            Streams streams) {
    if (wrong != wrong_) streams.err << wrong;
    wrong_ = wrong;
    if (!look) return looked_ ? kGood : code;
    streams.out << lease_changes_text(before_, *look, wall_now());
    before_ = *look;
    looked_ = true;
    return kGood;
  }

 private:
  LeaseLook before_;
  bool looked_ = false;
  std::string wrong_;
};

int run_watch(const Arguments&, Streams streams) {
  ChangesPrinter changes;
  while (streams.out) {
    std::ostringstream wrong;
    int code = kGood;
    const auto look = take_look(code, {streams.out, wrong});
    if (const auto size = terminal_size()) {  // which may change
      const std::string text = look ? lease_status_text(look->status, wants_colour()) + "\n" +
                                          leases_text(look->leases, wall_now(), wants_colour())
                                    : wrong.str();
      streams.out << terminal_frame(text, *size);
    } else if (changes.print(look, wrong.str(), code, streams) != kGood) {
      return code;
    }
    streams.out.flush();
    ::poll(nullptr, 0, kLookEvery);
  }
  return kFailed;
}

Command list_command() {
  CommandSpec spec;
  spec.name = "list";
  spec.summary = "List leases, and requests that wait";
  spec.options = {kJson};
  spec.more =
      "FOR is how long a lease is held, or a request waits; LEFT how long until its deadline.\n"
      "Leases of other users have no id here, except for administrators.";
  return {spec, run_list};
}

Command release_command() {
  CommandSpec spec;
  spec.name = "release";
  spec.summary = "Give a lease back, or withdraw a request";
  spec.positionals = {{"LEASE", "its id: see nvshare lease list", true}};
  spec.more = "The program that works under the lease is told at its next renewal.";
  return {spec, run_release};
}

Command classes_command() {
  CommandSpec spec;
  spec.name = "classes";
  spec.summary = "List the classes of work, with their rules";
  spec.options = {kJson};
  return {spec, run_classes};
}

Command lease_status_command() {
  CommandSpec spec;
  spec.name = "status";
  spec.summary = "Show each GPU's load and leases, and what became of the requests";
  spec.options = {kJson};
  spec.more =
      "A GPU is under HIGH_PRESSURE from the upper of its MARKS on, until its load is at the\n"
      "lower one. A hint may raise the marks for a while.";
  return {spec, run_status};
}

Command watch_command() {
  CommandSpec spec;
  spec.name = "watch";
  spec.summary = "Show status and leases once a second, until interrupted";
  spec.more = "Into a file or a pipe goes one line for each change.";
  return {spec, run_watch};
}

}  // namespace

Command lease_command() {
  CommandSpec spec;
  spec.name = "lease";
  spec.summary = "Ask for a GPU before using it: run a program with a lease, list, release";
  spec.more =
      "examples:\n"
      "  nvshare lease run --class NMT --max-wait 300ms -- python translate.py\n"
      "  nvshare lease list";
  return {spec,
          nullptr,
          {lease_run_command(), list_command(), release_command(), classes_command(),
           lease_status_command(), watch_command()}};
}

}  // namespace nvshare::cli
