// nvshare-scheduler: reads its settings, and wires the parts together.

#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "config/options.h"
#include "core/arbiter/usage_meter.h"
#include "daemon/broker/broker.h"
#include "daemon/host/arena.h"
#include "daemon/host/gpus.h"
#include "daemon/host/users.h"
#include "daemon/kept.h"
#include "daemon/lease/service.h"
#include "daemon/serve/changes.h"
#include "daemon/serve/control.h"
#include "daemon/serve/control_server.h"
#include "daemon/serve/giving_way.h"
#include "daemon/serve/notify.h"
#include "daemon/serve/programs.h"
#include "daemon/serve/run_directory.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

enum ExitCode { kGood = 0, kFailed = 1, kBadInput = 2 };

constexpr const char* kProgram = "nvshare-scheduler";
constexpr const char* kDefaultConfig = "/etc/nvshare/scheduler.toml";
constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";
constexpr Duration kSamplePeriod = 1s;
constexpr Duration kPrivateGrace = 2s;  // without anybody, until a private scheduler goes
constexpr Duration kFirstGrace = 10s;   // the same before anybody has come
// Between two looks for the scheduler that this one gives way to. A larger number leaves programs
// longer under two schedulers (TwoSchedulers.AJobReturnsToTheSystemsScheduler).
constexpr Duration kKnockPeriod = 1s;

int complain(const std::string& what, int code) {
  std::fprintf(stderr, "%s: %s\n", kProgram, what.c_str());
  return code;
}

config::CommandSpec spec() {
  config::CommandSpec spec;
  spec.summary = "Share this machine's GPUs among programs";
  spec.options = {
      {"config", 'c', "FILE", "settings; without it /etc/nvshare/scheduler.toml, if it is there"},
      {"run-dir", 0, "DIR", "where the sockets are; goes before the settings' run_directory"},
      {"private", 0, "", "for this user alone; ends when nobody has been connected for a while"},
      {"gives-way-to", 0, "DIR", "ends when a scheduler answers in DIR, and sends programs there"},
      {"ready-fd", 0, "N", "a line is written to this descriptor once programs can connect"},
      {"check-config", 0, "", "say what is wrong with the settings, or ok"},
      {"print-config", 0, "", "print the settings as a file"},
      {"version", 0, "", "print the version"},
  };
  spec.more =
      "Settings come from the file and then from the environment: NVSHARE_TURN=10ms sets turn.\n"
      "--print-config lists them all.";
  return spec;
}

struct Options {
  bool is_private = false;
  std::optional<int> ready_fd;
  std::optional<std::string> gives_way_to;
};

// --- settings ----------------------------------------------------------------------------------

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  const auto failed = [&] { return Error{fmt::format("{}: {}", path, std::strerror(errno))}; };
  if (!file) return failed();
  // Copying nothing would count as a failure.
  const bool is_empty = file.peek() == std::ifstream::traits_type::eof();
  if (file.bad() || (!is_empty && !(text << file.rdbuf()))) return failed();
  return text.str();
}

Result<Loaded> load(const config::Arguments& arguments) {
  std::optional<std::string> name = arguments.value("config");
  if (!name && access(kDefaultConfig, R_OK) == 0) name = kDefaultConfig;
  std::optional<std::string> text;
  if (name) {
    auto read = read_file(*name);
    if (!read) return read.error();
    text = std::move(*read);
  }
  Loaded loaded = load_settings(
      text ? std::optional<std::string_view>(*text) : std::nullopt, name.value_or(""),
      [](const char* v) { return std::getenv(v); }, system_names());
  if (const auto folder = arguments.value("run-dir")) loaded.settings.run_directory = *folder;
  return loaded;
}

std::string tables_without_effect(const Settings& settings) {
  const auto own = read_file("/proc/self/cgroup");
  return without_effect(settings.tables, own ? *own : "");
}

