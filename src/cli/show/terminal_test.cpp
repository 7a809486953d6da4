// `nvshare run` under a terminal, as a shell with job control starts it; and `nvshare top` on one.

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cli/testing/api_server.h"
#include "cli/testing/control_server.h"
#include "cli/testing/installation.h"
#include "cli/testing/process.h"

namespace nvshare::cli {
namespace {

using testing::eventually;

enum class WhenStopped { Continue, Leave };

// In the leader of the terminal's session: starts `words` as a shell starts a job in the
// foreground, and writes its status whenever that changes. Continues the job when it stops, or
// leaves it stopped and takes the terminal back.
[[noreturn]] void be_shell(const std::vector<std::string>& words, int report, WhenStopped then) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::signal(SIGTTOU, SIG_IGN);
  const pid_t job = ::fork();
  if (job == 0) {
    ::setpgid(0, 0);
    ::tcsetpgrp(0, ::getpid());
    ::signal(SIGTTOU, SIG_DFL);
    ::execv(arguments[0], arguments.data());
    ::_exit(99);
  }
  for (int status = 0; ::waitpid(job, &status, WUNTRACED | WCONTINUED) == job;) {
    if (::write(report, &status, sizeof status) != sizeof status) ::_exit(1);
    if (WIFCONTINUED(status)) continue;
    if (!WIFSTOPPED(status)) ::_exit(0);
    if (then == WhenStopped::Leave) {
      ::tcsetpgrp(0, ::getpgrp());
      continue;
    }
    ::tcsetpgrp(0, job);
    ::kill(-job, SIGCONT);
  }
  ::_exit(1);
}

class Terminal : public ::testing::Test {
 protected:
  void TearDown() override {
    master_.reset();  // hangs up on whatever is left
    if (leader_ <= 0) return;
    ::kill(leader_, SIGKILL);
    ::waitpid(leader_, nullptr, 0);
  }

  void start(const std::string& script, WhenStopped then = WhenStopped::Continue) {
    int pair[2];
    ASSERT_EQ(::pipe(pair), 0);
    int master = -1;
    leader_ = ::forkpty(&master, nullptr, nullptr, nullptr);
    ASSERT_GE(leader_, 0);
    if (leader_ == 0) {
      auto variables = installed_.variables();
      for (std::string& one : variables) ::putenv(one.data());
      be_shell({installed_.path("bin/nvshare"), "run", "--", "sh", "-c", script}, pair[1], then);
    }
    ::close(pair[1]);
    report_.reset(pair[0]);
    master_.reset(master);
  }

  // As `ssh -t HOST nvshare run` and a terminal's window do: no shell is in the session.
  void start_as_leader(const std::string& script) {
    int master = -1;
    leader_ = ::forkpty(&master, nullptr, nullptr, nullptr);
    ASSERT_GE(leader_, 0);
    if (leader_ == 0) {
      auto variables = installed_.variables();
      for (std::string& one : variables) ::putenv(one.data());
      const std::string program = installed_.path("bin/nvshare");
      ::execl(program.c_str(), program.c_str(), "run", "--", "sh", "-c", script.c_str(),
              static_cast<char*>(nullptr));
      ::_exit(99);
    }
    master_.reset(master);
  }

  bool wait_for(const std::string& text, Duration within = 30s) {
    return eventually(
        [&] {
          pollfd waiting{master_.get(), POLLIN, 0};
          char part[1024];
          if (::poll(&waiting, 1, 0) > 0) {
            const auto got = ::read(master_.get(), part, sizeof part);
            if (got > 0) output_.append(part, static_cast<std::size_t>(got));
          }
          return output_.find(text) != output_.npos;
        },
        within);
  }

  void type(char key) { ASSERT_EQ(::write(master_.get(), &key, 1), 1); }

