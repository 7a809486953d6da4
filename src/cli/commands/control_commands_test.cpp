// The commands that talk to the scheduler, against one that says what the test wants.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/talk/control_client.h"
#include "cli/testing/api_server.h"
#include "cli/testing/control_server.h"
#include "cli/testing/process.h"

namespace nvshare::cli {
namespace {

using testing::ControlServer;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome run(const std::vector<std::string>& words) {
  std::ostringstream out;
  std::ostringstream err;
  const int code =
      run_program({status_command(), top_command(), ps_command(), limit_command(), why_command(),
                   trace_command(), pause_command(), resume_command(), config_command()},
                  words, {out, err});
  return {code, out.str(), err.str()};
}

auto always(std::string answer) {
  return [answer](const std::string&) { return answer; };
}

constexpr const char* kTenant =
    R"({"ok":true,"tenant":{"name":"train","cores":60,"memory":8589934592,"priority":2,"paused":false}})";

TEST(ControlCommands, LimitSendsWhatWasGivenAndShowsWhatIs) {
  ControlServer server(always(kTenant));
  const Outcome outcome = run({"limit", "train", "--cores", "60"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_EQ(outcome.out, "train: cores 60%, memory 8GiB, priority 2\n");
  run({"limit", "train", "--mem", "8Gi", "--priority=-2"});
  run({"limit", "train", "--mem", "none"});
  run({"limit", "train", "--reset"});
  EXPECT_EQ(server.requests(),
            (std::vector<std::string>{
                R"({"op":"limit","name":"train","cores":60})",
                R"({"op":"limit","name":"train","memory":8589934592,"priority":-2})",
                R"({"op":"limit","name":"train","memory":null})",
                R"({"op":"limit","name":"train","reset":true})"}));
}

TEST(ControlCommands, AChangeThatIsNotKeptIsDoneAndToldSo) {
  ControlServer server(
      always(R"({"ok":true,"kept":false,"tenant":{"name":"a","cores":60,"memory":null}})"));
  const Outcome outcome = run({"limit", "a", "--cores", "60"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_EQ(outcome.out, "a: cores 60%, memory without limit, priority 0\n");
  EXPECT_EQ(outcome.err.find("nvshare limit: done, but a restart of the scheduler would undo it"),
            0u)
      << outcome.err;
}

TEST(ControlCommands, ALimitOfAContainerThatHasNotComeIsTold) {
  ControlServer server(
      always(R"({"ok":true,"kept":true,"processes":[],"declared":true,"expires":86400,"limits":)"
             R"({"cores":40,"memory":null,"priority":0},"limits_from":{"cores":"limit",)"
             R"("memory":"default","priority":"default"}})"));
  const Outcome outcome = run({"limit", "container-web", "--cores", "40"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_EQ(outcome.out,
            "container-web is declared, and has no process now\n"
            "limits: cores 40% (limit), memory without limit (default), priority 0 (default)\n"
            "forgotten after 24 hours without a process\n");
}

TEST(ControlCommands, WhyTellsWhereTheLimitsComeFrom) {
  ControlServer server(
      always(R"({"ok":true,"processes":[],"limits":{"cores":40,"memory":null,"priority":-1},)"
             R"("limits_from":{"cores":"file","memory":"default","priority":"limit"}})"));
  EXPECT_EQ(run({"why", "user-5"}).out,
            "user-5 has no process on a GPU\n"
            "limits: cores 40% (file), memory without limit (default), priority -1 (limit)\n");
}

TEST(ControlCommands, TraceShowsWhatThereIsInParts) {
  ControlServer server([](const std::string& request) -> std::string {
    if (request.find("from") == request.npos) {
      return R"({"ok":true,"lines":["one","two"],"next":7,"end":9,"lost":0})";
    }
    // More has come meanwhile: without --follow that is not waited for.
    return R"({"ok":true,"lines":["three"],"next":9,"end":12,"lost":3})";
  });
  const Outcome outcome = run({"trace", "train"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_EQ(outcome.out, "one\ntwo\nthree\n");
  EXPECT_NE(outcome.err.find("3 lines came too fast and are lost"), std::string::npos);
  EXPECT_EQ(server.requests(),
            (std::vector<std::string>{R"({"op":"trace","name":"train"})",
                                      R"({"op":"trace","name":"train","from":7})"}));
}

TEST(ControlCommands, TraceOfAnOlderSchedulerSaysSo) {
  ControlServer server(always(R"({"ok":false,"error":"there is no \"op\" 'trace'"})"));
  const Outcome outcome = run({"trace"});
  EXPECT_NE(outcome.code, kGood);
  EXPECT_NE(outcome.err.find("there is no"), std::string::npos) << outcome.err;
}

TEST(ControlCommands, WrongValuesAreNotSent) {
  ControlServer server(always(kTenant));
  const Outcome outcome = run({"limit", "train", "--cores", "0", "--mem", "much"});
  EXPECT_EQ(outcome.code, kBadInput);
  EXPECT_EQ(outcome.err,
            "nvshare limit: --mem: 'much' is not a size (examples: 4Gi, 512Mi, 2G); "
            "--cores: '0' is not a whole number from 1 to 100 (100: no limit)\n");
  EXPECT_EQ(run({"limit", "train", "--cores", "none"}).err,
            "nvshare limit: --cores: 'none' is not a whole number from 1 to 100 (100: no limit)\n");
  EXPECT_EQ(run({"limit", "train"}).err,
            "nvshare limit: give --cores, --mem, --priority or --reset\n");
  EXPECT_EQ(run({"limit", "train", "--reset", "--cores", "5"}).err,
            "nvshare limit: --reset: goes without new limits\n");
  EXPECT_EQ(run({"config", "=1"}).code, kBadInput);
  EXPECT_EQ(run({"config", "scheduling=maybe"}).err,
            "nvshare config: scheduling: 'maybe' is not one of on, off\n");
  EXPECT_TRUE(server.requests().empty());
}

// 500 would be bytes, and is meant to be more.
TEST(ControlCommands, AMemoryLimitOfAFewBytesNeedsItsUnit) {
  ControlServer server(always(kTenant));
  for (const char* few : {"500", "1048575", "0.5"}) {
    const Outcome outcome = run({"limit", "train", "--mem", few});
    EXPECT_EQ(outcome.code, kBadInput) << few;
    EXPECT_EQ(outcome.err, fmt::format("nvshare limit: --mem: '{0}' is a number of bytes: write "
                                       "{0}Mi or {0}Gi, or {0}B if bytes are meant\n",
                                       few));
  }
  EXPECT_EQ(run({"limit", "train", "--mem", "0"}).err,
            "nvshare limit: --mem: '0' is not more than nothing (none: no limit)\n");
  EXPECT_TRUE(server.requests().empty());
  for (const char* meant : {"500B", "1048576", "64Ki", "1K"}) {
    EXPECT_EQ(run({"limit", "train", "--mem", meant}).code, kGood) << meant;
  }
  EXPECT_EQ(server.requests().at(0), R"({"op":"limit","name":"train","memory":500})");
}

TEST(ControlCommands, ARefusalIsOneLineAndBadInput) {
  ControlServer server(always(R"({"ok":false,"error":"there is no tenant 'trian'"})"));
  const Outcome outcome = run({"why", "trian"});
  EXPECT_EQ(outcome.code, kBadInput);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "nvshare why: there is no tenant 'trian'\n");
}

TEST(ControlCommands, PauseAndResume) {
  ControlServer server([](const std::string& request) -> std::string {
    return request.find("true") != request.npos
               ? R"({"ok":true,"tenant":{"name":"a","cores":100,"memory":null,"paused":true}})"
               : R"({"ok":true,"tenant":{"name":"a","cores":100,"memory":null,"paused":false}})";
  });
  EXPECT_EQ(run({"pause", "a"}).out, "a: cores 100%, memory without limit, priority 0, paused\n");
  EXPECT_EQ(run({"resume", "a"}).out, "a: cores 100%, memory without limit, priority 0\n");
  EXPECT_EQ(server.requests()[0], R"({"op":"pause","name":"a","paused":true})");
}

TEST(ControlCommands, Why) {
  ControlServer server(
      always(R"({"ok":true,"processes":[{"pid":7,"gpu":1,"program":"py","text":"waits"}]})"));
  EXPECT_EQ(run({"why", "a"}).out, "py (pid 7) on GPU 1: waits\n");
}

constexpr const char* kLease = "0123456789abcdef0123456789abcdef";

TEST(ControlCommands, WhyOfALeaseIsAskedOverHttp) {
  testing::ApiServer server([](const testing::ApiRequest&) {
    return testing::http(200, R"({"taskType":"NMT","gpu":1,"state":"WAITING","pid":7,)"
                              R"("why":"waits for 5ms: no slot is free"})");
  });
  const Outcome outcome = run({"why", kLease});
  EXPECT_EQ(outcome.out, "request of NMT (pid 7) on GPU 1: waits for 5ms: no slot is free\n");
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(server.targets(), std::vector<std::string>{"GET /v1/leases/" + std::string(kLease)});
}

TEST(ControlCommands, WhyOfALeaseThatIsNotTheCallersSaysSo) {
  testing::ApiServer server([](const testing::ApiRequest&) {
    return testing::http(403, R"({"error":"this lease is another user's"})");
  });
  const Outcome outcome = run({"why", kLease});
  EXPECT_NE(outcome.code, kGood);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "nvshare why: this lease is another user's\n");
}

// A run may be called like a lease.
TEST(ControlCommands, WhyOfATenantWithTheNameOfALease) {
  ControlServer server(
      always(R"({"ok":true,"processes":[{"pid":7,"gpu":1,"program":"py","text":"waits"}]})"));
  const Outcome outcome = run({"why", kLease});
  EXPECT_EQ(outcome.out, "py (pid 7) on GPU 1: waits\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(ControlCommands, WhyHasALineForHostMemoryWhereItMatters) {
  const std::string process = R"({"pid":7,"gpu":1,"program":"py","text":"waits"})";
  ControlServer server(
      always(R"({"ok":true,"processes":[)" + process +
             R"(],"host_memory":{"arena_needed":3221225472,"arena_used":1073741824,)"
             R"("arena_limit":2147483648,"arena_limited_by":"cgroup"}})"));
  EXPECT_EQ(run({"why", "a"}).out,
            "py (pid 7) on GPU 1: waits\n"
            "host memory for swapping: 3GiB needed, 1GiB used, 2GiB possible (limited by a "
            "cgroup), 1GiB short\n");
  ControlServer none(always(R"({"ok":true,"processes":[)" + process + R"(],"host_memory":null})"));
  EXPECT_EQ(run({"why", "a"}).out, "py (pid 7) on GPU 1: waits\n");
}

TEST(ControlCommands, Config) {
  ControlServer server([](const std::string& request) -> std::string {
    if (request.find("scheduling") != request.npos) return R"({"ok":true})";
    return R"({"ok":true,"settings":[{"name":"turn","value":"10ms","default":"5ms",)"
           R"("range":"1ms to 1s","help":"how long a turn is","changeable":true}]})";
  });
  EXPECT_EQ(run({"config"}).out,
            "SETTING  VALUE  DEFAULT  RANGE      WHAT IT DOES\n"
            "turn     10ms   5ms      1ms to 1s  how long a turn is\n");
  EXPECT_EQ(run({"config", "turn"}).out, "10ms\n");
  EXPECT_EQ(run({"config", "tunr"}).err,
            "nvshare config: 'tunr': no such setting; did you mean 'turn'?\n");
  EXPECT_EQ(run({"config", "turn=10ms"}).out, "turn = 10ms\n");
  EXPECT_EQ(server.requests().back(), R"({"op":"set","name":"turn","value":"10ms"})");
  EXPECT_EQ(run({"config", "scheduling=off"}).out, "scheduling = off\n");
  EXPECT_EQ(server.requests().back(), R"({"op":"scheduling","on":false})");
  EXPECT_EQ(run({"config", "--json"}).out.substr(0, 18), "{\n  \"settings\": [\n");
}

TEST(ControlCommands, StatusAsJsonIsTheAnswerWithoutItsEnvelope) {
  ControlServer server(always(R"({"ok":true,"zebra":1,"tenants":[],"apple":[1.5,"\u00e9"]})"));
  const Outcome outcome = run({"status", "--json"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_EQ(
      outcome.out,
      "{\n  \"zebra\": 1,\n  \"tenants\": [],\n  \"apple\": [\n    1.5,\n    \"\u00e9\"\n  ]\n}\n");
}

TEST(ControlCommands, StatusShowsMemoryOnItsWay) {
  ControlServer server(
      always(R"({"ok":true,"gpus":[{"incoming":1048576,"outgoing":2097152,"utilisation":0}],)"
             R"("tenants":[{"name":"a","processes":[{"state":"waiting","incoming":1048576}]},)"
             R"({"name":"b","processes":[{"state":"idle","outgoing":2097152}]}]})"));
  const std::string text = run({"status"}).out;
  EXPECT_NE(text.find("   3MiB  0.0%  "), std::string::npos) << text;
  EXPECT_NE(text.find("moving in "), std::string::npos) << text;
  EXPECT_NE(text.find("moving out "), std::string::npos) << text;
}

TEST(ControlCommands, StatusWantsAnIntervalThatMakesSense) {
  ControlServer server(always(R"({"ok":true,"tenants":[]})"));
  EXPECT_EQ(run({"status", "2"}).err, "nvshare status: SECONDS is only for --watch\n");
  EXPECT_EQ(run({"status", "--watch", "0"}).err,
            "nvshare status: SECONDS: '0' is not from 0.1 to 3600\n");
  EXPECT_EQ(run({"status", "--watch", "soon"}).code, kBadInput);
  EXPECT_EQ(run({"top", "0"}).err, "nvshare top: SECONDS: '0' is not from 0.1 to 3600\n");
  EXPECT_TRUE(server.requests().empty());
}

TEST(ControlCommands, WatchedStatusComesAgainAndAgainAlsoWhileSomethingIsWrong) {
  ControlServer server([n = 0](const std::string&) mutable -> std::string {
    return ++n == 2 ? R"({"ok":false,"error":"not now"})" : R"({"ok":true,"tenants":[]})";
  });
  testing::Process lines({NVSHARE_PROGRAM, "status", "--json", "--watch", "0.1"}, {});
  EXPECT_TRUE(lines.wait_for_output("{\"tenants\":[]}\n{\"tenants\":[]}\n")) << lines.output();
  testing::Process frames({NVSHARE_PROGRAM, "status", "-w", "0.1"}, {});
  EXPECT_TRUE(frames.wait_for_output("no program runs")) << frames.output();
  EXPECT_EQ(frames.output().find('\033'), std::string::npos) << "no terminal, no colours";
}

TEST(ControlCommands, TopShowsTheStatusBlockAfterBlockUntilItIsInterrupted) {
  ControlServer server([n = 0](const std::string&) mutable {
    const std::string cores = ++n == 1 || n == 3 ? "40" : "60";
    return R"({"ok":true,"tenants":[{"name":"train","cores":)" + cores + "}]}";
  });
  const std::string before = run({"status"}).out;
  const std::string after = run({"status"}).out;
  ASSERT_NE(before, after);
  testing::Process top({NVSHARE_PROGRAM, "top", "0.1"}, {});
  EXPECT_TRUE(top.wait_for_output(before + "\n" + after + "\n" + after)) << top.output();
  ::kill(top.pid(), SIGINT);
  EXPECT_EQ(top.wait().signal(), SIGINT);
  testing::Process lines({NVSHARE_PROGRAM, "top", "--json", "0.1"}, {});
  EXPECT_TRUE(lines.wait_for_output("\"cores\":60}]}\n{\"tenants\"")) << lines.output();
}

TEST(ControlCommands, WithoutASchedulerTheNextStepIsNamed) {
  const std::string directory = ::testing::TempDir() + "no-scheduler-here";
  ::setenv("NVSHARE_RUN_DIR", directory.c_str(), 1);
  for (const char* command : {"status", "ps", "config"}) {
    const Outcome outcome = run({command});
    EXPECT_EQ(outcome.code, kFailed);
    EXPECT_EQ(outcome.err, std::string("nvshare ") + command + ": no scheduler is running in " +
                               directory + ": start a program with nvshare run\n");
  }
  ::setenv("NVSHARE_RUN_DIR", std::string(200, 'x').c_str(), 1);
  EXPECT_NE(run({"status"}).err.find("too long for a socket"), std::string::npos);
  ::unsetenv("NVSHARE_RUN_DIR");
}

TEST(ControlCommands, AnswersThatMakeNoSenseAreSaidToMakeNone) {
  for (const char* answer :
       {"[]", "nonsense", "{}", R"({"ok":1})", R"({"ok":true})", R"({"ok":true,"tenants":[)"}) {
    ControlServer server(always(answer));
    EXPECT_EQ(run({"status"}).code, kFailed) << answer;
    EXPECT_NE(run({"status"}).err.find("is it of another version?"), std::string::npos) << answer;
  }
  // Of the wrong types throughout: read as nothing, not as a crash.
  ControlServer server(
      always(R"({"ok":true,"scheduler":7,"gpus":{"a":1},"tenants":[3,{"name":4,"processes":["x"],)"
             R"("memory":"big","share":"all","cores":1e300}],"foreign":null})"));
  EXPECT_EQ(run({"status"}).code, kGood);
  EXPECT_EQ(run({"ps"}).code, kGood);
}

TEST(ControlClient, DoesNotWaitForEver) {
  ControlServer server(always(""));
  auto client = ControlClient::connect({server.directory(), DirectoryKind::Chosen});
  ASSERT_TRUE(client);
  const auto reply = client->ask(R"({"op":"status"})", 50ms);
  ASSERT_FALSE(reply);
  EXPECT_NE(reply.error().message.find("does not answer"), std::string::npos);
}

TEST(ControlClient, AsksSeveralTimesOnOneConnection) {
  ControlServer server([n = 0](const std::string&) mutable {
    return R"({"ok":true,"n":)" + std::to_string(++n) + "}";
  });
  auto client = ControlClient::connect({server.directory(), DirectoryKind::Chosen});
  ASSERT_TRUE(client);
  for (const char* expected : {R"({"ok":true,"n":1})", R"({"ok":true,"n":2})"}) {
    const auto reply = client->ask("{}");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->json, expected);
  }
}

}  // namespace
}  // namespace nvshare::cli