// What tells whose a process is. Of a private scheduler all programs are one user's.
Ownership ownership_of(const Settings& settings, bool is_private) {
  Ownership ownership;
  ownership.cgroups = settings.tables.cgroups();
  if (is_private) return ownership;
  const auto users = std::make_shared<SubordinateUsers>(system_names().user);
  ownership.user_of = [users](std::uint32_t uid) { return users->user_of(uid); };
  const auto mounts = read_file("/proc/self/mountinfo");
  if (const auto groups = mounts ? RunGroups::find(*mounts) : std::nullopt) {
    ownership.is_of_a_user = [groups](const std::string& group) {
      return groups->is_of_a_user(group);
    };
  }
  return ownership;
}

// --- the scheduler -----------------------------------------------------------------------------

// All of it, in the order in which it depends on each other.
class Scheduler {
 public:
  Scheduler(Reactor reactor, Settings settings, const Options& options)
      : options_(options),
        settings_(std::move(settings)),
        reactor_(std::move(reactor)),
        log_(settings_.log_level, write_to(STDERR_FILENO)),
        processes_("/proc", ownership_of(settings_, options.is_private)),
        state_file_(settings_.state_path()),
        kept_(
            log_, Declared(settings_.tables, groups_of_user),
            [this](const State& state, Durable durable) {
              return state_file_.save(state, durable);
            },
            [] { return static_cast<WallTime>(std::time(nullptr)); }),
        programs_(reactor_, settings_, kept_, processes_, log_),
        broker_(settings_.core, reactor_.now(), programs_, log_),
        changes_(broker_, settings_, kept_, log_, system_names().user),
        leases_(
            reactor_, broker_, settings_, processes_, log_,
            [this](const SettingTexts& texts) {
              return changes_.set_settings(texts, reactor_.now());
            },
            [this](int pid, std::uint32_t uid) { return programs_.tenant_name(pid, uid); }),
        control_(broker_, settings_, changes_, processes_, {reactor_.now(), options.is_private}),
        control_server_(
            reactor_, log_,
            [this](std::string_view line) { return control_.answer(line, reactor_.now()); }),
        alone_since_(reactor_.now()) {}

  Result<void> start(const RunDirectory& folder, const sigset_t& signals);
  void run();
  // The sockets of the run directory are another scheduler's now.
  bool gave_way() const { return gave_way_; }

 private:
  Result<void> find_gpus();
  void follow_settings();
  void sample_meters(Time now);
  Result<void> make_arena();
  void hand_out_arena();
  void make_run_groups();
  void restore_state();
  Result<void> listen(const RunDirectory& folder);
  Result<void> watch_signals(const sigset_t& signals);
  void say_ready();
  std::optional<Time> end_when_alone(Time now);
  Time give_way(const std::string& directory, Time now);
  std::optional<Time> end_of_turn();

  Options options_;
  Settings settings_;
  Reactor reactor_;
  Log log_;
  Processes processes_;
  StateFile state_file_;
  Kept kept_;
  ProgramServer programs_;
  Broker broker_;
  std::shared_ptr<NvmlGpus> nvml_;
  std::unique_ptr<GpuSampler> sampler_;
  std::optional<GpuMonitor> monitor_;
  std::map<GpuId, core::UsageMeter> meters_;  // without NVML
  std::unique_ptr<Arena> arena_;
  Changes changes_;
  LeaseService leases_;
  Control control_;
  ControlServer control_server_;
  UniqueFd signals_;
  std::optional<Duration> watchdog_ = watchdog_period();
  bool somebody_came_ = false;
  bool gave_way_ = false;
  Time alone_since_;
  Time next_sample_{};
  Time next_meters_{};
  Time next_watchdog_{};
  Time next_knock_{};
};

