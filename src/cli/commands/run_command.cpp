#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <set>

#include "base/run_name.h"
#include "base/suggest.h"
#include "cli/commands/commands.h"
#include "cli/run/connect.h"
#include "cli/run/find_program.h"
#include "cli/run/gpu_choice.h"
#include "cli/run/installed.h"
#include "cli/run/limits.h"
#include "cli/run/private_scheduler.h"
#include "cli/run/shortage_text.h"
#include "cli/run/start_program.h"
#include "cli/run/supervise.h"
#include "cli/run/tenant_link.h"
#include "config/backend.h"
#include "wire/channel.h"
#include "wire/limit_text.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A scheduler that was about to end may close on whoever just came.
constexpr int kTries = 20;
constexpr int kBetweenTries = 50;  // milliseconds

struct Wanted {
  std::string name;
  LimitWish limits;
  wire::Backend backend = wire::Backend::Default;
  uint32_t flags = 0;
  GpuWish gpus;
  std::vector<std::string> words;
};

// What the scheduler is told of the GPUs, and whether the program is shown those it chooses.
struct GpuPlan {
  GpuRequest request;
  bool shows = false;
  MachineGpus machine{};
};

int complain(Streams streams, std::string_view what, int code) {
  streams.err << fmt::format("nvshare run: {}\n", what);
  return code;
}

Result<Wanted> read_wanted(const Arguments& arguments) {
  std::vector<std::string> wrong;
  Wanted wanted;
  wanted.words = arguments.positionals();
  wanted.limits = read_limits(arguments, wrong);
  if (const auto text = arguments.value("backend")) {
    const auto backend = config::backend_by_name(*text);
    if (!backend) {
      wrong.push_back(
          fmt::format("--backend: '{}' is not one of {}", *text, config::kBackendNames));
    }
    wanted.backend = backend.value_or(wire::Backend::Default);
  }
  if (const auto text = arguments.value("gpu")) {
    auto wish = parse_gpu_wish(*text);
    if (!wish) wrong.push_back(fmt::format("--gpu: {}", wish.error().message));
    if (wish) wanted.gpus = std::move(*wish);
  }
  if (arguments.has("oversubscribe-self")) {
    if (wanted.backend != wire::Backend::Default && wanted.backend != wire::Backend::Managed) {
      wrong.push_back(fmt::format(
          "--oversubscribe-self: only memory of the backend managed can be larger than the GPU, "
          "not {}",
          config::name_of(wanted.backend)));
    }
    wanted.backend = wire::Backend::Managed;
    wanted.flags |= wire::kOversubscribeSelf;
  }
  wanted.name = arguments.value("name").value_or(default_name(wanted.words[0], ::getpid()));
  if (const auto named = check_run_name(wanted.name); !named) {
    wrong.push_back(fmt::format("'{}': {}", wanted.name, named.error().message));
  }
  const char* const variable = std::getenv("NVSHARE_GPU_MEMORY_LIMIT");
  if (!wire::understands_limit(variable)) {
    wrong.push_back(fmt::format(
        "NVSHARE_GPU_MEMORY_LIMIT: '{}' is not understood (examples: 4Gi, 512Mi, 2G, 25%; 0: none)",
        variable));
  }
  lower_to_variable(wanted.limits, variable);
  if (!wrong.empty()) return Error{join({wrong.begin(), wrong.end()}, "; ")};
  return wanted;
}

// Where a person has said which GPUs the program sees, the scheduler chooses none. A machine with
// one GPU is left as it is. The scheduler is told which GPUs are here, because a container may have
// some of them only. `2x` chooses among the GPUs that CUDA_VISIBLE_DEVICES leaves.
Result<GpuPlan> plan_gpus(const GpuWish& wish) {
  GpuPlan plan;
  const char* const visible = std::getenv(kVisibleDevices);
  if (wish.all || (wish.leaves_it_open() && visible != nullptr)) return plan;
  auto machine = machine_gpus();
  if (!machine) {
    if (wish.leaves_it_open()) return plan;
    return Error{fmt::format("--gpu: {}", machine.error().message)};
  }
  const auto among = wish.counted
                         ? only_visible(*machine, wish.wanted, visible, std::getenv(kDeviceOrder))
                         : *machine;
  if (!among) return Error{fmt::format("--gpu: {}", among.error().message)};
  auto chosen = find_gpus(wish, *among);
  if (!chosen) return chosen.error();
  const bool is_chosen = !chosen->empty();
  plan.shows = !wish.leaves_it_open() || machine->gpus.size() > 1;
  plan.request = {is_chosen ? wire::GpuChoice::Chosen : wire::GpuChoice::Auto, wish.wanted,
                  is_chosen ? std::move(*chosen) : reachable(*among)};
  plan.machine = std::move(*machine);
  return plan;
}

