#include "daemon/serve/programs.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "daemon/broker/testing.h"
#include "daemon/serve/testing.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

// A process that connects so many times once it is told to, and says its message each time.
class Guest {
 public:
  using Say = std::function<void(int socket, int number)>;
  Guest(const std::string& path, int count, const Say& say) {
    EXPECT_EQ(pipe(go_) + pipe(came_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    alarm(60);  // whatever becomes of the test
    char byte = 0;
    if (read(go_[0], &byte, 1) != 1) _exit(1);
    for (int i = 0; i < count; ++i) say(wire::connect_to(path.c_str()), i);
    if (write(came_[1], &byte, 1) != 1) _exit(1);
    while (true) pause();
  }
  ~Guest() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (const int fd : {go_[0], go_[1], came_[0], came_[1]}) close(fd);
  }
  Guest(const Guest&) = delete;

  int pid() const { return pid_; }
  void come() const { EXPECT_EQ(write(go_[1], "x", 1), 1); }
  void wait() const {
    char byte = 0;
    EXPECT_EQ(read(came_[0], &byte, 1), 1);
  }

 private:
  pid_t pid_ = -1;
  int go_[2];
  int came_[2];
};

void say_hello(int socket, int) {
  const wire::Hello message = TestBroker::hello();
  (void)wire::send(socket, &message.header, true);
}

void begin_run(int socket, int number) {
  auto message = wire::make<wire::RunBegin>();
  message.magic = wire::kMagic;
  message.major = wire::kMajor;
  message.minor = wire::kMinor;
  message.core_limit = core::kNoCoreLimit;
  wire::put_text(message.name, sizeof message.name, ("run" + std::to_string(number)).c_str());
  (void)wire::send(socket, &message.header, true);
}

// The server with a picture of the process table, on a kernel without pidfd_open.
struct ProgramsTest : testing::Test, Picture {
  static ProcessCalls calls() {
    ProcessCalls some = ProcessCalls::of_kernel();
    some.of_number = [](int) { return -ENOSYS; };
    return some;
  }
  void SetUp() override {
    process(1, 0, "/");
    ASSERT_NE(mkdtemp(folder), nullptr);
    socket = std::string(folder) + "/socket";
    ASSERT_TRUE(programs.serve(UniqueFd(wire::listen_at(socket.c_str(), 0600)), t.broker));
  }
  void TearDown() override {
    unlink(socket.c_str());
    rmdir(folder);
  }
  // A run of a scheduler before this one, whose keeper has this number.
  void restore(const std::string& name, int keeper) {
    const ProcessKey key = process(keeper, 1, "/");
    kept.run_begins({name, 1000, key.pid, key.started});
    programs.restore_runs(t.broker);
  }
  bool told(const std::string& what) const { return t.lines.find(what) != std::string::npos; }

  // The process has so many others between itself and that one.
  void deep_below(int pid, int top, int between) {
    constexpr int kFirst = 50'000'000;  // no process of this machine has such a number
    for (int i = 0; i < between; ++i) process(kFirst + i, i == 0 ? top : kFirst + i - 1, "/");
    process(pid, kFirst + between - 1, "/");
  }
  // Turns of the loop, until `done` is true after one of them; it is told whether nothing is due.
  void play(const std::function<bool(bool nothing_due)>& done) {
    const Time end = monotonic_now() + 30s;
    std::uint64_t before = table.reads();
    reactor.run([&]() -> std::optional<Time> {
      const auto next = programs.end_of_turn();
      const std::uint64_t reads = table.reads();
      most_reads = std::max(most_reads, reads - std::exchange(before, reads));
      const Time now = reactor.now();
      if (done(!next) || now > end) reactor.stop();
      EXPECT_LE(now, end) << t.lines;
      return std::min(next.value_or(Time::max()), now + 20ms);
    });
  }
  std::size_t clients() const { return t.broker.clients().size(); }
  std::ptrdiff_t runs() const {
    return std::ranges::count_if(
        t.broker.tenants(), [](const auto& one) { return one.second.is.kind == TenantKind::Run; });
  }