Result<void> Scheduler::find_gpus() {
  changes_.on_settings([this] { follow_settings(); });
  control_.set_leases(leases_.facts());
  auto nvml = NvmlGpus::open(kNvmlLibrary);
  if (!nvml) {
    log_.warn("no_nvml", {{"reason", nvml.error().message},
                          {"effect", "GPUs are taken as programs describe them"}});
    broker_.accept_claimed_gpus();
    return {};
  }
  monitor_.emplace(broker_, [this](GpuId gpu, const core::UsageSample& usage) {
    leases_.leases().take_sample(gpu, usage);
  });
  control_.set_monitor(&*monitor_);
  nvml_ = std::move(*nvml);
  const std::vector<FoundGpu>& found = nvml_->found();
  if (const auto added = monitor_->add_gpus(found, reactor_.now()); !added) return added;
  auto sampler = GpuSampler::start(
      found.size(), [gpus = nvml_](std::size_t gpu) { return gpus->sample(gpu); },
      settings_.usage_sample_interval);
  if (!sampler) return sampler.error();
  sampler_ = std::move(*sampler);
  return reactor_.watch(sampler_->ready(), EPOLLIN, [this](std::uint32_t) {
    monitor_->update(sampler_->take(), reactor_.now());
  });
}

void Scheduler::follow_settings() {
  if (sampler_) sampler_->set_period(settings_.usage_sample_interval);
  leases_.follow_settings();
}

// Without NVML only the bills say how busy the GPUs are.
void Scheduler::sample_meters(Time now) {
  broker_.read_meters(now);
  const core::Snapshot snapshot = broker_.core().snapshot();
  for (const auto& [gpu, record] : broker_.gpus()) {
    const auto usage = meters_[gpu].read(snapshot, gpu, std::nullopt, now, now);
    if (usage) leases_.leases().take_sample(gpu, *usage);
  }
}

Result<void> Scheduler::make_arena() {
  auto arena = Arena::start(settings_.arena_limit, HostMemory());
  if (!arena) return arena.error();
  arena_ = std::move(*arena);
  broker_.set_backend(settings_.memory_backend);
  broker_.places().set_arena(*arena_);
  log_.info("arena", {{"limit", arena_->limit().count}, {"possible", arena_->most().count}});
  return reactor_.watch(arena_->ready(), EPOLLIN, [this](std::uint32_t) { hand_out_arena(); });
}

void Scheduler::hand_out_arena() {
  for (Arena::Piece& piece : arena_->take()) {
    if (!piece.memory) {
      broker_.places().failed(piece.client, piece.bytes, piece.memory.error().message,
                              reactor_.now());
      continue;
    }
    const auto client = broker_.clients().find(piece.client);
    if (client == broker_.clients().end()) continue;
    const UniqueFd theirs = std::move(piece.memory->theirs);
    const Bytes bytes = piece.bytes;
    const SegmentId segment = arena_->keep(client->second.pid, std::move(piece));
    broker_.places().ready(client->first, theirs.get(), bytes, reactor_.now(), segment);
  }
}

// Only root may move processes of all users. A private scheduler has one user alone.
void Scheduler::make_run_groups() {
  if (options_.is_private || !settings_.run_cgroups || geteuid() != 0) return;
  const auto mounts = read_file("/proc/self/mountinfo");
  auto groups = mounts ? RunGroups::find(*mounts) : std::nullopt;
  if (!groups) return log_.info("no_run_cgroups", {{"reason", "cgroup2 is not mounted"}});
  log_.info("run_cgroups", {{"folder", groups->folder()}});
  programs_.use_groups(std::move(*groups));
}

// What a scheduler before this one has kept, before anybody connects.
void Scheduler::restore_state() {
  StateFile::Found found = state_file_.load();
  for (const std::string& problem : found.problems) {
    log_.error("state_set_aside",
               {{"reason", problem},
                {"effect", found.any ? "the one before is used" : "a start without state"}});
  }
  if (found.state.left_out > 0) {
    log_.error("state_left_out", {{"records", found.state.left_out},
                                  {"effect", "these changes are lost, all others are kept"}});
  }
  kept_.restore(std::move(found.state), boot_id(),
                [this](const KeptRun& run) { return programs_.has_processes(run); });
  changes_.restore(reactor_.now());
  programs_.restore_runs(broker_);
  leases_.restore(kept_);
  kept_.write_now();
}

