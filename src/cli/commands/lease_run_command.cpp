#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ostream>
#include <utility>

#include "base/suggest.h"
#include "base/uuid.h"
#include "cli/commands/commands.h"
#include "cli/commands/control_session.h"
#include "cli/lease/leased_program.h"
#include "cli/run/environment.h"
#include "cli/run/find_program.h"
#include "cli/run/gpu_choice.h"
#include "cli/run/job_signals.h"
#include "cli/run/start_program.h"
#include "cli/show/lease_text.h"

namespace nvshare::cli {
namespace {

constexpr std::string_view kCommand = "lease run";
constexpr const char* kLeaseVariable = "NVSHARE_LEASE";

// The longest wait that the API allows (core::kLongestWait).
constexpr Duration kLongestWait = 10min;
// A scheduler answers when the wait is over. Smaller numbers give up beside a slow scheduler.
constexpr Duration kBeyondTheWait = 10s;
// A request without a wait of its own waits as long as its class says.
constexpr Duration kBeyondAnyWait = kLongestWait + 1min;

struct BusyName {
  std::string_view name;
  const char* policy;
};
constexpr std::array<BusyName, 3> kBusyNames{
    {{"wait", "WAIT"}, {"skip", "SKIP"}, {"fallback", "FALLBACK_CPU"}}};

std::string read_busy(const Arguments& arguments, std::vector<std::string>& wrong) {
  const auto given = arguments.value("busy");
  if (!given) return "";
  std::vector<std::string_view> names;
  for (const BusyName& one : kBusyNames) {
    if (one.name == *given) return one.policy;
    names.push_back(one.name);
  }
  wrong.push_back(fmt::format("--busy: '{}' is not one of {}", *given, join(names)));
  return "";
}

std::optional<Duration> read_time(const Arguments& arguments, std::string_view option,
                                  std::vector<std::string>& wrong) {
  const auto given = arguments.value(option);
  if (!given) return std::nullopt;
  const auto time = parse_duration(*given);
  if (time) return *time;
  wrong.push_back(fmt::format("--{}: {}", option, time.error().message));
  return std::nullopt;
}

// Everything that is wrong, in one line.
Result<LeaseWish> read_wish(const Arguments& arguments) {
  LeaseWish wish;
  std::vector<std::string> wrong;
  wish.task_class = arguments.value("class").value_or("");
  if (wish.task_class.empty()) {
    wrong.push_back("--class is missing: nvshare lease classes lists them");
  }
  wish.gpu = arguments.value("gpu").value_or("");
  wish.max_wait = read_time(arguments, "max-wait", wrong);
  wish.hold_max = read_time(arguments, "hold", wrong);
  wish.audio = read_time(arguments, "hint-audio", wrong);
  wish.gpu_hold = read_time(arguments, "hint-hold", wrong);
  wish.busy = read_busy(arguments, wrong);
  if (!wrong.empty()) return Error{join({wrong.begin(), wrong.end()}, "; ")};
  return wish;
}

Duration answer_within(const LeaseWish& wish) {
  if (!wish.max_wait) return kBeyondAnyWait;
  return std::min(*wish.max_wait, kLongestWait) + kBeyondTheWait;
}

int not_started(const std::string& program, int error, Streams streams) {
  return complain(kCommand, why_not_started(program, error), exit_code_of_exec(error), streams);
}

// A lease is of one GPU. Where the machine has several and nobody has said which ones the program
// sees, it sees that one.
std::vector<Variable> variables_of(const LeaseAnswer& answer) {
  std::vector<Variable> variables{{kLeaseVariable, answer.id}};
  if (std::getenv(kVisibleDevices) != nullptr) return variables;
  const auto machine = machine_gpus();
  const auto gpu = parse_uuid(answer.gpu);
  if (!machine || !gpu || machine->gpus.size() < 2) return variables;
  if (std::ranges::find(machine->gpus, gpu) == machine->gpus.end()) return variables;
  for (Variable& one : visible_devices({*gpu}, *machine)) variables.push_back(std::move(one));
  return variables;
}

int run_with_lease(const RunDirectory& directory, const LeaseAnswer& answer,
                   HeldLease::Clock::time_point granted, const std::vector<std::string>& words,
                   Streams streams) {
  HeldLease lease(directory, answer.id, answer.hold, granted);
  const LeasedProgram program{
      words, changed_environment(variables_of(answer)),
      [&](const std::string& line) { complain(kCommand, line, kGood, streams); }};
  const LeasedEnd end = run_leased(program, lease);
  if (end.error != 0) return not_started(words[0], end.error, streams);
  return end.taken_away ? kTryAgain : end_like(end.status);
}

int run_without_gpu(const LeaseAnswer& answer, const std::vector<std::string>& words,
                    Streams streams) {
  complain(kCommand, not_granted_text(answer) + "; the program runs without a GPU", kGood, streams);
  const auto environment =
      changed_environment({{kLeaseVariable, std::nullopt}, {kVisibleDevices, ""}});
  return not_started(words[0], become_program(words, environment), streams);
}

int run(const Arguments& arguments, Streams streams) {
  const auto& words = arguments.positionals();
  const auto wish = read_wish(arguments);
  if (!wish) return complain(kCommand, wish.error().message, kBadInput, streams);
  if (const int error = find_program(words[0]); error != 0) {
    return not_started(words[0], error, streams);
  }
  const auto directory = find_run_directory(surroundings());
  if (!directory) return complain(kCommand, directory.error().message, kFailed, streams);
  const HttpRequest request{"POST", "/v1/leases", lease_request(*wish)};
  const auto said = ask_http(*directory, request, answer_within(*wish));
  if (!said) return complain(kCommand, said.error().message, kFailed, streams);
  const auto granted = HeldLease::Clock::now();
  const auto answer = read_lease_answer(said->body);
  if (!answer && said->status >= 400) {
    return complain(kCommand, refusal_text(said->body, wish->task_class),
                    exit_code_of_status(said->status), streams);
  }
  if (!answer) return complain(kCommand, answer.error().message, kFailed, streams);
  if (answer->result == "ACQUIRED") {
    return run_with_lease(*directory, *answer, granted, words, streams);
  }
  if (answer->result == "FALLBACK_CPU" && arguments.has("fallback-cpu")) {
    return run_without_gpu(*answer, words, streams);
  }
  return complain(kCommand, not_granted_text(*answer), kTryAgain, streams);
}

}  // namespace

Command lease_run_command() {
  CommandSpec spec;
  spec.name = "run";
  spec.summary = "Run a program while a lease is held";
  spec.positionals = {{"CMD", "the program, with its arguments", true}};
  spec.options = {
      {"class", 'c', "NAME", "the class of its work: see nvshare lease classes"},
      {"gpu", 'g', "WHICH", "a number as nvidia-smi counts, or a UUID; default: the one with room"},
      {"max-wait", 'w', "TIME", "how long to wait for the lease; default: the class's"},
      {"hold", 0, "TIME", "how long the lease lasts without a renewal; default: the class's"},
      {"hint-audio", 0, "TIME", "how much sound is to be worked on"},
      {"hint-hold", 0, "TIME", "how long the work will probably take"},
      {"busy", 0, "WHAT",
       "without a free slot: wait, skip or fallback (to the CPU); default: the class's"},
      {"fallback-cpu", 0, "", "where the answer is to work on the CPU, run it without a GPU"},
  };
  spec.takes_program = true;
  spec.more =
      "The program has the lease's id in NVSHARE_LEASE. On a machine with several GPUs it sees "
      "the\n"
      "lease's GPU alone, unless CUDA_VISIBLE_DEVICES is set. The lease is renewed while it\n"
      "runs, and given back at its end. Without a lease the program is not started: one line\n"
      "says why and when to ask again. A program whose lease is taken away gets SIGTERM.\n\n"
      "The exit code is the program's; 75 without a lease and when it was taken away, 127 and 126\n"
      "when the program cannot be found or started, 2 for wrong values, 1 without a scheduler.\n\n"
      "examples:\n"
      "  nvshare lease run --class NMT --max-wait 300ms -- python translate.py\n"
      "  nvshare lease run --class ASR --hint-audio 12s -- ./transcribe talk.wav\n"
      "  nvshare lease run --class NMT --busy fallback --fallback-cpu -- ./translate";
  return {spec, run};
}

}  // namespace nvshare::cli
