#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "integration/world.h"
#include "wire/channel.h"

// Deaths and nonsense.
namespace nvshare::integration {
namespace {

class Failure : public World {};

TEST_F(Failure, ProgramsRunOnWhenTheSchedulerDies) {
  Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  jobs.push_back(job("a", {"--cores", "30"}, {"--seconds", "5", "--memory", "64Mi", "--check"}));
  jobs.push_back(job("b", {"--cores", "30"}, {"--seconds", "5", "--memory", "64Mi", "--check"}));
  for (Job& one : jobs) ASSERT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
  scheduler.signal(SIGKILL);
  ASSERT_TRUE(scheduler.wait(20s));
  sleep(500ms);
  EXPECT_GT(share_for(jobs[0], 1s) + share_for(jobs[1], 1s), 60) << "unmanaged, not held back";
  expect_all_good(jobs, 60s);
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
  expect_share(share_for(one, 4s), 30, "one");
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
  expect_share(share_for(two, 2s), 100, "two");
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
  expect_share(share_for(steady, 2s), 100, "steady");
}

TEST_F(Failure, NonsenseOnTheSocketHarmsNobody) {
  Process scheduler = start_scheduler();
  Job one = job("one", {}, {"--seconds", "60"});
  ASSERT_TRUE(one.process.wait_for("progress", 30s));
  const std::string path = run_directory() + "/" + wire::kProgramSocket;
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
  EXPECT_EQ(status()["tenants"].size(), 1u);
  expect_share(share_for(one, 1s), 100, "one");
}

}  // namespace
}  // namespace nvshare::integration