// The program socket comes last: everybody takes a scheduler that answers there for a complete one
// (SchedulerLeases.TheSocketsForPeopleAreThereBeforeTheOneForPrograms).
Result<void> Scheduler::listen(const RunDirectory& folder) {
  leases_.serve(folder.file(wire::kApiSocket), options_.is_private);
  auto control = listen_for_control(folder.file(wire::kControlSocket),
                                    options_.is_private ? "" : settings_.control_group);
  if (!control) return control.error();
  if (const auto served = control_server_.serve(std::move(*control)); !served) return served;
  const std::string path = folder.file(wire::kProgramSocket);
  const int listener = wire::listen_at(path.c_str(), options_.is_private ? 0600 : 0666);
  if (listener < 0) return Error{fmt::format("{}: {}", path, std::strerror(-listener))};
  return programs_.serve(UniqueFd(listener), broker_);
}

Result<void> Scheduler::watch_signals(const sigset_t& signals) {
  signals_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return Error{"signals cannot be watched"};
  return reactor_.watch(signals_.get(), EPOLLIN, [this](std::uint32_t) {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) != sizeof info) return;
    log_.info("stopping", {{"signal", info.ssi_signo}});
    reactor_.stop();
  });
}

void Scheduler::say_ready() {
  notify_manager("READY=1");
  if (!options_.ready_fd) return;
  [[maybe_unused]] const auto written = write(*options_.ready_fd, "\n", 1);
  close(*options_.ready_fd);
}

Result<void> Scheduler::start(const RunDirectory& folder, const sigset_t& signals) {
  log_.set_time(reactor_.now());
  if (const std::string useless = tables_without_effect(settings_); !useless.empty()) {
    log_.warn("tables_without_effect", {{"reason", useless}});
  }
  if (const auto good = watch_signals(signals); !good) return good;
  if (const auto good = find_gpus(); !good) return good;
  if (const auto good = make_arena(); !good) return good;
  make_run_groups();
  restore_state();
  if (const auto good = listen(folder); !good) return good;
  log_.info("started", {{"version", NVSHARE_VERSION},
                        {"run_directory", folder.path()},
                        {"policy", core::name_of(settings_.core.policy)},
                        {"private", options_.is_private ? 1 : 0}});
  say_ready();
  return {};
}

// A private scheduler goes when nobody needs it: when that will be.
std::optional<Time> Scheduler::end_when_alone(Time now) {
  if (programs_.busy() || leases_.busy()) {
    somebody_came_ = true;
    alone_since_ = now;
    return std::nullopt;
  }
  const Time due = alone_since_ + (somebody_came_ ? kPrivateGrace : kFirstGrace);
  if (due <= now) {
    log_.info("stopping", {{"reason", "nobody is connected"}});
    reactor_.stop();
  }
  return due;
}

// Two schedulers do not know of each other: each takes the other's programs for foreign ones.
// Returns when to look again.
Time Scheduler::give_way(const std::string& directory, Time now) {
  if (now < next_knock_ || gave_way_) return next_knock_;
  next_knock_ = now + kKnockPeriod;
  if (broker_.gpus().empty() || !answers_in(directory, broker_.gpus().begin()->second.uuid)) {
    return next_knock_;
  }
  if (const auto linked = link_sockets(settings_.run_directory, directory); !linked) {
    log_.error("cannot_give_way", {{"to", directory}, {"reason", linked.error().message}});
    return next_knock_;
  }
  log_.info("stopping", {{"reason", "gives way"}, {"to", directory}});
  gave_way_ = true;
  reactor_.stop();
  return next_knock_;
}

// What is due at this time; the answer is when to look again.
std::optional<Time> Scheduler::end_of_turn() {
  const Time now = reactor_.now();
  log_.set_time(now);
  if (broker_.next_wakeup() && *broker_.next_wakeup() <= now) broker_.tick(now);
  if (next_sample_ <= now) {
    arena_->look();
    arena_->refresh(broker_.places().given(), broker_.places().brought());
    broker_.sample(now);
    programs_.look_after_runs();
    changes_.look(now, [this] { return processes_.boxes(); });
    leases_.look();
    next_sample_ = now + kSamplePeriod;
  }
  leases_.follow_gpus();
  if (!sampler_ && next_meters_ <= now) {
    sample_meters(now);
    next_meters_ = now + settings_.usage_sample_interval;
  }
  Time next = next_sample_;
  const auto at = [&](std::optional<Time> due) {
    if (due) next = std::min(next, *due);
  };
  at(leases_.end_of_turn());  // first, because its requests may change settings
  at(programs_.end_of_turn());
  at(broker_.next_wakeup());
  at(kept_.write_some(now));
  if (!sampler_) at(next_meters_);
  if (watchdog_) {
    if (next_watchdog_ <= now) {
      notify_manager("WATCHDOG=1");
      next_watchdog_ = now + *watchdog_;
    }
    at(next_watchdog_);
  }
  if (options_.is_private) at(end_when_alone(now));
  // Services that hold leases here are not known there.
  if (options_.gives_way_to && !leases_.busy()) at(give_way(*options_.gives_way_to, now));
  return next;
}

