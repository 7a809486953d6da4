#include "cli/testing/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

namespace nvshare::cli::testing {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

int Outcome::code() const {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int Outcome::signal() const {
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

Process::Process(const std::vector<std::string>& words, const std::vector<std::string>& variables) {
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return;
  reading_.reset(pair[0]);
  const UniqueFd writing(pair[1]);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::dup2(writing.get(), 1);
  ::dup2(writing.get(), 2);
  // Shells let what runs in the background ignore the one, and nohup the other.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGHUP, SIG_DFL);
  for (const std::string& one : variables) ::putenv(const_cast<char*>(one.c_str()));
  ::execvp(arguments[0], arguments.data());
  ::_exit(99);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      reading_(std::move(other.reading_)),
      output_(std::move(other.output_)) {}

Process::~Process() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool Process::read_some(Duration within) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(within);
  pollfd waiting{reading_.get(), POLLIN, 0};
  if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return true;
  char part[4096];
  const auto got = ::read(reading_.get(), part, sizeof part);
  if (got > 0) output_.append(part, static_cast<std::size_t>(got));
  return got > 0;
}

bool Process::wait_for_output(const std::string& text, Duration within) {
  const auto deadline = Clock::now() + within;
  while (output_.find(text) == output_.npos) {
    if (Clock::now() >= deadline || !read_some(50ms)) break;
  }
  return output_.find(text) != output_.npos;
}

Outcome Process::wait(Duration within) {
  Outcome outcome;
  const auto deadline = Clock::now() + within;
  pid_t ended = 0;
  bool open = true;
  // Processes that the program left behind may hold the pipe open.
  while ((ended = ::waitpid(pid_, &outcome.status, WNOHANG)) == 0 && Clock::now() < deadline) {
    open = open && read_some(10ms);
    if (!open) ::poll(nullptr, 0, 5);
  }
  if (ended == 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &outcome.status, 0);
  }
  pid_ = -1;
  while (open) {
    const std::size_t before = output_.size();
    open = read_some(0ms) && output_.size() > before;
  }
  outcome.output = output_;
  return outcome;
}

char state_of(pid_t pid) {
  const std::string stat = contents("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name = stat.rfind(") ");
  return name == stat.npos ? '?' : stat[name + 2];
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  // An error while reading ends it without an exception: the process of a file in /proc may go.
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool eventually(const std::function<bool()>& done, Duration within) {
  const auto deadline = Clock::now() + within;
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    ::poll(nullptr, 0, 10);
  }
  return true;
}

}  // namespace nvshare::cli::testing
