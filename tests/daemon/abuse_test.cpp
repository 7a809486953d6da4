// The real scheduler with programs that do not behave: it neither dies, nor hangs, nor grows.

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>

#include "harness.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

// It still does its work.
void expect_well(const SchedulerProcess& scheduler) {
  ASSERT_TRUE(scheduler.alive());
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  ASSERT_TRUE(program.want());
  EXPECT_TRUE(program.hear<wire::Grant>());
}

SchedulerProcess::Setup turns() {
  return {.arguments = {}, .environment = {"NVSHARE_SHARE_MODE=turns"}};
}

TEST(Abuse, RegisterThenCloseAThousandTimes) {
  SchedulerProcess scheduler;
  expect_well(scheduler);
  ASSERT_TRUE(eventually([&] { return scheduler.clients() == 0; }));
  const std::size_t before = scheduler.descriptors();
  TestProgram first(scheduler);
  for (int i = 0; i < 1000; ++i) {
    TestProgram program(scheduler);
    auto hello = wire::make<wire::Hello>();
    hello.magic = wire::kMagic;
    hello.major = wire::kMajor;
    if (i % 3 == 0) program.say(hello);  // of a GPU that is none
    if (i % 3 == 1) {
      ASSERT_TRUE(program.hello());  // and gone
    }
    if (i % 7 == 0) program.want();
  }
  first.close();
  EXPECT_TRUE(eventually([&] { return scheduler.clients() == 0; }));
  EXPECT_TRUE(eventually([&] { return scheduler.descriptors() <= before; }))
      << scheduler.descriptors() << " after " << before;
  expect_well(scheduler);
}

TEST(Abuse, GarbageIsDisconnected) {
  SchedulerProcess scheduler;
  TestProgram liar(scheduler);
  ASSERT_TRUE(liar.hello());
  liar.release(99, UINT64_MAX);
  EXPECT_TRUE(liar.closed());
  EXPECT_NE(scheduler.log().find("reason=\"released grant 99, which it does not hold\""),
            std::string::npos);
  std::mt19937 dice(12345);
  for (int i = 0; i < 300; ++i) {
    TestProgram program(scheduler);
    if (i % 2 == 0) {
      ASSERT_TRUE(program.hello());
    }
    char bytes[700];
    for (char& one : bytes) one = static_cast<char>(dice());
    const std::size_t size = 1 + dice() % sizeof bytes;
    program.send_packet(bytes, size);
    if (i % 10 == 0) {
      EXPECT_TRUE(program.closed()) << i;
    }
  }
  expect_well(scheduler);
}

TEST(Abuse, AKilledHolderGivesWay) {
  SchedulerProcess scheduler(turns());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  Forked holder([&] {
    TestProgram program(scheduler);
    const char good = program.hello() && program.want() && program.hear<wire::Grant>() ? '1' : '0';
    [[maybe_unused]] const auto written = write(ready[1], &good, 1);
    pause();
  });
  char good = 0;
  ASSERT_EQ(read(ready[0], &good, 1), 1);
  ASSERT_EQ(good, '1');
  TestProgram waiter(scheduler);
  ASSERT_TRUE(waiter.hello());
  ASSERT_TRUE(waiter.want());
  holder.kill_hard();
  EXPECT_TRUE(waiter.hear<wire::Grant>());
  EXPECT_TRUE(eventually([&] { return scheduler.clients() == 1; }));
  close(ready[0]);
  close(ready[1]);
}

// The process is gone, and a child that it has left behind holds its socket.
TEST(Abuse, AForkedChildDoesNotKeepADeadClient) {
  SchedulerProcess scheduler;
  int alive[2];
  ASSERT_EQ(pipe(alive), 0);
  Forked parent([&] {
    TestProgram program(scheduler);
    if (!program.hello() || !program.want() || !program.hear<wire::Grant>()) _exit(1);
    if (fork() == 0) {
      char byte;
      close(alive[1]);
      [[maybe_unused]] const auto got = read(alive[0], &byte, 1);  // until the test ends
      _exit(0);
    }
    _exit(0);
  });
  EXPECT_EQ(parent.wait(), 0);
  EXPECT_TRUE(eventually([&] { return scheduler.clients() == 0; }));
  close(alive[1]);
  close(alive[0]);
}

TEST(Abuse, WhoDoesNotReadIsDisconnected) {
  SchedulerProcess scheduler;
  TestProgram deaf(scheduler);
  const auto welcome = deaf.hello();
  ASSERT_TRUE(welcome);
  const auto gone = [&](int i) {
    scheduler.ask({{"op", "limit"}, {"name", welcome->tenant}, {"cores", 10 + i % 80}});
    return scheduler.clients() == 0;
  };
  bool disconnected = false;
  for (int i = 0; i < 5000 && !disconnected; ++i) disconnected = gone(i);
  EXPECT_TRUE(disconnected);
  EXPECT_NE(scheduler.log().find("event=client_does_not_read"), std::string::npos);
  expect_well(scheduler);
}

