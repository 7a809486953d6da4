// `nvshare sleep` and `nvshare wake` against a scheduler that says what the test wants.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/units.h"
#include "cli/commands/commands.h"
#include "cli/testing/control_server.h"

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
  const int code = run_program({sleep_command(), wake_command(), status_command(), ps_command()},
                               words, {out, err});
  return {code, out.str(), err.str()};
}

// A tenant with one process.
struct Chat {
  std::string json() const {
    return fmt::format(
        R"({{"name":"chat","asleep":{},"hold":{},"to_leave":{},"resident":{},"pinned":{},)"
        R"("moves":{{"out":{},"in":{},"copied":0,"took":0}},"processes":[{{"pid":7,"program":"serve",)"
        R"("state":"idle","swapped":{},"incoming":{},"outgoing":{}}}]}})",
        asleep, hold, to_leave.count, resident.count, pinned.count, out.count, in.count,
        swapped.count, incoming.count, outgoing.count);
  }
  std::string answer(bool changed = true) const {
    return fmt::format(R"({{"ok":true,"changed":{},"tenant":{}}})", changed, json());
  }
  std::string status() const { return fmt::format(R"({{"ok":true,"tenants":[{}]}})", json()); }

  bool asleep = true;
  bool hold = false;
  Bytes to_leave{};
  Bytes resident{};
  Bytes pinned{};
  Bytes out{};
  Bytes in{};
  Bytes swapped{};
  Bytes incoming{};
  Bytes outgoing{};
};

// Answers the command with the first, and each look with the next; the last again and again.
auto in_turn(Chat first, std::vector<Chat> looks, bool changed = true) {
  return [=, next = std::size_t{0}](const std::string& request) mutable {
    if (request.find("status") == request.npos) return first.answer(changed);
    return looks.at(std::min(next++, looks.size() - 1)).status();
  };
}

bool matches(const std::string& text, const std::string& begin, const std::string& end) {
  return text.rfind(begin, 0) == 0 && text.size() >= end.size() &&
         text.compare(text.size() - end.size(), end.size(), end) == 0;
}

TEST(SleepCommand, WaitsAndSaysWhatLeftHowFastAndWhatStays) {
  const Chat leaves{.to_leave = gib(4), .resident = gib(5), .pinned = gib(1), .outgoing = gib(4)};
  const Chat half{.to_leave = gib(2), .resident = gib(3), .pinned = gib(1), .out = gib(2)};
  const Chat gone{.resident = gib(1), .pinned = gib(1), .out = gib(4), .swapped = gib(4)};
  ControlServer server(in_turn(leaves, {half, half, gone}));
  const Outcome outcome = run({"sleep", "chat"});
  EXPECT_EQ(outcome.code, kGood) << outcome.err;
  EXPECT_TRUE(
      matches(outcome.out, "chat sleeps: 4GiB left the GPU in 0.", " GiB/s); 1GiB cannot move\n"))
      << outcome.out;
  EXPECT_EQ(outcome.err, "");
  ASSERT_EQ(server.requests().size(), 4u);
  EXPECT_EQ(server.requests()[0], R"({"op":"sleep","name":"chat","hold":false})");
}

TEST(SleepCommand, SaysWhatTheHostHasNoPlaceFor) {
  const Chat rest{.resident = gib(3), .pinned = gib(1), .out = gib(2), .swapped = gib(2)};
  ControlServer server(in_turn({.to_leave = gib(2)}, {rest}));
  EXPECT_TRUE(
      matches(run({"sleep", "chat"}).out, "chat sleeps: 2GiB left the GPU in ",
              "; 1GiB cannot move; 2GiB stay on the GPU: the host has no place for them\n"));
}

TEST(SleepCommand, HoldIsAskedForAndSaid) {
  ControlServer server(in_turn({.hold = true, .swapped = gib(4)}, {}));
  EXPECT_EQ(run({"sleep", "--hold", "chat"}).out, "chat is held asleep: 4GiB of it on the host\n");
  EXPECT_EQ(server.requests().at(0), R"({"op":"sleep","name":"chat","hold":true})");
}

