#include "cli/run/captured_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kLongestLine = 1 << 16;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> make_pipe() {
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return Error{fmt::format("pipe: {}", std::strerror(errno))};
  return Pipe{UniqueFd(pair[0]), UniqueFd(pair[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

CapturedChild::CapturedChild(pid_t pid, UniqueFd input, UniqueFd output)
    : pid_(pid), input_(std::move(input)), output_(std::move(output)) {}

CapturedChild::CapturedChild(CapturedChild&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      unread_(std::move(other.unread_)) {}

CapturedChild::~CapturedChild() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Result<CapturedChild> CapturedChild::start(const std::vector<std::string>& words,
                                           const std::vector<std::string>& environment) {
  auto input = make_pipe();
  if (!input) return input.error();
  auto output = make_pipe();
  if (!output) return output.error();
  const auto arguments = pointers(words);
  const auto variables = pointers(environment);
  const pid_t child = ::fork();
  if (child < 0) return Error{fmt::format("fork: {}", std::strerror(errno))};
  if (child == 0) {
    ::dup2(input->read.get(), STDIN_FILENO);
    ::dup2(output->write.get(), STDOUT_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    ::execve(arguments[0], arguments.data(), variables.data());
    ::_exit(127);
  }
  return CapturedChild(child, std::move(input->write), std::move(output->read));
}

Result<std::string> CapturedChild::read_line(Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != unread_.npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Error{"it does not answer"};
    pollfd waiting{output_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    char part[4096];
    const auto got = ::read(output_.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || unread_.size() > kLongestLine) return Error{"it ended without an answer"};
    unread_.append(part, static_cast<std::size_t>(got));
  }
}

}  // namespace nvshare::cli