// Without a driver there is nothing to share.
int run_unshared(const Wanted& wanted, Streams streams) {
  streams.err
      << "nvshare run: no CUDA driver (libcuda.so.1) was found: the program runs unshared\n";
  const int error = become_program(wanted.words, own_environment());
  return complain(streams, why_not_started(wanted.words[0], error), exit_code_of_exec(error));
}

struct Asked {
  UniqueFd connection;
  Joined joined;
};

Result<Asked> take_part(const RunDirectory& directory, const Wanted& wanted,
                        const GpuRequest& gpus) {
  for (int tries = 1;; ++tries) {
    auto connection = connect_or_start(directory);
    if (!connection) return connection.error();
    auto joined = begin_run(connection->get(), wanted.name, wanted.limits, wanted.backend,
                            wanted.flags, gpus);
    if (!joined) return joined.error();
    if (joined->closed && tries == kTries) return Error{joined->refusal};
    if (!joined->closed) return Asked{std::move(*connection), std::move(*joined)};
    ::poll(nullptr, 0, kBetweenTries);
  }
}

// A scheduler for all users answers again within seconds when it is restarted. A larger number
// makes runs on a machine with a broken one start later
// (TwoSchedulers.ARunWaitsForTheSystemsScheduler).
constexpr auto kWaitForScheduler = 3s;
constexpr int kLookEvery = 100;  // milliseconds

// The run directory, where a scheduler for all users had the time to come back.
Result<RunDirectory> choose_directory(Streams streams) {
  const Surroundings around = surroundings();
  auto found = find_run_directory(around);
  if (!found || found->silent.empty()) return found;
  const std::string which = found->silent == around.system
                                ? "the system's scheduler"
                                : fmt::format("the scheduler in {}", found->silent);
  const auto say = [&](const char* then) {
    streams.err << fmt::format("nvshare run: {} does not answer: {}\n", which, then);
  };
  say("waiting for it for 3 s");
  const auto deadline = Clock::now() + kWaitForScheduler;
  while (found && !found->silent.empty() && Clock::now() < deadline) {
    ::poll(nullptr, 0, kLookEvery);
    found = find_run_directory(around);
  }
  // In the system's own folder no private one is started.
  const bool in_chosen = found && !found->silent.empty() && found->path != around.system &&
                         check_private(found->path, around.user);
  const bool replaced = found && (found->kind == DirectoryKind::Private || in_chosen);
  if (replaced) say("using a private one");
  return found;
}

// A run's place at the scheduler, as its keeper asks for it. The keeper's process calls all of it,
// but for a keeper that was killed `nvshare run` does.
class RunTenant {
 public:
  RunTenant(const RunDirectory& directory, const Wanted& wanted, const GpuPlan& plan,
            Streams streams)
      : directory_(directory), wanted_(wanted), plan_(plan), name_(wanted.name), streams_(streams) {
    // What a person has chosen holds with every scheduler.
    if (plan.request.choice == wire::GpuChoice::Chosen) gpus_ = plan.request.gpus;
  }

  // The exit code when the run gets no tenant, after one line that says why.
  int join(UniqueFd& connection) {
    auto asked = take_part(directory_, wanted_, plan_.request);
    if (!asked) return complain(streams_, asked.error().message, kFailed);
    if (!asked->joined.accepted) {
      return complain(streams_, asked->joined.refusal,
                      asked->joined.other_version ? kFailed : kBadInput);
    }
    if ((wanted_.flags & ~asked->joined.flags) != 0) {
      streams_.err << "nvshare run: the scheduler is older than nvshare and does not know "
                      "--oversubscribe-self: the program can have no more than the GPU\n";
    }
    waits_when_lost_ = asked->joined.waits_when_lost;
    if (gpus_.empty()) gpus_ = asked->joined.gpus;
    if (wanted_.gpus.counted && gpus_.empty()) {
      streams_.err
          << "nvshare run: the scheduler does not choose GPUs: the program sees all of them\n";
    }
    connection = std::move(asked->connection);
    return 0;
  }

