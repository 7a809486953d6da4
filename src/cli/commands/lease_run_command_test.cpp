// `nvshare lease run` as a person runs it, against a scheduler that says what the test wants.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/testing/api_server.h"
#include "cli/testing/process.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;
using testing::ApiRequest;
using testing::ApiServer;
using testing::eventually;
using testing::http;
using testing::Outcome;
using testing::Process;

constexpr const char* kId = "0123456789abcdef0123456789abcdef";
const std::string kAsk = "POST /v1/leases";
const std::string kRenew = std::string("POST /v1/leases/") + kId + "/renew";
const std::string kRelease = std::string("DELETE /v1/leases/") + kId;

using Words = std::vector<std::string>;

std::string granted(int milliseconds = 30000) {
  return http(201, fmt::format(R"({{"result":"ACQUIRED","leaseId":"{}","gpu":0,"queueWaitMs":0,)"
                               R"("acquiredAt":"2026-11-19T19:07:00.000Z",)"
                               R"("expiresAt":"2026-11-19T19:07:{:02}.{:03}Z"}})",
                               kId, milliseconds / 1000, milliseconds % 1000));
}

// Grants each lease for so long; `renewal` is the answer to each renewal.
std::function<std::string(const ApiRequest&)> grants(int milliseconds = 30000,
                                                     std::string renewal = http(200, "{}")) {
  return [=](const ApiRequest& request) {
    if (request.target == kAsk) return granted(milliseconds);
    return request.target == kRenew ? renewal : http(204, "");
  };
}

Process start(Words words, const Words& variables = {}) {
  words.insert(words.begin(), {NVSHARE_PROGRAM, "lease", "run", "--class", "NMT"});
  return Process(words, variables);
}

Outcome run(const Words& words, const Words& variables = {}) {
  return start(words, variables).wait();
}

// Without a process: for what is wrong before anything is started.
std::pair<int, std::string> mistake(Words words) {
  std::ostringstream out;
  std::ostringstream err;
  words.insert(words.begin(), {"lease", "run"});
  const int code = run_program({lease_command()}, words, {out, err});
  return {code, out.str() + err.str()};
}

