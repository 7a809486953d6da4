// `nvshare lease` without programs, against a scheduler that says what the test wants.

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/testing/api_server.h"
#include "cli/testing/process.h"

namespace nvshare::cli {
namespace {

using testing::ApiRequest;
using testing::ApiServer;
using testing::http;

constexpr const char* kId = "0123456789abcdef0123456789abcdef";
constexpr const char* kWaiting =
    R"({"leases":[{"leaseId":null,"taskType":"ASR","gpu":1,"state":"WAITING","pid":7}]})";
constexpr const char* kGranted =
    R"({"leases":[{"leaseId":null,"taskType":"ASR","gpu":1,"state":"ACTIVE","pid":7}]})";

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome run(std::vector<std::string> words) {
  std::ostringstream out;
  std::ostringstream err;
  words.insert(words.begin(), "lease");
  const int code = run_program({lease_command()}, words, {out, err});
  return {code, out.str(), err.str()};
}

auto always(std::string answer) {
  return [answer](const ApiRequest&) { return answer; };
}

TEST(LeaseCommands, HelpListsThemAndEachHasItsOwn) {
  EXPECT_EQ(run({"--help"}).code, kGood);
  EXPECT_NE(run({"--help"}).out.find("usage: nvshare lease COMMAND"), std::string::npos);
  for (const char* one : {"run", "list", "release", "classes", "status", "watch"}) {
    EXPECT_NE(run({"help"}).out.find("\n  " + std::string(one) + " "), std::string::npos) << one;
    EXPECT_NE(run({one, "--help"}).out.find("usage: nvshare lease " + std::string(one)),
              std::string::npos);
    EXPECT_EQ(run({"help", one}).out, run({one, "--help"}).out);
  }
}

TEST(LeaseCommands, MistakesAreOneLine) {
  EXPECT_EQ(run({}).code, kBadInput);
  EXPECT_EQ(run({"lsit"}).err,
            "nvshare lease: unknown command 'lsit'; did you mean 'list'? (see nvshare lease "
            "--help)\n");
  EXPECT_EQ(run({"list", "--jsn"}).err,
            "nvshare lease list: unknown option --jsn; did you mean '--json'? (see nvshare lease "
            "list --help)\n");
  EXPECT_EQ(run({"release"}).err,
            "nvshare lease release: LEASE is missing (see nvshare lease release --help)\n");
}

TEST(LeaseCommands, ListAndClassesAndStatusAreTablesOrJson) {
  ApiServer server([](const ApiRequest& request) {
    if (request.target == "GET /v1/leases?limit=1000") return http(200, R"({"leases":[]})");
    if (request.target == "GET /v1/classes") {
      return http(200, R"({"classes":[{"taskType":"NMT","maxWaitMs":3000}]})");
    }
    return http(200, R"({"gpus":[],"classes":{}})");
  });
  EXPECT_EQ(run({"list"}).out, "no lease is held, and no request waits\n");
  EXPECT_EQ(run({"list", "--json"}).out, "{\n  \"leases\": []\n}\n");
  EXPECT_NE(run({"classes"}).out.find("NMT"), std::string::npos);
  EXPECT_EQ(run({"status"}).out, "no GPU is known yet\n");
  EXPECT_EQ(run({"status", "--json"}).code, kGood);
  EXPECT_EQ(server.targets(),
            (std::vector<std::string>{"GET /v1/leases?limit=1000", "GET /v1/leases?limit=1000",
                                      "GET /v1/classes", "GET /v1/status", "GET /v1/status"}));
}

TEST(LeaseCommands, AnAnswerOfAnotherKindIsAnError) {
  for (const char* body : {"<html>", "[]", "", R"({"other":1})"}) {
    ApiServer server(always(http(200, body)));
    for (const char* option : {"", "--json"}) {
      std::vector<std::string> words{"list"};
      if (*option != 0) words.push_back(option);
      const Outcome outcome = run(words);
      EXPECT_EQ(outcome.code, kFailed) << body;
      EXPECT_EQ(outcome.out, "");
      EXPECT_EQ(outcome.err,
                "nvshare lease list: the scheduler's answer lacks 'leases': is it of another "
                "version?\n");
    }
  }
}

TEST(LeaseCommands, ReleaseGivesALeaseBack) {
  ApiServer server(always("HTTP/1.1 204 No Content\r\n\r\n"));
  const Outcome outcome = run({"release", kId});
  EXPECT_EQ(outcome.code, kGood) << outcome.err;
  EXPECT_EQ(outcome.out, std::string(kId) + " is released\n");
  EXPECT_EQ(server.targets(), (std::vector<std::string>{std::string("DELETE /v1/leases/") + kId}));
}

TEST(LeaseCommands, WhatIsNoLeaseIsNotSent) {
  ApiServer server(always(http(204, "")));
  for (const char* id : {"../../v1/config", "12", "0123456789abcdef0123456789abcdeg"}) {
    const Outcome outcome = run({"release", id});
    EXPECT_EQ(outcome.code, kBadInput);
    EXPECT_EQ(outcome.err, "nvshare lease release: '" + std::string(id) +
                               "' is no lease: nvshare lease list shows them\n");
  }
  EXPECT_TRUE(server.requests().empty());
}

TEST(LeaseCommands, RefusalsAreOneLineAndAnExitCode) {
  const std::string body = R"({"error":"there is no such lease"})";
  for (const auto& [status, code] :
       {std::pair{404, kBadInput}, {410, kBadInput}, {403, kFailed}, {503, kFailed}}) {
    ApiServer server(always(http(status, body)));
    const Outcome outcome = run({"release", kId});
    EXPECT_EQ(outcome.code, code) << status;
    EXPECT_EQ(outcome.err, "nvshare lease release: there is no such lease\n");
  }
}

TEST(LeaseCommands, WatchIntoAPipeTellsWhatChanges) {
  std::atomic<int> looks = 0;
  ApiServer server([&](const ApiRequest& request) {
    if (request.target == "GET /v1/status") return http(200, R"({"gpus":[]})");
    const int look = looks++;
    // A scheduler that is away for a moment is told once.
    if (look == 1 || look == 2) return http(503, R"({"error":"restarting"})");
    return http(200, look == 0 ? kWaiting : kGranted);
  });
  testing::Process watch({NVSHARE_PROGRAM, "lease", "watch"}, {});
  ASSERT_TRUE(watch.wait_for_output("has a lease")) << watch.output();
  EXPECT_NE(watch.output().find(" ASR of process 7: waits for GPU 1\nnvshare lease watch: "
                                "restarting\n2"),
            std::string::npos)
      << watch.output();
  ::kill(watch.pid(), SIGINT);
  EXPECT_EQ(watch.wait().signal(), SIGINT);
}

TEST(LeaseCommands, WatchEndsWhereThereIsNoScheduler) {
  ::setenv("NVSHARE_RUN_DIR", "/nowhere", 1);
  const Outcome outcome = run({"watch"});
  ::unsetenv("NVSHARE_RUN_DIR");
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(outcome.err,
            "nvshare lease watch: no scheduler is running in /nowhere: start a program with "
            "nvshare run\n");
}

}  // namespace
}  // namespace nvshare::cli
