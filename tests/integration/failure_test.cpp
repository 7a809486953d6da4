#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "integration/world.h"
#include "wire/channel.h"

// Deaths and nonsense.
namespace nvshare::integration {
namespace {

// Percent of a GPU's time that two programs with 30 each cannot reach while their limits hold.
constexpr double kUnlimited = 75;

std::string wrong_unless_unlimited(double share) {
  if (share > kUnlimited) return "";
  return fmt::format("they had {:.1f} %: unmanaged, and held back", share);
}

class Failure : public World {
 protected:
  std::string socket_path() const { return run_directory() + "/" + wire::kProgramSocket; }
};

// `uuid` as the status has it: "GPU-" and the digits.
wire::Hello proper_hello(const std::string& uuid) {
  auto hello = wire::make<wire::Hello>();
  hello.magic = wire::kMagic;
  hello.major = wire::kMajor;
  hello.minor = wire::kMinor;
  hello.gpu_memory = 4ull << 30;
  std::string digits = uuid.substr(4);
  std::erase(digits, '-');
  for (std::size_t i = 0; i < sizeof hello.gpu; ++i) {
    hello.gpu[i] = static_cast<std::uint8_t>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  wire::put_text(hello.program, sizeof hello.program, "liar");
  return hello;
}

TEST_F(Failure, ProgramsRunOnWhenTheSchedulerDies) {
  Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  jobs.push_back(job("a", {"--cores", "30"}, {"--seconds", "60", "--memory", "64Mi", "--check"}));
  jobs.push_back(job("b", {"--cores", "30"}, {"--seconds", "60", "--memory", "64Mi", "--check"}));
  for (Job& one : jobs) ASSERT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
  scheduler.signal(SIGKILL);
  ASSERT_TRUE(scheduler.wait(20s));
  sleep(500ms);
  const auto both = [&] {
    const Duration from = now();
    sleep(1200ms);  // until the next of their reports
    return jobs[0].share(from, from + 1s) + jobs[1].share(from, from + 1s);
  };
  measure(both, wrong_unless_unlimited);
  for (Job& one : jobs) one.process.signal(SIGTERM);
  expect_all_good(jobs, 60s);
}

// Stopped, it answers nobody and keeps its sockets open.
TEST_F(Failure, ProgramsRunOnWhenTheSchedulerHangs) {
  const Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  jobs.push_back(job("one", {"--cores", "30"}, {"--seconds", "60", "--memory", "64Mi", "--check"}));
  ASSERT_TRUE(jobs[0].process.wait_for("progress", 30s)) << jobs[0].process.output();
  sleep(2s);  // until the scheduler has given a sign of life
  scheduler.signal(SIGSTOP);
  sleep(6s);
  const auto share = [&] {
    const Duration from = now();
    sleep(1200ms);  // until the next of its reports
    return jobs[0].share(from, from + 1s);
  };
  measure(share, wrong_unless_unlimited);
  jobs[0].process.signal(SIGTERM);
  expect_all_good(jobs, 60s);
  scheduler.signal(SIGCONT);
}

TEST_F(Failure, LimitsHoldAgainWhenTheSchedulerIsBack) {
  Process scheduler = start_scheduler();
  Job one = job("one", {"--cores", "30"}, {"--seconds", "60", "--memory", "64Mi"});
  ASSERT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
  scheduler.signal(SIGKILL);
  ASSERT_TRUE(scheduler.wait(20s));
  sleep(1s);
  const Process next = start_scheduler();
  ASSERT_TRUE(eventually([&] { return processes("one").size() == 1; }, 30s)) << status().dump();
  EXPECT_EQ(tenant("one").value("cores", 0), 30);
  EXPECT_EQ(tenant("one")["processes"][0].value("allocated", 0l), 64l << 20);
  sleep(1s);
  expect_share_for(one, 3s, 30);
}

TEST_F(Failure, AKilledHolderHandsTheGpuOn) {
  const Process scheduler = start_scheduler();
  Job one = job("one", {}, {"--seconds", "60"});
  Job two = job("two", {}, {"--seconds", "60"});
  ASSERT_TRUE(one.process.wait_for("progress", 30s));
  ASSERT_TRUE(two.process.wait_for("progress", 30s));
  sleep(1s);
  const std::vector<pid_t> pids = processes("one");
  ASSERT_EQ(pids.size(), 1u);
  ::kill(pids[0], SIGKILL);
  const auto ending = one.process.wait(20s);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->signal, SIGKILL);
  sleep(300ms);
  expect_share_for(two, 2s, 100);
  EXPECT_TRUE(eventually([&] { return !has_tenant("one"); }, 20s));
}

// Again and again, so that some die with the grant, some waiting and some in between.
TEST_F(Failure, DyingProgramsNeverStopTheOthers) {
  const Process scheduler = start_scheduler();
  Job steady = job("steady", {}, {"--seconds", "60"});
  ASSERT_TRUE(steady.process.wait_for("progress", 30s));
  for (int round = 0; round < 6; ++round) {
    Job other = job("other" + std::to_string(round), {}, {"--seconds", "60"}, 5ms);
    ASSERT_TRUE(other.process.wait_for("progress", 30s)) << other.process.output();
    const std::vector<pid_t> pids = processes(other.name);
    ASSERT_EQ(pids.size(), 1u);
    ::kill(pids[0], SIGKILL);
    ASSERT_TRUE(other.process.wait(20s));
  }
  sleep(300ms);
  expect_share_for(steady, 2s, 100);
}

TEST_F(Failure, NonsenseOnTheSocketHarmsNobody) {
  Process scheduler = start_scheduler();
  Job one = job("one", {}, {"--seconds", "60"});
  ASSERT_TRUE(one.process.wait_for("progress", 30s));
  const std::string path = socket_path();
  for (int i = 0; i < 300; ++i) {
    const int socket = wire::connect_to(path.c_str());
    ASSERT_GE(socket, 0);
    char noise[600];
    for (std::size_t at = 0; at < sizeof noise; ++at) {
      noise[at] = static_cast<char>(static_cast<std::size_t>(i) * 31 + at * 7);
    }
    const std::size_t length = static_cast<std::size_t>(i) * 2 % sizeof noise;
    if (i % 3 != 0) ::send(socket, noise, length, MSG_NOSIGNAL);
    ::close(socket);
  }
  EXPECT_TRUE(scheduler.running()) << scheduler.output();
  EXPECT_EQ(runs(), 1u);
  expect_share_for(one, 1s, 100);
}

// From programs that said hello properly: of grants they do not have, of memory they never had, and
// with descriptors that nobody asked for.
TEST_F(Failure, LiesOfProgramsHarmNobody) {
  Process scheduler = start_scheduler();
  Job one = job("one", {}, {"--seconds", "60"});
  ASSERT_TRUE(one.process.wait_for("progress", 30s));
  const auto descriptors = [&] {
    const std::filesystem::directory_iterator all("/proc/" + std::to_string(scheduler.pid()) +
                                                  "/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = descriptors();
  const auto hello = proper_hello(status()["gpus"][0].value("uuid", ""));
  auto released = wire::make<wire::Released>();
  released.grant = 12345;
  released.used = ~0ull;
  auto freed = wire::make<wire::MemoryFreed>();
  freed.bytes = 1ull << 40;
  auto moved = wire::make<wire::MemoryMoved>();
  moved.in = ~0ull;
  for (const wire::Header* lie : {&released.header, &freed.header, &moved.header}) {
    for (const int descriptor : {-1, 0}) {
      const int socket = wire::connect_to(socket_path().c_str());
      ASSERT_GE(socket, 0);
      ASSERT_EQ(wire::send(socket, &hello.header, true, descriptor), 0);
      alignas(8) char packet[wire::kMaxMessage];
      const int length = wire::receive(socket, packet, true);
      ASSERT_GT(length, 0);
      ASSERT_NE(wire::as<wire::Welcome>(wire::look_at(packet, static_cast<std::size_t>(length))),
                nullptr);
      // It may close on the first, which is an answer too.
      for (int times = 0; times < 20; ++times) wire::send(socket, lie, true, descriptor);
      EXPECT_TRUE(status().contains("tenants")) << "it still answers";
      ::close(socket);
    }
  }
  EXPECT_TRUE(scheduler.running()) << scheduler.output();
  const std::string liars = "user-" + std::to_string(::getuid());
  EXPECT_TRUE(eventually([&] { return processes(liars).empty(); }, 5s)) << status().dump();
  EXPECT_TRUE(eventually([&] { return descriptors() <= before; }, 5s))
      << "it keeps what it was sent: " << descriptors() << " open, " << before << " before";
  expect_share_for(one, 1s, 100);
}

}  // namespace
}  // namespace nvshare::integration
