#include "cli/run/private_scheduler.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/units.h"
#include "cli/run/descriptors.h"
#include "cli/run/installed.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStartsWithin = 10s;
constexpr auto kLockWithin = 15s;  // whoever starts one gives up before
constexpr off_t kLongestLog = 1 << 20;
constexpr int kReadyFd = 3;  // in the scheduler
constexpr std::size_t kLinesShown = 5;

std::string log_path(const std::string& directory) {
  return directory + "/scheduler.log";
}

Result<UniqueFd> connect_to_programs(const std::string& path) {
  const int connection = wire::connect_to(path.c_str());
  if (connection < 0) return Error{std::strerror(-connection)};
  return UniqueFd(connection);
}

// The scheduler appends, so that its log can be cut short while it runs.
void keep_log_short(const std::string& directory) {
  struct stat found {};
  const std::string path = log_path(directory);
  if (::lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && found.st_size > kLongestLog) {
    [[maybe_unused]] const int cut = ::truncate(path.c_str(), 0);
  }
}

std::string end_of_log(const std::string& directory) {
  std::ifstream file(log_path(directory));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLinesShown) lines.erase(lines.begin());
  }
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

Result<UniqueFd> lock(const std::string& directory, const char* name) {
  const std::string path = directory + "/" + name;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return Error{fmt::format("{}: {}", path, std::strerror(errno))};
  const auto deadline = Clock::now() + kLockWithin;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return Error{fmt::format("{}: {}", path, std::strerror(errno))};
    }
    if (Clock::now() > deadline) return Error{fmt::format("{}: held for too long", path)};
    ::poll(nullptr, 0, 20);
  }
  return file;
}

// Which scheduler is started, and where.
struct SchedulerStart {
  std::string program;
  std::string directory;
  std::string gives_way_to;  // the system's run directory; empty: to nobody
};

// In the child: away from the terminal and from everything that this process has open.
[[noreturn]] void become_scheduler(const SchedulerStart& begin, int ready, int log) {
  ::setsid();
  const int null = ::open("/dev/null", O_RDONLY);
  // Out of the way first, for either may be one of the numbers that are filled here.
  ready = ::fcntl(ready, F_DUPFD, 10);
  log = ::fcntl(log, F_DUPFD, 10);
  ::dup2(null, 0);
  ::dup2(log, 1);
  ::dup2(log, 2);
  ::dup2(ready, kReadyFd);
  close_all_but({kReadyFd});
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGCHLD}) ::signal(signal, SIG_DFL);
  ::umask(077);
  [[maybe_unused]] const int moved = ::chdir("/");
  // Whatever is preloaded here, the interposer perhaps, is not for the scheduler.
  ::unsetenv("LD_PRELOAD");
  const std::string fd = std::to_string(kReadyFd);
  const char* const program = begin.program.c_str();
  // The option and its value are the last ones: without it the list ends before.
  ::execl(program, program, "--private", "--run-dir", begin.directory.c_str(), "--ready-fd",
          fd.c_str(), begin.gives_way_to.empty() ? nullptr : "--gives-way-to",
          begin.gives_way_to.c_str(), static_cast<char*>(nullptr));
  const std::string line = fmt::format("{}: {}\n", program, std::strerror(errno));
  [[maybe_unused]] const auto said = ::write(2, line.data(), line.size());
  ::_exit(127);
}

// Runs `work`, which does not return, in a process that is no child of this one: a keeper waits for
// all its children, and the scheduler outlives it. Returns a pidfd.
template <typename Work>
Result<UniqueFd> fork_away(Work work) {
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return Error{std::strerror(errno)};
  const UniqueFd reading(pair[0]);
  UniqueFd writing(pair[1]);
  const pid_t between = ::fork();
  if (between < 0) return Error{fmt::format("fork: {}", std::strerror(errno))};
  if (between == 0) {
    const pid_t away = ::fork();
    if (away == 0) work();
    const int told = away > 0 ? away : -errno;
    ::_exit(::write(writing.get(), &told, sizeof told) == sizeof told ? 0 : 1);
  }
  writing.reset();
  int told = 0;
  const bool heard = ::read(reading.get(), &told, sizeof told) == sizeof told;
  UniqueFd process(told > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, told, 0)) : -1);
  ::waitpid(between, nullptr, 0);
  if (!heard || told < 0) return Error{fmt::format("fork: {}", std::strerror(-told))};
  return process;
}

// True once the scheduler has said that it is ready; false when it closes, or too late.
bool wait_until_ready(int ready) {
  const auto deadline = Clock::now() + kStartsWithin;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{ready, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    char byte;
    const auto got = ::read(ready, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    return got == 1;
  }
}

Result<void> start(const SchedulerStart& begin) {
  const std::string log = log_path(begin.directory);
  UniqueFd file(
      ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return Error{fmt::format("{}: {}", log, std::strerror(errno))};
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return Error{std::strerror(errno)};
  UniqueFd ready(pair[0]);
  UniqueFd says_ready(pair[1]);
  const auto process = fork_away([&] { become_scheduler(begin, says_ready.get(), file.get()); });
  if (!process) return process.error();
  says_ready.reset();
  if (wait_until_ready(ready.get())) return {};
  ::syscall(SYS_pidfd_send_signal, process->get(), SIGKILL, nullptr, 0);
  return Error{fmt::format("the private scheduler did not start; the end of {}:{}", log,
                           end_of_log(begin.directory))};
}

}  // namespace

Result<UniqueFd> connect_or_start(const RunDirectory& directory) {
  const auto path = socket_path(directory.path, wire::kProgramSocket);
  if (!path) return path.error();
  if (auto connection = connect_to_programs(*path)) {
    if (directory.kind == DirectoryKind::Private) keep_log_short(directory.path);
    return connection;
  }
  const Surroundings around = surroundings();
  if (directory.path == around.system) {
    return Error{fmt::format("the system's scheduler does not answer in {}: start it, or unset {}",
                             directory.path, wire::kRunDirectoryVariable)};
  }
  const auto program = scheduler_program();
  if (!program) return program.error();
  if (const auto made = make_private(directory.path, around.user); !made) {
    return made.error().with_context("no scheduler is running, and none can be started");
  }
  const auto locked = lock(directory.path, "start.lock");
  if (!locked) return locked.error();
  // Somebody else may have started one while this waited for the lock.
  if (auto connection = connect_to_programs(*path)) return connection;
  // One that does not answer any more may not be gone yet, and only one can live there.
  if (const auto gone = lock(directory.path, wire::kSchedulerLock); !gone) return gone.error();
  // A scheduler in a directory that the user chose stays, even beside the system's.
  const bool is_default = directory.path == private_directory(around);
  const auto started = start({*program, directory.path, is_default ? around.system : ""});
  if (!started) return started.error();
  auto connection = connect_to_programs(*path);
  if (!connection) return connection.error().with_context(*path);
  return connection;
}

}  // namespace nvshare::cli