TEST(SleepCommand, ASleeperThatSleepsAlreadyIsNoMistake) {
  ControlServer server(in_turn({.swapped = gib(4)}, {}, false));
  const Outcome outcome = run({"sleep", "chat"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_EQ(outcome.out, "chat sleeps already: 4GiB of it on the host\n");
}

TEST(SleepCommand, ATenantWithWorkStaysAwakeAndTheLineSaysWhatToDo) {
  const char* const line =
      "nvshare sleep: chat has work for the GPU and is awake: nvshare sleep --hold chat stops it "
      "until it is woken\n";
  {
    ControlServer at_once(in_turn({.asleep = false}, {}));
    const Outcome outcome = run({"sleep", "chat"});
    EXPECT_EQ(outcome.code, kFailed);
    EXPECT_EQ(outcome.err, line);
  }
  ControlServer later(in_turn({.to_leave = gib(4)}, {{.to_leave = gib(4)}, {.asleep = false}}));
  EXPECT_EQ(run({"sleep", "chat"}).err, line);
}

TEST(SleepCommand, ATenantThatEndsMeanwhileIsSaidToHaveEnded) {
  ControlServer server([](const std::string& request) {
    if (request.find("status") != request.npos) return std::string(R"({"ok":true,"tenants":[]})");
    return Chat{.to_leave = gib(4)}.answer();
  });
  const Outcome outcome = run({"sleep", "chat"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(outcome.err, "nvshare sleep: chat has ended\n");
}

TEST(SleepCommand, ARefusalIsOneLine) {
  ControlServer server(
      [](const std::string&) { return R"({"ok":false,"error":"there is no tenant 'caht'"})"; });
  for (const char* command : {"sleep", "wake"}) {
    const Outcome outcome = run({command, "caht"});
    EXPECT_EQ(outcome.code, kBadInput);
    EXPECT_EQ(outcome.err, fmt::format("nvshare {}: there is no tenant 'caht'\n", command));
  }
}

TEST(SleepCommand, NoWaitReturnsAtOnce) {
  ControlServer server(in_turn({.to_leave = gib(4)}, {}));
  EXPECT_EQ(run({"sleep", "--no-wait", "chat"}).out, "chat falls asleep: 4GiB to leave the GPU\n");
  EXPECT_EQ(run({"wake", "--no-wait", "chat"}).out, "chat is awake\n");
  EXPECT_EQ(server.requests().size(), 2u);
}

TEST(WakeCommand, WaitsUntilTheMemoryIsBack) {
  const Chat comes{.asleep = false, .swapped = gib(4), .incoming = gib(4)};
  ControlServer server(in_turn(comes, {comes, {.asleep = false, .in = gib(4)}}));
  const Outcome outcome = run({"wake", "chat"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_TRUE(matches(outcome.out, "chat is awake: 4GiB came back in 0.", " GiB/s)\n"))
      << outcome.out;
  EXPECT_EQ(server.requests().at(0), R"({"op":"wake","name":"chat"})");
}

TEST(WakeCommand, SaysWhatStaysOnTheHost) {
  ControlServer server(in_turn({.asleep = false, .swapped = gib(4)}, {}));
  EXPECT_EQ(run({"wake", "chat"}).out,
            "chat is awake; 4GiB stay on the host until it has work: the GPU has no free room for "
            "them\n");
}

TEST(WakeCommand, ATenantThatIsAwakeAlreadyIsNoMistake) {
  ControlServer server(in_turn({.asleep = false}, {}, false));
  EXPECT_EQ(run({"wake", "chat"}).out, "chat is awake already\n");
}

TEST(SleepShown, InStatusAndProcesses) {
  Chat chat{.resident = gib(1), .swapped = gib(4)};
  ControlServer server([&](const std::string&) { return chat.status(); });
  EXPECT_NE(run({"ps"}).out.find(" asleep "), std::string::npos);
  const std::string status = run({"status"}).out;
  EXPECT_NE(status.find(" asleep "), std::string::npos) << status;
  EXPECT_NE(
      status.find("chat sleeps, and 1GiB of it stay on the GPU: the host has no place for them"),
      std::string::npos)
      << status;
  chat.hold = true;
  EXPECT_NE(run({"status"}).out.find(" held asleep "), std::string::npos);
  chat.outgoing = chat.to_leave = gib(1);
  EXPECT_NE(run({"status"}).out.find(" moving out "), std::string::npos);
  EXPECT_EQ(run({"status"}).out.find("no place"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::cli
