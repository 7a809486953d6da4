#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "integration/world.h"
#include "wire/channel.h"
#include "wire/messages.h"

// Programs that share a card which is too small for all of them, and a scheduler that is killed and
// started again: nobody waits for ever afterwards.
namespace nvshare::integration {
namespace {

class Restart : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_MEMORY", "512Mi");
    set("NVSHARE_RESERVE_BASE", "4Mi");
    set("NVSHARE_RESERVE_PER_PROCESS", "2Mi");
    set("NVSHARE_RESERVE_PERCENT", "10");
    set("NVSHARE_QUANTUM_MIN", "100ms");
  }

  Job trainer(const std::string& name, const std::string& memory,
              const std::vector<std::string>& options = {}, const std::string& piece = "32Mi") {
    return job(name, options,
               {"--pattern", "train", "--memory", memory, "--piece", piece, "--queue", "2",
                "--check", "--seconds", "300"});
  }
  static double kernels(const Job& job) {
    const std::vector<Sample> samples = job.samples();
    return samples.empty() ? 0 : samples.back().kernels;
  }
  // Every job gets on.
  void expect_progress(const std::vector<Job>& jobs, const std::string& when) {
    std::vector<double> before;
    for (const Job& one : jobs) before.push_back(kernels(one));
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_TRUE(eventually([&] { return kernels(jobs[i]) > before[i] + 5; }, 30s))
          << jobs[i].name << " stands still " << when << ": "
          << nvshare({"why", jobs[i].name}).output << status().dump(1);
    }
  }
  static void kill(Process& scheduler) {
    scheduler.signal(SIGKILL);
    ASSERT_TRUE(scheduler.wait(20s));
  }
  bool all_back(const std::vector<Job>& jobs) {
    return eventually(
        [&] {
          for (const Job& one : jobs) {
            if (processes(one.name).empty()) return false;
          }
          return true;
        },
        20s);
  }
  static void end(std::vector<Job>& jobs) {
    for (const Job& one : jobs) one.process.signal(SIGTERM);
    expect_all_good(jobs, 120s);
  }
  // Whether the process counts with that much memory.
  bool claims(pid_t pid, Bytes bytes) {
    const nlohmann::json now = status();
    for (const auto& one : now.value("tenants", nlohmann::json::array())) {
      for (const auto& process : one["processes"]) {
        if (process["pid"] == pid) return process["allocated"] == bytes.count;
      }
    }
    return false;
  }
  std::int64_t safe() {
    const nlohmann::json now = status();
    return now.contains("gpus") ? now["gpus"][0].value("memory_safe", -1l) : -1;
  }
};

// Unified memory counts as being on the GPU when it was ordered there, wherever the driver has put
// it since. So after a restart all programs together can claim more than the card has.
TEST_F(Restart, ProgramsOfAllKindsRunOn) {
  Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  jobs.push_back(trainer("managed", "192Mi", {"--backend", "managed"}));
  for (const char* name : {"b", "c", "d", "e"}) jobs.push_back(trainer(name, "192Mi"));
  expect_progress(jobs, "at the beginning");
  for (int round = 0; round < 6 && !HasFailure(); ++round) {
    kill(scheduler);
    sleep(300ms + round * 400ms);
    scheduler = start_scheduler();
    ASSERT_TRUE(all_back(jobs)) << status().dump(1);
    expect_progress(jobs, "after restart " + std::to_string(round));
  }
  end(jobs);
}