  Reactor reactor = *Reactor::make();
  TestBroker t{{}, gib(16), reactor.now()};
  Settings settings;
  Kept kept{t.log};
  Processes table = processes({}, calls());
  ProgramServer programs{reactor, settings, kept, table, t.log};
  char folder[32] = "/tmp/nvshare-programs-XXXXXX";
  std::string socket;
  std::uint64_t most_reads = 0;  // of the process table, in one turn
  static constexpr std::uint64_t kFew = 4 * ProgramServer::kReadsPerTurn;
};

TEST_F(ProgramsTest, RunsAreRestoredOnAKernelWithoutDescriptorsForProcesses) {
  restore("train", 10);
  EXPECT_NE(t.broker.find_tenant("train"), nullptr);
  EXPECT_TRUE(told("event=no_pidfd")) << t.lines;
  programs.look_after_runs();
  EXPECT_NE(t.broker.find_tenant("train"), nullptr) << "its keeper lives";
  process(10, 1, "/", kStarted + 1);
  programs.look_after_runs();
  EXPECT_EQ(t.broker.find_tenant("train"), nullptr) << "the number is another process's";
}

// A user with many programs begins many runs: all other users wait for each look at a program.
TEST_F(ProgramsTest, RunsThatBeginTakeLittleOfATurn) {
  constexpr int kPrograms = 100;
  constexpr int kRuns = 5;  // in one another, as one process begins them
  const Guest program(socket, kPrograms, say_hello);
  const Guest keeper(socket, kRuns, begin_run);
  deep_below(program.pid(), 1, 100);
  process(keeper.pid(), 1, "/");
  program.come();
  bool all_came = false;
  play([&](bool nothing_due) {
    if (!all_came && clients() == kPrograms) {
      all_came = true;
      keeper.come();
    }
    return runs() == kRuns && nothing_due;
  });
  EXPECT_LE(most_reads, kFew);
  EXPECT_EQ(clients(), kPrograms) << "none is in a run";
}

TEST_F(ProgramsTest, ProgramsThatCameBeforeTheirRunAreAllCalledBack) {
  constexpr int kPrograms = 30;
  const Guest program(socket, kPrograms, say_hello);
  const Guest keeper(socket, 1, begin_run);
  process(keeper.pid(), 1, "/");
  deep_below(program.pid(), keeper.pid(), 50);
  program.come();
  bool all_came = false;
  play([&](bool) {
    if (!all_came && clients() == kPrograms) {
      all_came = true;
      keeper.come();
    }
    return all_came && clients() == 0;
  });
  EXPECT_EQ(runs(), 1);
  EXPECT_LE(most_reads, kFew);
}

TEST_F(ProgramsTest, FirstMessagesOfOneUserKeepNoOtherUserWaiting) {
  constexpr int kPrograms = 60;
  restore("train", 10);  // without a cgroup: programs are looked for below its keeper
  const Guest program(socket, kPrograms, say_hello);
  const Guest other(socket, 1, say_hello);
  deep_below(program.pid(), 1, 100);
  process(other.pid(), 1, "/docker/" + std::string(64, 'a'));
  for (const Guest* one : {&program, &other}) {
    one->come();
    one->wait();
  }
  std::size_t before_other = 0;
  play([&](bool) {
    const bool is_there = t.broker.find_tenant("container-aaaaaaaaaaaa") != nullptr;
    if (is_there && before_other == 0) before_other = clients();
    return clients() == kPrograms + 1;
  });
  EXPECT_LE(before_other, kPrograms / 2) << "the other came last, and waited for all of them";
  EXPECT_LE(most_reads, kFew);
}

}  // namespace
}  // namespace nvshare::daemon
