#include "daemon/serve/programs.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "daemon/broker/testing.h"
#include "daemon/serve/testing.h"

namespace nvshare::daemon {
namespace {

// The server with a picture of the process table, on a kernel without pidfd_open.
struct ProgramsTest : testing::Test, Picture {
  static ProcessCalls calls() {
    ProcessCalls some = ProcessCalls::of_kernel();
    some.of_number = [](int) { return -ENOSYS; };
    return some;
  }
  // A run of a scheduler before this one, whose keeper has this number.
  void restore(const std::string& name, int keeper) {
    const ProcessKey key = process(keeper, 1, "/");
    kept.run_begins({name, 1000, key.pid, key.started});
    programs.restore_runs(t.broker);
  }
  bool told(const std::string& what) const { return t.lines.find(what) != std::string::npos; }

  Reactor reactor = *Reactor::make();
  TestBroker t{{}, gib(16), reactor.now()};
  Settings settings;
  Kept kept{t.log};
  Processes table = processes({}, calls());
  ProgramServer programs{reactor, settings, kept, table, t.log};
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

}  // namespace
}  // namespace nvshare::daemon