// A limit that somebody has raised outlasts the scheduler.
TEST_F(Restart, ARunKeepsTheLimitsThatItWasGiven) {
  Process scheduler = start_scheduler();
  Process grower = probe("grower", {"--mem", "128Mi", "--cores", "40"});
  ASSERT_EQ(ask(grower, "begin 112Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(nvshare({"limit", "grower", "--mem", "400Mi"}).ending.code, 0);
  kill(scheduler);
  scheduler = start_scheduler();
  EXPECT_EQ(tenant("grower").value("memory", 0l), 400l << 20) << "before anybody is back";
  ASSERT_TRUE(eventually([&] { return processes("grower").size() == 1; }, 20s));
  EXPECT_EQ(ask(grower, "alloc 200Mi"), "CUDA_SUCCESS") << nvshare({"why", "grower"}).output;
  EXPECT_EQ(tenant("grower").value("cores", 0), 40);
  ASSERT_EQ(nvshare({"limit", "grower", "--reset"}).ending.code, 0);
  EXPECT_EQ(tenant("grower").value("memory", 0l), 128l << 20) << "as it was started";
  EXPECT_NE(ask(grower, "alloc 1Mi"), "CUDA_SUCCESS");
}

TEST_F(Restart, WhatPeopleChangedHoldsAfterwards) {
  Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  for (const char* name : {"limited", "paused"}) jobs.push_back(job(name, {}, {"--seconds", "60"}));
  expect_progress(jobs, "at the beginning");
  const auto change = [&](const std::vector<std::string>& words) {
    const Outcome outcome = nvshare(words);
    EXPECT_EQ(outcome.ending.code, 0) << outcome.output;
    EXPECT_EQ(outcome.output.find("would undo it"), std::string::npos) << outcome.output;
  };
  change({"limit", "limited", "--cores", "20"});
  change({"pause", "paused"});
  change({"config", "turn=9ms"});
  kill(scheduler);
  scheduler = start_scheduler();
  EXPECT_EQ(nvshare({"config", "turn"}).output, "9ms\n") << "before anybody is back";
  ASSERT_TRUE(all_back(jobs));
  EXPECT_TRUE(tenant("paused").value("paused", false));
  sleep(1s);  // what they did without a scheduler
  const double before = kernels(jobs[1]);
  expect_share_for(jobs[0], 4s, 20);
  EXPECT_EQ(kernels(jobs[1]), before) << "it is paused";
  change({"resume", "paused"});
  change({"limit", "limited", "--reset"});
  expect_progress(jobs, "at the end");
  end(jobs);
}

// Without its state the scheduler knows only what a run was started with.
TEST_F(Restart, AProgramAboveItsLimitRunsOn) {
  Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  Process grower = probe("grower", {"--mem", "128Mi"});
  ASSERT_EQ(ask(grower, "begin 112Mi"), "CUDA_SUCCESS");
  EXPECT_NE(ask(grower, "alloc 200Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(nvshare({"limit", "grower", "--mem", "400Mi"}).ending.code, 0);
  ASSERT_EQ(ask(grower, "alloc 200Mi"), "CUDA_SUCCESS");
  jobs.push_back(trainer("other", "320Mi"));
  expect_progress(jobs, "beside the program that has grown");
  // Most of the program's memory is away.
  ASSERT_TRUE(eventually([&] { return tenant("grower").value("swapped", 0l) > 0; }, 30s));
  kill(scheduler);
  for (const char* name : {"/state", "/state.old"}) unlink((run_directory() + name).c_str());
  scheduler = start_scheduler();
  ASSERT_TRUE(all_back(jobs));
  ASSERT_TRUE(eventually([&] { return processes("grower").size() == 1; }, 20s));
  EXPECT_EQ(tenant("grower").value("memory", 0l), 128l << 20);
  EXPECT_EQ(ask(grower, "spin 1ms"), "CUDA_SUCCESS") << nvshare({"why", "grower"}).output;
  EXPECT_NE(ask(grower, "alloc 1Mi"), "CUDA_SUCCESS") << "no new memory above the limit";
  expect_progress(jobs, "after the restart");
  end(jobs);
}

wire::Hello hello_of(const std::string& uuid, Bytes claimed) {
  auto hello = wire::make<wire::Hello>();
  hello.magic = wire::kMagic;
  hello.major = wire::kMajor;
  hello.minor = wire::kMinor;
  std::string digits = uuid.substr(4);
  std::erase(digits, '-');
  for (std::size_t i = 0; i < sizeof hello.gpu; ++i) {
    hello.gpu[i] = static_cast<std::uint8_t>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  hello.allocated = hello.pinned = hello.resident = static_cast<std::uint64_t>(claimed.count);
  return hello;
}

// A process of another user that says hello to the scheduler, and stays until this goes out of
// scope.
class Claim {
 public:
  Claim(const std::string& socket, const wire::Hello& hello) : pid_(::fork()) {
    if (pid_ != 0) return;
    constexpr uid_t kNobody = 65534;
    if (::setgroups(0, nullptr) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) _exit(1);
    const int connection = wire::connect_to(socket.c_str());
    if (connection < 0 || wire::send(connection, &hello.header, false) != 0) _exit(1);
    for (;;) ::pause();
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Another user says that the card is nearly full of its memory.
TEST_F(Restart, AClaimThatEndsLeavesNobodyWaiting) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  ASSERT_EQ(::chmod(folder().c_str(), 0711), 0) << "every user reaches the system's scheduler";
  Process scheduler = start_scheduler();
  std::vector<Job> jobs;
  jobs.push_back(trainer("a", "320Mi"));
  jobs.push_back(trainer("b", "320Mi"));
  expect_progress(jobs, "at the beginning");
  const wire::Hello hello = hello_of(status()["gpus"][0].value("uuid", ""), mib(400));
  kill(scheduler);
  scheduler = start_scheduler();
  {
    const Claim claim(run_directory() + "/" + wire::kProgramSocket, hello);
    ASSERT_TRUE(eventually([&] { return claims(claim.pid(), mib(400)); }, 2s)) << status().dump(1);
    sleep(3s);
    EXPECT_NE(scheduler.output().find(" uid=65534 "), std::string::npos) << scheduler.output();
    ASSERT_TRUE(all_back(jobs));
    EXPECT_TRUE(claims(claim.pid(), mib(400))) << status().dump(1);
  }
  expect_progress(jobs, "after the claim");
  end(jobs);
}

// The card of one scheduler after the other, with two programs that swap every four seconds.
class RestartedCard : public Restart {
 protected:
  void SetUp() override {
    Restart::SetUp();
    set("NVSHARE_QUANTUM_MIN", "4s");  // leaves NVML seconds without a swap to measure in
    start_again();
    jobs_.push_back(trainer("a", "320Mi"));
    jobs_.push_back(trainer("b", "320Mi"));
    expect_progress(jobs_, "at the beginning");
    ASSERT_TRUE(eventually([&] { return safe() > 480l << 20; }, 30s)) << safe();
  }
  void TearDown() override {
    end(jobs_);
    Restart::TearDown();
  }
  void start_again() {
    if (scheduler_) kill(*scheduler_);
    scheduler_.emplace(start_scheduler());
    ASSERT_TRUE(all_back(jobs_));
  }
  bool swaps() {
    const nlohmann::json now = status();
    for (const auto& one : now.value("tenants", nlohmann::json::array())) {
      if (one.value("incoming", 0l) + one.value("outgoing", 0l) > 0) return true;
    }
    return false;
  }

 private:
  std::optional<Process> scheduler_;
  std::vector<Job> jobs_;
};

// What programs have from before is not taken for what others have.
TEST_F(RestartedCard, HoldsWhatItHeldBefore) {
  for (int round = 0; round < 2 && !HasFailure(); ++round) {
    ASSERT_TRUE(eventually([&] { return swaps(); }, 30s));
    ASSERT_TRUE(eventually([&] { return !swaps(); }, 30s));
    const std::int64_t before = safe();
    start_again();
    for (int i = 0; i < 10; ++i) {
      EXPECT_GE(safe(), before - (16l << 20)) << "of " << before << ", in round " << round;
      sleep(200ms);
    }
  }
}

// Memory that leaves the GPU while no scheduler is there looks like that of others until NVML has
// measured once more.
TEST_F(RestartedCard, HoldsItSoonAgainAfterARestartInTheMiddleOfASwap) {
  const std::int64_t before = safe();
  ASSERT_TRUE(eventually([&] { return swaps(); }, 30s));
  start_again();
  EXPECT_TRUE(eventually([&] { return safe() >= before - (16l << 20); }, 60s))
      << safe() << " of " << before << " " << status().dump(1);
}

}  // namespace
}  // namespace nvshare::integration