// A folder for the files of one test.
class LeaseRun : public ::testing::Test {
 protected:
  LeaseRun() {
    char name[] = "/tmp/nvshare-lease-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~LeaseRun() override { fs::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

TEST_F(LeaseRun, TheProgramHasTheLeaseAndItsExitCodeIsKept) {
  ApiServer server(grants());
  Process process = start({"--gpu", "1", "--max-wait", "300ms", "--hold", "10s", "--hint-audio",
                           "12s", "--hint-hold", "3s", "--busy", "skip", "--", "sh", "-c",
                           "echo $NVSHARE_LEASE $CUDA_VISIBLE_DEVICES; exit 41"},
                          {"CUDA_VISIBLE_DEVICES=3", "NVSHARE_LEASE=of-an-outer-run"});
  const pid_t pid = process.pid();
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.code(), 41);
  EXPECT_EQ(outcome.output, std::string(kId) + " 3\n");
  EXPECT_EQ(server.targets(), (Words{kAsk, kRelease}));
  const auto requests = server.requests();
  EXPECT_EQ(
      requests[0].body,
      R"({"taskType":"NMT","withChildren":true,"gpuKey":"1","maxWaitMs":300,"holdMaxMs":10000,)"
      R"("busyPolicy":"SKIP","hint":{"estimatedAudioMs":12000,"estimatedGpuHoldMs":3000}})");
  for (const ApiRequest& one : requests) EXPECT_EQ(one.peer, pid) << "the owner of the lease";
}

TEST_F(LeaseRun, VariablesAndDescriptorsAreLeftAlone) {
  ApiServer server(grants());
  EXPECT_EQ(run({"sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}"}).output, "unset\n");
  EXPECT_EQ(run({"sh", "-c", "ls /proc/self/fd | wc -l"}).output,
            Process({"sh", "-c", "ls /proc/self/fd | wc -l"}, {}).wait().output);
}

TEST_F(LeaseRun, AProgramThatASignalEndsEndsTheRunByThatSignal) {
  ApiServer server(grants());
  EXPECT_EQ(run({"sh", "-c", "kill -USR1 $$"}).signal(), SIGUSR1);
  EXPECT_EQ(server.targets(), (Words{kAsk, kRelease}));
}

TEST_F(LeaseRun, TheLeaseIsGivenBackAfterTheProgramsEnd) {
  std::string at_release;
  ApiServer server([&](const ApiRequest& request) {
    if (request.target == kAsk) return granted();
    at_release = testing::contents(file("ended"));
    return http(204, "");
  });
  EXPECT_EQ(run({"sh", "-c", "sleep 0.1; echo yes > " + file("ended")}).code(), 0);
  EXPECT_EQ(at_release, "yes\n");
}

TEST_F(LeaseRun, WithoutALeaseNothingIsStarted) {
  struct Case {
    int status;
    const char* body;
    const char* line;
  };
  for (const Case& one :
       {Case{503,
             R"({"result":"TIMEOUT","reason":"GPU_BUSY","queueWaitMs":300,"retryAfterMs":1200})",
             "no lease within 300.0ms: all slots are taken; try again in 1.20s"},
        Case{409, R"({"result":"SKIPPED","reason":"GPU_USAGE_HIGH","retryAfterMs":500})",
             "no lease: the GPU is under high load; try again in 500.0ms"},
        Case{409, R"({"result":"FALLBACK_CPU","reason":"GPU_BUSY","retryAfterMs":500})",
             "no lease: all slots are taken; try again in 500.0ms"},
        Case{429, R"({"result":"QUEUE_FULL","reason":"GPU_BUSY","retryAfterMs":2000})",
             "no lease: too many requests wait; try again in 2.00s"}}) {
    ApiServer server([&](const ApiRequest&) { return http(one.status, one.body); });
    const Outcome outcome = run({"touch", file("started")});
    EXPECT_EQ(outcome.code(), 75) << one.body;
    EXPECT_EQ(outcome.output, std::string("nvshare lease run: ") + one.line + "\n");
    EXPECT_FALSE(fs::exists(file("started")));
    EXPECT_EQ(server.targets(), Words{kAsk});
  }
}

TEST_F(LeaseRun, OnTheCpuTheProgramSeesNoGpuAndNoLease) {
  const char* body = R"({"result":"FALLBACK_CPU","reason":"GPU_BUSY","retryAfterMs":500})";
  ApiServer server([&](const ApiRequest&) { return http(409, body); });
  const Outcome outcome =
      run({"--fallback-cpu", "--", "sh", "-c",
           "echo \"<${CUDA_VISIBLE_DEVICES-unset}>\" ${NVSHARE_LEASE-unset}; exit 7"},
          {"CUDA_VISIBLE_DEVICES=3", "NVSHARE_LEASE=of-an-outer-run"});
  EXPECT_EQ(outcome.code(), 7);
  EXPECT_EQ(outcome.output,
            "nvshare lease run: no lease: all slots are taken; try again in 500.0ms; the program "
            "runs without a GPU\n<> unset\n");
  EXPECT_EQ(server.targets(), Words{kAsk});
}

TEST_F(LeaseRun, OnlyTheAnswerDecidesThatAProgramRunsOnTheCpu) {
  ApiServer server([&](const ApiRequest&) {
    return http(503, R"({"result":"TIMEOUT","reason":"GPU_BUSY","retryAfterMs":500})");
  });
  EXPECT_EQ(run({"--fallback-cpu", "--", "true"}).code(), 75);
}

TEST_F(LeaseRun, TheLeaseIsRenewedAtHalfOfItsTime) {
  ApiServer server(grants(600));
  Process process = start({"sleep", "30"});
  const auto renewals = [&] { return server.requests().size() >= 4; };
  ASSERT_TRUE(eventually(renewals));
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().signal(), SIGTERM);
  const auto requests = server.requests();
  EXPECT_EQ(requests[0].target, kAsk);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(requests[i].target, kRenew);
    EXPECT_EQ(requests[i].body, "{}");
    EXPECT_EQ(requests[i].peer, requests[0].peer);
    // A renewal's time counts from its request, which leaves before the server has it.
    EXPECT_GE(requests[i].came_at - requests[i - 1].came_at, 200ms);
  }
  EXPECT_EQ(requests.back().target, kRelease);
}

TEST_F(LeaseRun, AProgramWhoseLeaseIsTakenAwayIsEnded) {
  ApiServer server(grants(400, http(410, R"({"error":"overdue","reason":"OVERDUE"})")));
  const Outcome outcome =
      run({"sh", "-c", "trap 'echo told; exit 0' TERM; while :; do sleep 0.05; done"});
  EXPECT_EQ(outcome.code(), 75);
  EXPECT_EQ(outcome.output,
            "nvshare lease run: the lease was taken away: it was held for too long without a "
            "renewal; ending sh\ntold\n");
}

TEST_F(LeaseRun, AStoppedProgramWhoseLeaseIsTakenAwayIsEndedToo) {
  ApiServer server(grants(400, http(404, R"({"error":"no such lease"})")));
  const Outcome outcome = run({"sh", "-c", "kill -STOP $$; sleep 30"});
  EXPECT_EQ(outcome.code(), 75);
  EXPECT_EQ(outcome.output,
            "nvshare lease run: the lease was taken away: the scheduler does not know it any "
            "more; ending sh\n");
}

TEST_F(LeaseRun, ALeaseThatCannotBeRenewedIsToldOnce) {
  std::atomic<int> renewals = 0;
  ApiServer server([&](const ApiRequest& request) {
    if (request.target == kAsk) return granted(400);
    if (request.target != kRenew) return http(204, "");
    return ++renewals < 4 ? http(503, R"({"error":"not now"})") : http(200, "{}");
  });
  Process process = start({"sleep", "30"});
  ASSERT_TRUE(process.wait_for_output("the lease is renewed again"));
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().output,
            "nvshare lease run: the lease is not renewed: not now; asking again\n"
            "nvshare lease run: the lease is renewed again\n");
}