  // The next status that the shell sees of its job.
  int next_status() {
    pollfd waiting{report_.get(), POLLIN, 0};
    int status = -1;
    if (::poll(&waiting, 1, 30'000) <= 0) return -1;
    return ::read(report_.get(), &status, sizeof status) == sizeof status ? status : -1;
  }

  testing::Installation installed_;
  pid_t leader_ = -1;
  UniqueFd master_;
  UniqueFd report_;
  std::string output_;
};

constexpr char kInterrupt = 3;
constexpr char kSuspend = 26;

TEST_F(Terminal, AnInterruptReachesTheProgramOnce) {
  start("exec " NVSHARE_COUNT_INTERRUPTS);
  ASSERT_TRUE(wait_for("started")) << output_;
  type(kInterrupt);
  ASSERT_TRUE(wait_for("interrupted 1")) << output_;
  EXPECT_FALSE(wait_for("interrupted 2", 500ms)) << "a second one would come at once";
  type(kInterrupt);
  EXPECT_TRUE(wait_for("interrupted 2")) << output_;
}

TEST_F(Terminal, AProgramThatAnInterruptEndsIsSeenToEndByIt) {
  start("echo started; exec sleep 60");
  ASSERT_TRUE(wait_for("started")) << output_;
  type(kInterrupt);
  const int status = next_status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

// Not a shell: one that is stopped while it starts a command does not stop before that has begun.
TEST_F(Terminal, StopsAndGoesOnWithTheProgram) {
  start("exec " NVSHARE_COUNT_INTERRUPTS);
  ASSERT_TRUE(wait_for("started")) << output_;
  for (int times = 0; times < 3; ++times) {
    type(kSuspend);
    const int stopped = next_status();
    ASSERT_TRUE(WIFSTOPPED(stopped)) << stopped;
    EXPECT_EQ(WSTOPSIG(stopped), SIGTSTP);
    const int continued = next_status();  // by the shell, at once
    ASSERT_TRUE(WIFCONTINUED(continued)) << continued;
  }
  type(kInterrupt);
  EXPECT_TRUE(wait_for("interrupted 1")) << output_;
}

TEST_F(Terminal, WithoutAShellASuspendStopsNothing) {
  start_as_leader("exec " NVSHARE_COUNT_INTERRUPTS);
  ASSERT_TRUE(wait_for("started")) << output_;
  type(kSuspend);
  ::poll(nullptr, 0, 200);
  type(kInterrupt);
  EXPECT_TRUE(wait_for("interrupted 1", 5s)) << "the program stands: " << output_;
}

// `nvshare run` hears of both at once, and a shell does not continue a job that has ended.
TEST_F(Terminal, AProgramThatWasStoppedAndThenKilledIsNoStoppedJob) {
  start(
      "echo pids $$ $PPID $(sed -n s/^PPid:.//p /proc/$PPID/status) end; "
      "exec " NVSHARE_COUNT_INTERRUPTS,
      WhenStopped::Leave);
  ASSERT_TRUE(wait_for("started")) << output_;
  int program = 0;
  int keeper = 0;
  int run = 0;
  ASSERT_EQ(std::sscanf(output_.c_str(), "pids %d %d %d end", &program, &keeper, &run), 3)
      << output_;
  ::kill(run, SIGSTOP);
  ASSERT_TRUE(WIFSTOPPED(next_status()));
  ::kill(program, SIGTSTP);
  ASSERT_TRUE(eventually([&] { return testing::state_of(program) == 'T'; }));
  ::poll(nullptr, 0, 200);  // the keeper tells
  ::kill(program, SIGKILL);
  EXPECT_TRUE(eventually([&] { return testing::state_of(keeper) == 'Z'; })) << "the keeper tells";
  ::kill(run, SIGCONT);
  int status = next_status();
  if (WIFCONTINUED(status)) status = next_status();  // unless it ended before the shell looked
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

// The kernel hangs up on a stopped job that has lost its shell.
TEST_F(Terminal, AStoppedJobEndsWhenItsShellIsKilled) {
  start(
      "echo pids $$ $PPID $(sed -n s/^PPid:.//p /proc/$PPID/status) end; "
      "exec " NVSHARE_COUNT_INTERRUPTS,
      WhenStopped::Leave);
  ASSERT_TRUE(wait_for("started")) << output_;
  int program = 0;
  int keeper = 0;
  int run = 0;
  ASSERT_EQ(std::sscanf(output_.c_str(), "pids %d %d %d end", &program, &keeper, &run), 3)
      << output_;
  type(kSuspend);
  const int stopped = next_status();
  ASSERT_TRUE(WIFSTOPPED(stopped)) << stopped;
  ::kill(leader_, SIGKILL);
  ::waitpid(leader_, nullptr, 0);
  leader_ = -1;
  for (const int pid : {program, keeper, run}) {
    const std::string words = "/proc/" + std::to_string(pid) + "/cmdline";
    EXPECT_TRUE(eventually([&] { return testing::contents(words).empty(); }, 5s)) << pid;
    ::kill(pid, SIGKILL);
  }
}

// As a terminal emulator's window that `nvshare run` was started in: the kernel tells it alone.
TEST_F(Terminal, AHangUpReachesTheProgramOfASessionLeader) {
  const std::string told = installed_.folder() + "/told";
  start_as_leader("trap 'echo hung up >" + told +
                  "; exit 0' HUP; echo started; while :; do sleep 0.05; done");
  ASSERT_TRUE(wait_for("started")) << output_;
  master_.reset();
  EXPECT_TRUE(eventually([&] { return testing::contents(told) == "hung up\n"; }));
}

constexpr int kRows = 12;
constexpr int kColumns = 40;

// What `nvshare COMMAND WORD` writes to a terminal of this kind, until that is enough.
std::string output_on(const char* kind, const char* command, const char* word,
                      const std::function<bool(const std::string&)>& enough) {
  winsize size{};
  size.ws_row = kRows;
  size.ws_col = kColumns;
  int fd = -1;
  const pid_t top = ::forkpty(&fd, nullptr, nullptr, &size);
  if (top == 0) {
    ::setenv("TERM", kind, 1);
    ::unsetenv("NO_COLOR");
    ::execl(NVSHARE_PROGRAM, NVSHARE_PROGRAM, command, word, static_cast<char*>(nullptr));
    ::_exit(99);
  }
  EXPECT_GT(top, 0);
  const UniqueFd master(fd);
  std::string output;
  EXPECT_TRUE(eventually([&] {
    char part[4096];
    pollfd waiting{master.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 100) > 0) {
      const auto got = ::read(master.get(), part, sizeof part);
      if (got > 0) output.append(part, static_cast<std::size_t>(got));
    }
    return enough(output);
  })) << output;
  ::kill(top, SIGKILL);
  ::waitpid(top, nullptr, 0);
  return output;
}

std::string top_on(const char* kind, const std::function<bool(const std::string&)>& enough) {
  return output_on(kind, "top", "0.1", enough);
}

std::vector<std::string> frames_in(const std::string& output) {
  std::vector<std::string> frames;
  for (std::size_t at = 0, end; (end = output.find("\033[J", at)) != output.npos; at = end + 3) {
    frames.push_back(output.substr(at, end - at));
  }
  return frames;
}

// How many letters (of UTF-8) each of its lines puts on the terminal.
std::vector<int> widths(const std::string& frame) {
  std::vector<int> widths{0};
  for (std::size_t i = 0; i < frame.size(); ++i) {
    if (frame[i] == '\033') {
      i = std::min(frame.find_first_of("HJKm", i), frame.size());
    } else if (frame[i] == '\n') {
      widths.push_back(0);
    } else if (frame[i] != '\r' && (static_cast<unsigned char>(frame[i]) & 0xC0) != 0x80) {
      ++widths.back();
    }
  }
  return widths;
}

// With more tenants than the terminal has rows, and longer lines than it has columns.
TEST(TerminalTop, NeverScrolls) {
  std::string tenants = R"({"name":"first"})";
  for (int i = 0; i < 30; ++i) tenants += R"(,{"name":"another"})";
  testing::ControlServer server(
      [&](const std::string&) { return R"({"ok":true,"tenants":[)" + tenants + "]}"; });
  const std::string output =
      top_on("xterm", [](const std::string& text) { return frames_in(text).size() >= 3; });
  for (const std::string& frame : frames_in(output)) {
    EXPECT_EQ(frame.find("\033[H"), 0u) << frame;
    EXPECT_LT(std::count(frame.begin(), frame.end(), '\n'), kRows) << frame;
    const std::vector<int> wide = widths(frame);
    EXPECT_EQ(*std::max_element(wide.begin(), wide.end()), kColumns) << frame;
    EXPECT_NE(frame.find("more lines"), frame.npos) << frame;
    EXPECT_EQ(frame.find("PROCESSES"), frame.npos) << "is cut: " << frame;
  }
}

TEST(TerminalTop, ATerminalThatCanOnlyBeWrittenToGetsBlockAfterBlock) {
  testing::ControlServer server(
      [](const std::string&) { return R"({"ok":true,"tenants":[{"name":"first"}]})"; });
  const std::string output = top_on(
      "dumb", [](const std::string& text) { return text.find("first") != text.rfind("first"); });
  EXPECT_EQ(output.find('\033'), output.npos) << output;
}

TEST(TerminalLeases, AreRedrawnInTheirPlace) {
  testing::ApiServer server([](const testing::ApiRequest& request) {
    return testing::http(
        200, request.target == "GET /v1/status" ? R"({"gpus":[]})" : R"({"leases":[]})");
  });
  const std::string output = output_on("xterm", "lease", "watch", [](const std::string& text) {
    return frames_in(text).size() >= 2;
  });
  for (const std::string& frame : frames_in(output)) {
    EXPECT_EQ(frame.find("\033[H"), 0u) << frame;
    EXPECT_NE(frame.find("no lease is held"), frame.npos) << frame;
  }
}

}  // namespace
}  // namespace nvshare::cli
