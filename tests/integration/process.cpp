#include "integration/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace nvshare::integration {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

Ending ending_of(int status) {
  if (WIFEXITED(status)) return {WEXITSTATUS(status), -1};
  return {-1, WTERMSIG(status)};
}

}  // namespace

Duration now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec);
}

void nap() {
  const timespec wait{0, 2'000'000};
  ::nanosleep(&wait, nullptr);
}

Process::Process(const std::vector<std::string>& words, const Environment& environment,
                 std::string log)
    : log_(std::move(log)) {
  int input[2] = {-1, -1};
  if (::pipe2(input, O_CLOEXEC) != 0) return;
  const int output = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);

  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, input[0], 0);
  ::posix_spawn_file_actions_adddup2(&files, output, 1);
  ::posix_spawn_file_actions_adddup2(&files, output, 2);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  for (const int one : {SIGPIPE, SIGINT, SIGQUIT}) ::sigaddset(&defaults, one);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  if (::posix_spawnp(&pid_, words[0].c_str(), &files, &attributes, pointers(words).data(),
                     pointers(variables).data()) != 0) {
    pid_ = -1;
    ending_ = Ending{127, -1};
  }
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  ::close(input[0]);
  ::close(output);
  input_ = input[1];
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::exchange(other.input_, -1)),
      log_(std::move(other.log_)),
      ending_(other.ending_) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(input_, other.input_);
  std::swap(log_, other.log_);
  std::swap(ending_, other.ending_);
  return *this;
}

Process::~Process() {
  kill_group();
  if (input_ >= 0) ::close(input_);
}

void Process::kill_group() {
  if (pid_ <= 0 || ending_) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool Process::running() {
  if (ending_ || pid_ <= 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  ending_ = ending_of(status);
  return false;
}

std::optional<Ending> Process::wait(Duration limit) {
  eventually([&] { return !running(); }, limit);
  return ending_;
}

void Process::signal(int number) const {
  if (pid_ > 0 && !ending_) ::kill(pid_, number);
}

void Process::say(const std::string& line) const {
  const std::string whole = line + "\n";
  (void)!::write(input_, whole.data(), whole.size());
}

std::string Process::output() const {
  std::ifstream file(log_);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Process::wait_for(const std::string& text, Duration limit) {
  bool there = false;
  eventually(
      [&] {
        const bool ended = !running();
        there = output().find(text) != std::string::npos;
        return there || ended;
      },
      limit);
  return there;
}

}  // namespace nvshare::integration