TEST_F(LeaseRun, ASchedulerThatHangsHoldsUpNeitherSignalsNorTheEnd) {
  ApiServer server(grants(200, ""));
  Process process = start({"sh", "-c", "trap 'exit 5' HUP; echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(process.wait_for_output("up\n"));
  ASSERT_TRUE(eventually([&] { return server.requests().size() == 2; }));
  const auto began = std::chrono::steady_clock::now();
  ::kill(process.pid(), SIGHUP);
  EXPECT_EQ(process.wait().code(), 5);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 4s) << "before the renewal gives up";
}

TEST_F(LeaseRun, SignalsArePassedOn) {
  ApiServer server(grants());
  int code = 10;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    ++code;
    Process process = start(
        {"sh", "-c",
         fmt::format("trap 'exit {}' TERM INT HUP; echo up; while :; do sleep 0.05; done", code)});
    ASSERT_TRUE(process.wait_for_output("up\n"));
    ::kill(process.pid(), signal);
    EXPECT_EQ(process.wait().code(), code) << signal;
  }
}

TEST_F(LeaseRun, TheProgramEndsWhenItsRunIsKilled) {
  ApiServer server(grants());
  Process process = start({"sh", "-c",
                           "trap 'echo told > " + file("told") +
                               "; exit' TERM; echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(process.wait_for_output("up\n"));
  ::kill(process.pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return testing::contents(file("told")) == "told\n"; }));
  EXPECT_EQ(server.targets(), Words{kAsk});
}

TEST_F(LeaseRun, ASignalEndsTheWaitingAndWithdrawsTheRequest) {
  ApiServer server([](const ApiRequest&) { return std::string(); });
  Process process = start({"touch", file("started")});
  ASSERT_TRUE(eventually([&] { return server.requests().size() == 1; }));
  ::kill(process.pid(), SIGINT);
  EXPECT_EQ(process.wait().signal(), SIGINT);
  EXPECT_TRUE(eventually([&] { return server.withdrawn() == 1; }));
  EXPECT_FALSE(fs::exists(file("started")));
}

TEST_F(LeaseRun, AProgramThatCannotBeStartedHoldsNoLease) {
  ApiServer server(grants());
  EXPECT_EQ(run({file("nothing")}).code(), 127);
  EXPECT_TRUE(server.requests().empty()) << "nothing is asked for a program that is not there";
  std::ofstream(file("script")) << "#!/nowhere/sh\n";
  ASSERT_EQ(::chmod(file("script").c_str(), 0755), 0);
  EXPECT_EQ(run({file("script")}).code(), 127);
  EXPECT_EQ(server.targets(), (Words{kAsk, kRelease}));
}

TEST_F(LeaseRun, WhatTheSchedulerRefusesIsBadInput) {
  ApiServer server([](const ApiRequest&) {
    return http(400, R"({"error":"there is no class 'NMT'","classes":["NMT2","ASR"]})");
  });
  const Outcome outcome = run({"true"});
  EXPECT_EQ(outcome.code(), 2);
  EXPECT_EQ(outcome.output, "nvshare lease run: there is no class 'NMT'; did you mean 'NMT2'?\n");
}

TEST_F(LeaseRun, AnswersThatMakeNoSenseAreOneLine) {
  for (const char* body : {"<html>", "{}", R"({"result":"ACQUIRED","leaseId":"x"})"}) {
    ApiServer server([&](const ApiRequest&) { return http(200, body); });
    const Outcome outcome = run({"touch", file("started")});
    EXPECT_EQ(outcome.code(), 1) << body;
    EXPECT_NE(outcome.output.find("is it of another version?\n"), std::string::npos);
    EXPECT_FALSE(fs::exists(file("started")));
  }
}

TEST_F(LeaseRun, MistakesAreToldTogetherAndNothingIsSent) {
  ApiServer server(grants());
  EXPECT_EQ(mistake({"--clas", "NMT", "true"}),
            (std::pair<int, std::string>{
                2,
                "nvshare lease run: unknown option --clas; did you mean '--class'? (see nvshare "
                "lease run --help)\n"}));
  EXPECT_EQ(mistake({"--class", "NMT"}),
            (std::pair<int, std::string>{
                2, "nvshare lease run: CMD is missing (see nvshare lease run --help)\n"}));
  EXPECT_EQ(mistake({"--max-wait", "300", "--busy", "run", "--", "true"}),
            (std::pair<int, std::string>{
                2,
                "nvshare lease run: --class is missing: nvshare lease classes lists them; "
                "--max-wait: '300' has no known unit (examples: 10ms, 2s, 1h); --busy: 'run' is "
                "not one of wait, skip, fallback\n"}));
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(LeaseRun, WithoutASchedulerNothingIsStarted) {
  const Outcome outcome = run({"touch", file("started")}, {"NVSHARE_RUN_DIR=" + folder_});
  EXPECT_EQ(outcome.code(), 1);
  EXPECT_EQ(outcome.output, "nvshare lease run: no scheduler is running in " + folder_ +
                                ": start a program with nvshare run\n");
  EXPECT_FALSE(fs::exists(file("started")));
}

}  // namespace
}  // namespace nvshare::cli