  // After the scheduler was away: the same tenant again (Tenancy::again).
  bool join_again(UniqueFd& connection) {
    if (!connection) {
      connection = ask_again();
      return false;
    }
    const auto answer = read_answer(connection.get());
    if (!answer) return false;
    const auto& joined = *answer;
    if (joined && joined->accepted) {
      waits_when_lost_ = joined->waits_when_lost;
      refused_since_.reset();
      taken_since_.reset();
      told_.clear();
      return true;
    }
    connection.reset();
    if (!joined) be_refused(joined.error().message, false);
    if (joined && !joined->closed) be_refused(joined->refusal, joined->name_taken);
    return false;
  }

  Place place() const { return make_place(name_, gpus_); }
  void take_over(const Place& place) {
    name_ = name_in(place);
    gpus_ = gpus_in(place);
  }

  void tell(bool back) const {
    const char* const lost = waits_when_lost_ ? "GPU work waits" : "limits do not hold";
    // Nobody but `nvshare run` starts a private scheduler.
    const char* const helps = directory_.kind == DirectoryKind::System
                                  ? "it is back"
                                  : "another `nvshare run` starts one";
    streams_.err << fmt::format(
        "nvshare run: the scheduler is {}{}\n",
        back ? "back" : fmt::format("gone: {} until {}", lost, helps),
        back && name_ != wanted_.name ? fmt::format(", and this run is '{}' now", name_) : "");
  }

  const std::string& name() const { return name_; }
  // What shows the program its GPUs; empty: its environment stays as it is.
  std::vector<Variable> shown() const {
    return plan_.shows ? visible_devices(gpus_, plan_.machine) : std::vector<Variable>{};
  }

 private:
  UniqueFd ask_again() const {
    const auto path = socket_path(directory_.path, wire::kProgramSocket);
    UniqueFd connection = path ? connect_at_once(*path, SOCK_SEQPACKET).socket : UniqueFd();
    if (!connection) return connection;
    const GpuRequest kept{gpus_.empty() ? wire::GpuChoice::None : wire::GpuChoice::Kept, 1, gpus_};
    ask_for_run(connection.get(), name_, wanted_.limits, wanted_.backend,
                wanted_.flags | wire::kComesBack, kept);
    return connection;
  }

  // Tells each reason once. A run that comes to another scheduler may find its name taken there.
  // Without a tenant its programs would have no limit, so the run takes another name.
  void be_refused(const std::string& why, bool name_taken) {
    const auto now = Clock::now();
    if (!refused_since_) refused_since_ = now;
    if (now - *refused_since_ >= kQuietFor && told_.insert(why).second) {
      streams_.err << fmt::format("nvshare run: the scheduler refuses the run: {}; asking again\n",
                                  why);
    }
    if (!name_taken) return taken_since_.reset();
    if (!taken_since_) taken_since_ = now;
    if (now - *taken_since_ >= kOldNameFor) name_ = default_name(wanted_.name, ::getpid());
  }

  // How long a refusal is not told. The scheduler refuses the name of a killed keeper for some
  // milliseconds. A smaller number tells that, too
  // (Run.ARunComesBackWithTheMemoryLimitOfTheEnvironment).
  static constexpr auto kQuietFor = 1s;
  // How long the old name is asked for: a killed keeper's name is free again before that. A larger
  // number leaves a run longer without a tenant
  // (TwoSchedulers.ARunWhoseNameIsTakenAtTheSystemsTakesAnother).
  static constexpr auto kOldNameFor = 5s;

  const RunDirectory& directory_;
  const Wanted& wanted_;
  const GpuPlan& plan_;
  std::string name_;
  std::vector<Uuid> gpus_;  // that the program sees, once they are known
  Streams streams_;
  bool waits_when_lost_ = false;
  std::optional<Clock::time_point> refused_since_;
  std::optional<Clock::time_point> taken_since_;  // its name
  std::set<std::string> told_;                    // why it was refused
};