TEST(Abuse, AFloodDoesNotStarveOthers) {
  SchedulerProcess scheduler;
  Forked flood([&] {
    TestProgram program(scheduler);
    if (!program.hello()) _exit(1);
    auto freed = wire::make<wire::MemoryFreed>();
    while (program.say(freed)) {
    }
    _exit(0);
  });
  ASSERT_TRUE(eventually([&] { return scheduler.clients() == 1; }));
  expect_well(scheduler);
}

TEST(Abuse, WhoSaysNothingIsLetGo) {
  SchedulerProcess scheduler;
  TestProgram silent(scheduler);
  EXPECT_TRUE(silent.closed());
  EXPECT_NE(scheduler.log().find("event=no_hello"), std::string::npos);
}

TEST(Abuse, ConnectionsAreBounded) {
  SchedulerProcess scheduler(
      {.arguments = {},
       .environment = {"NVSHARE_MAX_CLIENTS=5", "NVSHARE_MAX_CLIENTS_PER_USER=3"}});
  std::vector<std::unique_ptr<TestProgram>> programs;
  for (int i = 0; i < 3; ++i) {
    programs.push_back(std::make_unique<TestProgram>(scheduler));
    ASSERT_TRUE(programs.back()->hello());
  }
  TestProgram one_more(scheduler);
  EXPECT_FALSE(one_more.hear<wire::Welcome>());
  EXPECT_EQ(one_more.refused(), "'user-" + std::to_string(getuid()) +
                                    "' has 3 programs, as many as max_clients_per_user allows");
  programs.clear();
  ASSERT_TRUE(eventually([&] { return scheduler.clients() == 0; }));
  expect_well(scheduler);
}

TEST(Abuse, WithoutDescriptorsItGoesOn) {
  SchedulerProcess scheduler({.arguments = {}, .environment = {}, .descriptors = 40});
  {
    std::vector<UniqueFd> connections;
    for (int i = 0; i < 100; ++i) {
      connections.emplace_back(wire::connect_to(scheduler.program_socket().c_str()));
    }
    EXPECT_TRUE(eventually(
        [&] { return scheduler.log().find("event=out_of_descriptors") != std::string::npos; }));
  }
  EXPECT_TRUE(eventually([&] { return scheduler.status().contains("ok"); }));
  expect_well(scheduler);
}

TEST(Abuse, WhoIgnoresADropIsEndedIfSoConfigured) {
  SchedulerProcess scheduler(
      {.arguments = {},
       .environment = {"NVSHARE_SHARE_MODE=turns", "NVSHARE_END_OVERDUE=true",
                       "NVSHARE_DROP_TIMEOUT=100ms"}});
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  Forked stubborn([&] {
    TestProgram program(scheduler);
    const char good = program.hello() && program.want() && program.hear<wire::Grant>() ? '1' : '0';
    [[maybe_unused]] const auto written = write(ready[1], &good, 1);
    while (true) pause();
  });
  char good = 0;
  ASSERT_EQ(read(ready[0], &good, 1), 1);
  ASSERT_EQ(good, '1');
  TestProgram waiter(scheduler);
  ASSERT_TRUE(waiter.hello());
  ASSERT_TRUE(waiter.want());
  EXPECT_TRUE(waiter.hear<wire::Grant>());
  const int status = stubborn.wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  close(ready[0]);
  close(ready[1]);
}

// --- control -----------------------------------------------------------------------------------

UniqueFd control(const SchedulerProcess& scheduler) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, scheduler.control_socket().c_str(), sizeof address.sun_path - 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