void Scheduler::run() {
  reactor_.run([this] { return end_of_turn(); });
  leases_.end_of_turn();  // answers of the last turn
  programs_.remove_groups();
  kept_.write_now();
  notify_manager("STOPPING=1");
}

// Signals are taken by the loop; no thread of ours is ever interrupted.
sigset_t block_signals(bool is_private) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGIO, SIG_IGN);  // somebody opens what the arena has a lease on, for a moment
  if (!is_private) signal(SIGHUP, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (is_private) sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Each client takes two descriptors, and each piece of the arena one.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Each hand-over of a GPU waits for the scheduler to be woken: on a busy machine it goes first, as
// far as it may.
void raise_priority() {
  constexpr int kNice = -10;
  (void)setpriority(PRIO_PROCESS, 0, kNice);
}

int serve(Settings settings, const Options& options) {
  const sigset_t signals = block_signals(options.is_private);
  raise_descriptor_limit();
  raise_priority();
  umask(0077);
  const auto folder = RunDirectory::take(settings.run_directory, options.is_private);
  if (!folder) return complain(folder.error().message, kFailed);
  auto reactor = Reactor::make();
  if (!reactor) return complain(reactor.error().message, kFailed);
  settings.is_private = options.is_private;
  Scheduler scheduler(std::move(*reactor), std::move(settings), options);
  if (const auto started = scheduler.start(*folder, signals); !started) {
    return complain(started.error().message, kFailed);
  }
  scheduler.run();
  if (scheduler.gave_way()) return kGood;
  unlink(folder->file(wire::kProgramSocket).c_str());
  unlink(folder->file(wire::kControlSocket).c_str());
  unlink(folder->file(wire::kApiSocket).c_str());
  return kGood;
}

int run(const std::vector<std::string>& words) {
  const config::CommandSpec known = spec();
  const auto arguments = config::parse(known, words);
  if (!arguments) {
    return complain(fmt::format("{} (see {} --help)", arguments.error().message, kProgram),
                    kBadInput);
  }
  if (arguments->has("help"))
    return std::fputs(config::help_of(kProgram, known).c_str(), stdout), 0;
  if (arguments->has("version")) return std::printf("%s %s\n", kProgram, NVSHARE_VERSION), kGood;
  Options options;
  options.is_private = arguments->has("private");
  if (const auto given = arguments->value("ready-fd")) {
    const auto fd = parse_integer(*given, 0, 1 << 20);
    if (!fd) return complain("--ready-fd: " + fd.error().message, kBadInput);
    options.ready_fd = static_cast<int>(*fd);
  }
  options.gives_way_to = arguments->value("gives-way-to");
  const auto loaded = load(*arguments);
  if (!loaded) return complain(loaded.error().message, kBadInput);
  for (const std::string& problem : loaded->problems) complain(problem, kBadInput);
  if (!loaded->problems.empty()) return kBadInput;
  if (arguments->has("check-config")) {
    const std::string useless = tables_without_effect(loaded->settings);
    if (!useless.empty()) complain(useless, kGood);
    return std::puts("ok"), kGood;
  }
  if (arguments->has("print-config")) {
    return std::fputs(to_file(loaded->settings).c_str(), stdout), kGood;
  }
  return serve(loaded->settings, options);
}

}  // namespace
}  // namespace nvshare::daemon

int main(int argc, char** argv) {
  return nvshare::daemon::run({argv + 1, argv + argc});
}