int run_shared(const Wanted& wanted, const GpuPlan& plan, const std::string& library,
               Streams streams) {
  const auto directory = choose_directory(streams);
  if (!directory) return complain(streams, directory.error().message, kFailed);
  RunTenant tenant(*directory, wanted, plan, streams);
  Tenancy tenancy;
  tenancy.join = [&](UniqueFd& connection) { return tenant.join(connection); };
  tenancy.again = [&](UniqueFd& connection) { return tenant.join_again(connection); };
  tenancy.place = [&] { return tenant.place(); };
  tenancy.take_over = [&](const Place& place) { tenant.take_over(place); };
  tenancy.tell = [&](bool back) { tenant.tell(back); };
  tenancy.tell_shortage = [&](const wire::Shortage& shortage) {
    streams.err << fmt::format("nvshare run: {}\n", shortage_text(tenant.name(), shortage));
  };
  tenancy.tell_left = [&](int processes) {
    streams.err << fmt::format(
        "nvshare run: the program has ended, and {} process{} of the run {} left: waiting for the "
        "end of all; Ctrl-C ends the waiting\n",
        processes, processes == 1 ? "" : "es", processes == 1 ? "is" : "are");
  };
  tenancy.cannot_start = [&](int error) {
    return complain(streams, why_not_started(wanted.words[0], error), exit_code_of_exec(error));
  };
  const auto environment = [&] {
    return sharing_environment(library, directory->path, tenant.shown());
  };
  return supervise({wanted.words, environment}, tenancy);
}

int run(const Arguments& arguments, Streams streams) {
  if (arguments.positionals().empty()) {
    return complain(streams, "CMD is missing (see nvshare run --help)", kBadInput);
  }
  const auto wanted = read_wanted(arguments);
  if (!wanted) return complain(streams, wanted.error().message, kBadInput);
  if (const int error = find_program(wanted->words[0]); error != 0) {
    return complain(streams, why_not_started(wanted->words[0], error), exit_code_of_exec(error));
  }
  const auto library = preload_library();
  if (!library) return complain(streams, library.error().message, kFailed);
  if (!driver_is_there()) return run_unshared(*wanted, streams);
  const auto plan = plan_gpus(wanted->gpus);
  if (!plan) return complain(streams, plan.error().message, kBadInput);
  return run_shared(*wanted, *plan, *library, streams);
}

}  // namespace

Command run_command() {
  CommandSpec spec;
  spec.name = "run";
  spec.summary = "Run a program that shares the GPU with others";
  spec.positionals = {{"CMD", "the program, with its arguments", false}};
  spec.options = {{"name", 'n', "NAME", "what to call it; default: the program and a number"}};
  for (const Option& option : limit_options()) spec.options.push_back(option);
  spec.options.push_back({"gpu", 'g', "WHICH",
                          "auto (the scheduler finds the GPU with room and the least work), all, a "
                          "number as nvidia-smi counts, a UUID, a list of those, or 2x for any "
                          "two; default: auto, or CUDA_VISIBLE_DEVICES where that is set"});
  spec.options.push_back({"backend", 0, "NAME",
                          "what becomes of its memory: native stays on the GPU, swap can leave it, "
                          "managed is unified memory"});
  spec.options.push_back({"oversubscribe-self", 0, "",
                          "it may have more memory than the GPU by itself, which makes it slow; "
                          "implies --backend managed"});
  spec.takes_program = true;
  spec.more =
      "Without a scheduler that answers, a private one is started; it ends by itself.\n"
      "Processes that the program leaves behind stay in the run, with its limits.\n"
      "The exit code is the program's; 127 and 126 when it cannot be found or started,\n"
      "2 for wrong values and 1 when it cannot share: then nothing is started.\n\n"
      "examples:\n"
      "  nvshare run -- python train.py\n"
      "  nvshare run --name train --cores 40 --mem 8Gi -- python train.py\n"
      "  nvshare run --priority 5 -- ./serve    (a scheduler for all users refuses more than 0,\n"
      "                                          until `nvshare limit USER --priority 5`)\n"
      "  nvshare run --gpu 1 -- python train.py\n"
      "  nvshare run --gpu 2x -- torchrun --nproc-per-node 2 train.py";
  return {spec, run};
}

}  // namespace nvshare::cli