TEST(ControlAbuse, AnEndlessLineIsCutOff) {
  SchedulerProcess scheduler;
  const UniqueFd socket = control(scheduler);
  const std::string piece(4096, 'x');
  std::string answer;
  EXPECT_TRUE(eventually([&] {
    (void)::send(socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    char buffer[512];
    const auto length = recv(socket.get(), buffer, sizeof buffer, 0);
    if (length > 0) answer.append(buffer, static_cast<std::size_t>(length));
    return length == 0 || (length < 0 && errno == ECONNRESET);
  }));
  EXPECT_NE(answer.find("at most 65536 bytes"), std::string::npos);
  expect_well(scheduler);
}

TEST(ControlAbuse, WhoDoesNotReadIsNotServedAndBlocksNobody) {
  SchedulerProcess scheduler;
  const UniqueFd socket = control(scheduler);
  const std::string request = "{\"op\":\"config\"}\n";
  long sent = 0;
  // Until it takes no more, because nobody takes the answers.
  EXPECT_TRUE(eventually([&] {
    const auto count = ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
    if (count > 0) ++sent;
    return count < 0 && errno == EAGAIN && sent > 100;
  }));
  expect_well(scheduler);
  EXPECT_TRUE(scheduler.status()["ok"].get<bool>());
}

TEST(ControlAbuse, ManyRequestsInOnePacketAreAllAnswered) {
  SchedulerProcess scheduler;
  const UniqueFd socket = control(scheduler);
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += "{\"op\":\"nothing\"}\n";
  ASSERT_EQ(::send(socket.get(), requests.data(), requests.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(requests.size()));
  long lines = 0;
  EXPECT_TRUE(eventually([&] {
    char buffer[4096];
    const auto length = recv(socket.get(), buffer, sizeof buffer, 0);
    if (length > 0) lines += std::count(buffer, buffer + length, '\n');
    return lines == 50;
  })) << lines;
}

TEST(ControlAbuse, WithoutDescriptorsTheRestIsTurnedAway) {
  SchedulerProcess scheduler({.arguments = {}, .environment = {}, .descriptors = 40});
  {
    std::vector<UniqueFd> connections;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, scheduler.control_socket().c_str(), sizeof address.sun_path - 1);
    for (int i = 0; i < 60; ++i) {
      connections.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      // The queue is short: who does not fit in tries again.
      ASSERT_TRUE(eventually([&] {
        return connect(connections.back().get(), reinterpret_cast<sockaddr*>(&address),
                       sizeof address) == 0;
      })) << i;
    }
    EXPECT_TRUE(eventually([&] {
      char byte;
      return recv(connections.back().get(), &byte, 1, MSG_DONTWAIT) == 0;
    })) << "waits in the queue, and wakes the loop for ever";
    EXPECT_NE(scheduler.log().find("event=out_of_descriptors"), std::string::npos);
  }
  EXPECT_TRUE(eventually([&] { return scheduler.status().contains("ok"); }));
  expect_well(scheduler);
}

TEST(ControlAbuse, ConnectionsAreBounded) {
  SchedulerProcess scheduler;
  const std::size_t before = scheduler.descriptors();
  {
    std::vector<UniqueFd> connections;
    for (int i = 0; i < 200; ++i) {
      UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, scheduler.control_socket().c_str(),
                   sizeof address.sun_path - 1);
      ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      connections.push_back(std::move(socket));
    }
    EXPECT_LE(scheduler.descriptors(), before + 70);
  }
  EXPECT_TRUE(eventually([&] { return scheduler.status().contains("ok"); }));
}

// A client that keeps the descriptors of its host memory, and comes again and again for more.
TEST(Abuse, WhoKeepsHostMemoryGetsNoMoreThanThereIs) {
  constexpr std::uint64_t kMi = 1ull << 20;
  SchedulerProcess scheduler(
      {.arguments = {},
       .environment = {"NVSHARE_SOFTGPU_MEMORY=512Mi", "NVSHARE_RESERVE_BASE=0Mi",
                       "NVSHARE_RESERVE_PER_PROCESS=0Mi", "NVSHARE_ARENA_LIMIT=512Mi"}});
  TestProgram beside(scheduler);
  ASSERT_TRUE(beside.hello());
  ASSERT_EQ(beside.ask_memory(300 * kMi, true), true);
  std::vector<UniqueFd> kept;
  const auto held = [&] {
    std::uint64_t sum = 0;
    for (const UniqueFd& one : kept) {
      struct stat about {};
      if (fstat(one.get(), &about) == 0) sum += static_cast<std::uint64_t>(about.st_blocks) * 512;
    }
    return sum;
  };
  for (int round = 0; round < 8; ++round) {
    TestProgram greedy(scheduler);
    ASSERT_TRUE(greedy.hello());
    if (greedy.ask_memory(200 * kMi, true) != true) continue;
    while (greedy.hear<wire::ArenaShared>(std::chrono::milliseconds(500))) {
      kept.emplace_back(::dup(greedy.arena()));
    }
  }
  EXPECT_GT(held(), 0u) << scheduler.log();
  EXPECT_LE(held(), 512 * kMi);
  EXPECT_GE(scheduler.status()["scheduler"]["arena_used"].get<std::uint64_t>(), held());
  EXPECT_LE(scheduler.status()["scheduler"]["arena_used"].get<std::uint64_t>(), 512 * kMi);
  kept.clear();
  const auto used = [&] {
    return scheduler.status()["scheduler"]["arena_used"].get<std::uint64_t>();
  };
  const auto given = [&] { return used() <= 320 * kMi; };
  EXPECT_TRUE(eventually(given)) << "what the other one has";
}

}  // namespace
}  // namespace nvshare::daemon
