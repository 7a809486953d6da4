#include "harness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "daemon/broker/broker.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

using Clock = std::chrono::steady_clock;

int left(Clock::time_point until) {
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(0, rest.count()));
}

// Within time; -1 when it goes on.
int wait_for(pid_t& pid, std::chrono::milliseconds patience) {
  int status = -1;
  const bool ended = eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }, patience);
  if (!ended) return -1;
  pid = -1;
  return status;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  while (!holds()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// --- the scheduler -----------------------------------------------------------------------------

SchedulerProcess::SchedulerProcess(const Setup& setup) {
  char name[] = "/tmp/nvshare-scheduler-XXXXXX";
  folder_ = mkdtemp(name);
  setenv("NVSHARE_SOFTGPU_CARD", std::filesystem::path(folder_).filename().c_str(), 1);
  setenv("NVSHARE_SOFTGPU_MEMORY", "8Gi", 1);
  EXPECT_TRUE(again(setup)) << "the scheduler did not start: " << log();
}

bool SchedulerProcess::again(const Setup& setup) {
  int ready[2];
  EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const UniqueFd reader(ready[0]);
  UniqueFd writer(ready[1]);
  pid_ = start(setup.arguments, setup, writer.get(), folder_ + "/log");
  writer.reset();
  pollfd listening{reader.get(), POLLIN, 0};
  char line = 0;
  const bool said =
      poll(&listening, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1 &&
      read(reader.get(), &line, 1) == 1;
  return said && line == '\n';
}

pid_t SchedulerProcess::start(const std::vector<std::string>& arguments, const Setup& setup,
                              int ready, const std::string& log) const {
  std::vector<std::string> words{NVSHARE_SCHEDULER, "--run-dir", folder_};
  if (ready >= 0) {
    words.push_back("--ready-fd");
    words.push_back(std::to_string(ready));
  }
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing outlives a test that is killed
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(out, STDERR_FILENO);
  if (ready >= 0) fcntl(ready, F_SETFD, 0);
  // The tests' own process begins runs, and would have to stay in their cgroups.
  setenv("NVSHARE_RUN_CGROUPS", setup.cgroups ? "true" : "false", 1);
  setenv("NVSHARE_HTTP_LISTEN", "off", 1);  // tests run side by side
  if (setup.nvml) setenv("LD_LIBRARY_PATH", NVSHARE_SOFTGPU_FOLDER, 1);
  for (const std::string& one : setup.environment) putenv(const_cast<char*>(one.c_str()));
  if (setup.descriptors > 0) {
    const rlimit limit{setup.descriptors, setup.descriptors};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  execv(raw[0], raw.data());
  _exit(127);
}

SchedulerProcess::~SchedulerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    const int status = wait_for(pid_, kPatience);
    EXPECT_EQ(status, 0) << "the scheduler does not end, or not well";
    if (status == -1) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  if (testing::Test::HasFailure()) std::fprintf(stderr, "%s", log().c_str());
  std::filesystem::remove_all(folder_);
}

std::string SchedulerProcess::log() const {
  return read_all(folder_ + "/log");
}

std::size_t SchedulerProcess::descriptors() const {
  std::size_t count = 0;
  for (const auto& one :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd")) {
    (void)one;
    ++count;
  }
  return count;
}

bool SchedulerProcess::alive() const {
  return pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0;
}

void SchedulerProcess::signal(int number) const {
  kill(pid_, number);
}

Ended SchedulerProcess::wait(std::chrono::milliseconds patience) {
  const int status = wait_for(pid_, patience);
  return {status, log()};
}

Ended SchedulerProcess::another(const std::vector<std::string>& arguments) {
  const std::string log = folder_ + "/another";
  pid_t pid = start(arguments, {}, -1, log);
  const int status = wait_for(pid, kPatience);
  if (status == -1) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return {status, read_all(log)};
}

json SchedulerProcess::ask(const json& request) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, control_socket().c_str(), sizeof address.sun_path - 1);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) return {};
  const std::string line = request.dump() + "\n";
  if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) return {};
  std::string answer;
  const auto until = Clock::now() + kPatience;
  while (answer.find('\n') == std::string::npos) {
    pollfd readable{socket.get(), POLLIN, 0};
    char buffer[4096];
    if (poll(&readable, 1, left(until)) != 1) return {};
    const auto length = read(socket.get(), buffer, sizeof buffer);
    if (length <= 0) return {};
    answer.append(buffer, static_cast<std::size_t>(length));
  }
  return json::parse(answer, nullptr, false);
}

json SchedulerProcess::tenant(const std::string& name) const {
  const json answer = status();
  for (const json& one : answer.value("tenants", json::array())) {
    if (one["name"] == name) return one;
  }
  return nullptr;
}

int SchedulerProcess::clients() const {
  int count = 0;
  const json answer = status();
  for (const json& gpu : answer.value("gpus", json::array())) count += gpu.value("clients", 0);
  return count;
}

// --- programs ----------------------------------------------------------------------------------

TestProgram::TestProgram(const SchedulerProcess& scheduler) : TestProgram(scheduler, geteuid()) {}

TestProgram::TestProgram(const SchedulerProcess& scheduler, uid_t user) {
  hello_ = wire::make<wire::Hello>();
  hello_.magic = wire::kMagic;
  hello_.major = wire::kMajor;
  hello_.minor = wire::kMinor;
  hello_.gpu_memory = 8ull << 30;
  wire::put_text(hello_.program, sizeof hello_.program, "test");
  const json status = scheduler.status();
  if (status.contains("gpus") && !status["gpus"].empty()) {
    const auto uuid = parse_uuid(status["gpus"][0]["uuid"].get<std::string>());
    if (uuid) std::memcpy(hello_.gpu, uuid->data(), uuid->size());
  }
  // The kernel notes the effective user when a program connects.
  const uid_t own = geteuid();
  if (seteuid(user) != 0) return;
  socket_.reset(wire::connect_to(scheduler.program_socket().c_str()));
  if (seteuid(own) != 0) abort();
}

bool TestProgram::send_packet(const void* bytes, std::size_t size) {
  return ::send(fd(), bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

const wire::Header* TestProgram::next(Clock::time_point until) {
  pollfd readable{fd(), POLLIN, 0};
  if (poll(&readable, 1, left(until)) != 1) return nullptr;
  int received = -1;
  const int length = wire::receive(fd(), buffer_, false, &received);
  UniqueFd shared(received);
  if (length <= 0) return nullptr;
  const wire::Header* header = wire::look_at(buffer_, static_cast<std::size_t>(length));
  if (wire::as<wire::Arena>(header) != nullptr || wire::as<wire::ArenaShared>(header) != nullptr) {
    arena_ = std::move(shared);
  } else if (wire::as<wire::IpcWanted>(header) != nullptr ||
             wire::as<wire::IpcPeer>(header) != nullptr) {
    ipc_ = std::move(shared);
  } else if (shared) {
    void* mapped =
        mmap(nullptr, wire::kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, shared.get(), 0);
    if (mapped != MAP_FAILED) page_ = static_cast<wire::Page*>(mapped);
  }
  if (const auto* refused = wire::as<wire::Refused>(header)) refused_ = refused->reason;
  return header;
}

bool TestProgram::closed(std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  while (next(until) != nullptr) {
  }
  return wire::receive(fd(), buffer_, false) == 0;
}

std::optional<wire::Welcome> TestProgram::hello(std::uint64_t allocated, std::uint64_t resident) {
  hello_.allocated = allocated;
  hello_.resident = resident;
  if (!say(hello_)) return std::nullopt;
  return hear<wire::Welcome>();
}

std::optional<wire::View> TestProgram::look() {
  auto message = wire::make<wire::Look>();
  message.magic = hello_.magic;
  message.major = hello_.major;
  message.minor = hello_.minor;
  std::memcpy(message.gpu, hello_.gpu, sizeof message.gpu);
  if (!say(message)) return std::nullopt;
  return hear<wire::View>();
}

std::optional<wire::IpcPeer> TestProgram::ipc_open(std::uint8_t owner,
                                                   const wire::IpcMemory& memory) {
  auto message = wire::make<wire::IpcOpen>();
  message.magic = hello_.magic;
  message.major = hello_.major;
  message.minor = hello_.minor;
  message.owner[0] = owner;
  message.memory = memory;
  if (!say(message)) return std::nullopt;
  return hear<wire::IpcPeer>();
}

bool TestProgram::ipc_exports(std::uint8_t name) {
  auto message = wire::make<wire::IpcExports>();
  message.name[0] = name;
  return say(message);
}

std::optional<wire::Welcome> TestProgram::run_begin(const std::string& name, int cores,
                                                    std::uint64_t memory, std::uint32_t flags) {
  auto message = wire::make<wire::RunBegin>();
  message.magic = wire::kMagic;
  message.major = wire::kMajor;
  message.minor = wire::kMinor;
  message.flags = flags;
  message.core_limit = cores;
  message.memory_limit = memory;
  wire::put_text(message.name, sizeof message.name, name.c_str());
  if (!say(message)) return std::nullopt;
  return hear<wire::Welcome>();
}

bool TestProgram::release(std::uint64_t grant, std::uint64_t used, bool more) {
  auto message = wire::make<wire::Released>();
  message.grant = grant;
  message.used = used;
  message.more_work = more ? 1 : 0;
  return say(message);
}

std::optional<bool> TestProgram::ask_memory(std::uint64_t bytes, bool movable) {
  auto message = wire::make<wire::MemoryRequest>();
  message.bytes = bytes;
  message.movable = movable ? 1 : 0;
  if (!say(message)) return std::nullopt;
  const auto until = Clock::now() + kPatience;
  while (const wire::Header* header = next(until)) {
    if (wire::as<wire::MemoryAvailable>(header) != nullptr) return true;
    if (wire::as<wire::MemoryWait>(header) != nullptr) return true;
    if (wire::as<wire::MemoryRefused>(header) != nullptr) return false;
  }
  return std::nullopt;
}

bool TestProgram::moved(std::uint64_t order, std::uint64_t out, std::uint64_t in) {
  auto message = wire::make<wire::MemoryMoved>();
  message.order = order;
  message.out = out;
  message.in = in;
  message.done = 1;
  return say(message);
}

// --- children ----------------------------------------------------------------------------------

Forked::Forked(const std::function<void()>& work) {
  pid_ = fork();
  if (pid_ != 0) return;
  alarm(120);  // whatever happens, it ends
  work();
  _exit(0);
}

Forked::~Forked() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Forked::kill_hard() const {
  kill(pid_, SIGKILL);
}

int Forked::wait(std::chrono::milliseconds patience) {
  return wait_for(pid_, patience);
}

}  // namespace nvshare::daemon
