#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "integration/world.h"

// Programs that share memory by CUDA IPC at the defaults (backend `swap`), each under an
// `nvshare run` of its own.
namespace nvshare::integration {
namespace {

const std::string kGood = "CUDA_SUCCESS";
const std::string kBad = "CUDA_ERROR_INVALID_VALUE";
constexpr std::int64_t kMi = std::int64_t{1} << 20;

class Ipc : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_MEMORY", "256Mi");
    set("NVSHARE_RESERVE_BASE", "4Mi");
    set("NVSHARE_RESERVE_PER_PROCESS", "2Mi");
    set("NVSHARE_RESERVE_PERCENT", "1");
    set("NVSHARE_QUANTUM_MIN", "100ms");
  }

  static std::vector<std::string> lines_of_section(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream words(text);
    for (std::string line; std::getline(words, line);) {
      if (line.rfind("ipc ", 0) == 0) lines.push_back(line);
    }
    EXPECT_GT(lines.size(), 50u);
    return lines;
  }

  // A program that has shared `bytes` of words that are all 41, and their handle.
  std::string share(Process& owner, const std::string& bytes) {
    EXPECT_EQ(ask(owner, "begin " + bytes), kGood);
    EXPECT_EQ(ask(owner, "paint own 41"), kGood);
    return ask(owner, "share");
  }
  // A program that uses the GPU, and nothing of it yet.
  Process consumer(const std::string& name) {
    Process process = probe(name);
    EXPECT_EQ(ask(process, "start"), kGood);
    return process;
  }
  std::int64_t of(const std::string& name, const char* what) {
    const nlohmann::json found = tenant(name);
    return found.is_object() ? found.value(what, std::int64_t{-1}) : -1;
  }
  std::int64_t used() {
    const nlohmann::json now = status();
    const nlohmann::json::json_pointer place("/gpus/0/memory_used");
    return now.contains(place) ? now[place].get<std::int64_t>() : -1;
  }
  // What is used of the card, by NVML: measured once a second. The software GPU takes none itself.
  bool used_comes_to(std::int64_t bytes) {
    return eventually([&] { return used() == bytes; }, 10s);
  }
  void kill_all(const std::string& name) {
    for (const pid_t pid : processes(name)) ::kill(pid, SIGKILL);
  }
};

TEST_F(Ipc, BothSeeWhatTheOtherWrites) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "20Mi");
  Process other = consumer("other");
  ASSERT_EQ(ask(other, "open " + handle), kGood) << other.output();
  EXPECT_EQ(ask(other, "look other"), "20971520 of 41");
  EXPECT_EQ(ask(other, "paint other 42"), kGood);
  EXPECT_EQ(ask(owner, "look own"), "20971520 of 42");
  EXPECT_EQ(ask(owner, "paint own 43"), kGood);
  EXPECT_EQ(ask(other, "look other"), "20971520 of 43");
  EXPECT_EQ(ask(other, "close"), kGood);
  EXPECT_EQ(ask(other, "close"), "nothing to close");
  EXPECT_EQ(scheduler.output().find("client_disconnected"), std::string::npos);
}

// Memory, events and pools, with two processes in one run: every answer is the card's.
TEST_F(Ipc, EveryAnswerIsTheOneRecordedOnACard) {
  set("NVSHARE_SOFTGPU_MEMORY", "4Gi");
  const Process scheduler = start_scheduler();
  Process program = run({"--name", "conformance"}, {NVSHARE_CONFORMANCE, "--section", "ipc"});
  const auto ending = program.wait(60s);
  ASSERT_TRUE(ending) << program.output();
  std::ifstream record(NVSHARE_CONFORMANCE_RECORD);
  EXPECT_EQ(lines_of_section(program.output()),
            lines_of_section({std::istreambuf_iterator<char>(record), {}}));
  EXPECT_NE(scheduler.output().find("program=conformance"), std::string::npos)
      << "it was under nvshare";
}

// It has several chunks, and is a part of one.
TEST_F(Ipc, LargeAndSmallAllocationsArriveWhole) {
  set("NVSHARE_SOFTGPU_MEMORY", "1Gi");
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  Process other = consumer("other");
  const std::string large = share(owner, "300Mi");
  ASSERT_EQ(ask(other, "open " + large), kGood);
  EXPECT_EQ(ask(other, "look other"), "314572800 of 41");
  EXPECT_EQ(ask(owner, "alloc 5000"), kGood);
  EXPECT_EQ(ask(owner, "paint own 1"), kGood);
  EXPECT_EQ(ask(owner, "alloc 6000"), kGood);
  EXPECT_EQ(ask(owner, "paint own 2"), kGood);
  const std::string small = ask(owner, "share");
  ASSERT_EQ(ask(other, "open " + small), kGood);
  EXPECT_EQ(ask(other, "look other"), "6000 of 2");
  EXPECT_EQ(ask(other, "paint other 3"), kGood);
  EXPECT_EQ(ask(owner, "look own"), "6000 of 3");
  EXPECT_EQ(ask(owner, "free"), kGood);
  EXPECT_EQ(ask(owner, "look own"), "5000 of 1");
}

TEST_F(Ipc, SharedMemoryCountsAtItsOwnerAndIsPinned) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  Process other = consumer("other");
  const std::string handle = share(owner, "20Mi");
  Process third = consumer("third");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  ASSERT_EQ(ask(third, "open " + handle), kGood);
  EXPECT_EQ(ask(third, "look other"), "20971520 of 41");
  EXPECT_EQ(of("owner", "resident"), 20 * kMi);
  EXPECT_EQ(of("owner", "pinned"), 20 * kMi);
  EXPECT_EQ(of("other", "resident"), 0);
  EXPECT_EQ(of("third", "resident"), 0);
  EXPECT_TRUE(used_comes_to(20 * kMi)) << used();
  EXPECT_EQ(ask(owner, "free"), kGood);
  EXPECT_EQ(of("owner", "pinned"), 0);
  EXPECT_EQ(ask(other, "look other"), "20971520 of 41") << "it stays with those who have it open";
  EXPECT_EQ(ask(other, "close"), kGood);
  EXPECT_EQ(ask(third, "close"), kGood);
  EXPECT_TRUE(used_comes_to(0)) << used();
}

TEST_F(Ipc, OpenedTwiceItHasOneAddressAndIsClosedTwice) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "4Mi");
  Process other = consumer("other");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  EXPECT_EQ(ask(other, "close"), kGood);
  EXPECT_EQ(ask(other, "look other"), "4194304 of 41");
  EXPECT_EQ(ask(other, "close"), kGood);
  ASSERT_EQ(ask(other, "open " + handle), kGood) << "and once more";
  EXPECT_EQ(ask(other, "look other"), "4194304 of 41");
}

TEST_F(Ipc, MemoryThatIsFreedOrNobodysOrOnesOwnIsRefused) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "4Mi");
  EXPECT_EQ(ask(owner, "open " + handle), "CUDA_ERROR_INVALID_CONTEXT");
  Process other = consumer("other");
  std::string wrong = handle;
  wrong[2 * 32] = wrong[2 * 32] == '0' ? '1' : '0';  // in its secret
  EXPECT_EQ(ask(other, "open " + wrong), kBad);
  EXPECT_EQ(ask(owner, "free"), kGood);
  EXPECT_EQ(ask(other, "open " + handle), kBad);
  EXPECT_EQ(ask(owner, "alloc 4Mi"), kGood);
  const std::string again = ask(owner, "share");
  EXPECT_NE(again, handle);
  kill_all("owner");
  ASSERT_TRUE(eventually([&] { return processes("owner").empty(); }, 10s));
  EXPECT_EQ(ask(other, "open " + again), kBad);
}

TEST_F(Ipc, AProgramOutsideNvshareIsRefused) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "4Mi");
  Process outside = start({probe_program()});
  EXPECT_EQ(ask(outside, "start"), kGood);
  EXPECT_EQ(ask(outside, "open " + handle), kBad);
}

// The driver's own handles stay what they are.
TEST_F(Ipc, AnOwnerWithNativeMemoryIsOpenedByTheDriver) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner", {"--backend", "native"});
  const std::string handle = share(owner, "4Mi");
  Process other = consumer("other");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  EXPECT_EQ(ask(other, "look other"), "4194304 of 41");
  EXPECT_EQ(ask(other, "close"), kGood);
}

TEST_F(Ipc, AnOwnerWithManagedMemoryIsRefusedWithALine) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner", {"--backend", "managed"});
  ASSERT_EQ(ask(owner, "begin 4Mi"), kGood);
  EXPECT_EQ(ask(owner, "share"), "CUDA_ERROR_NOT_SUPPORTED");
  EXPECT_TRUE(owner.wait_for("--backend native", 5s)) << owner.output();
}

TEST_F(Ipc, WhatIsLeftWhenTheOwnerIsKilledGoesWithTheLastThatHasItOpen) {
  const Process scheduler = start_scheduler();
  Process other = consumer("other");
  Process owner = probe("owner");
  const std::string handle = share(owner, "20Mi");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  kill_all("owner");
  ASSERT_TRUE(eventually([&] { return of("owner", "resident") <= 0; }, 10s));
  EXPECT_EQ(ask(other, "look other"), "20971520 of 41");
  EXPECT_EQ(ask(other, "paint other 5"), kGood);
  EXPECT_TRUE(used_comes_to(20 * kMi)) << used();
  EXPECT_EQ(ask(other, "close"), kGood);
  EXPECT_TRUE(used_comes_to(0)) << used();
}

TEST_F(Ipc, NothingIsLeftOfAConsumerThatIsKilled) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "20Mi");
  Process other = consumer("other");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  kill_all("other");
  ASSERT_TRUE(eventually([&] { return processes("other").empty(); }, 10s));
  EXPECT_TRUE(used_comes_to(20 * kMi)) << used();
  EXPECT_EQ(ask(owner, "look own"), "20971520 of 41");
  EXPECT_EQ(of("owner", "pinned"), 20 * kMi);
  EXPECT_EQ(ask(owner, "free"), kGood);
  EXPECT_TRUE(used_comes_to(0)) << used();
}

TEST_F(Ipc, SharedMemoryAndItsHandlesOutliveTheScheduler) {
  Process first = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "20Mi");
  Process other = consumer("other");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  first.signal(SIGKILL);
  ASSERT_TRUE(first.wait(10s));
  EXPECT_EQ(ask(other, "look other"), "20971520 of 41");
  EXPECT_EQ(ask(other, "paint other 6"), kGood);
  const Process second = start_scheduler();
  // At once, while the owner may not have come back.
  Process third = consumer("third");
  EXPECT_EQ(ask(third, "open " + handle), kGood);
  EXPECT_EQ(ask(third, "look other"), "20971520 of 6");
  EXPECT_TRUE(eventually([&] { return of("owner", "pinned") == 20 * kMi; }, 10s));
}

// The call waits until the program has its memory back, as for other ways to pin memory.
TEST_F(Ipc, MemoryThatWasSwappedOutComesBackToBeShared) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  ASSERT_EQ(ask(owner, "begin 160Mi"), kGood);
  ASSERT_EQ(ask(owner, "paint own 7"), kGood);
  Process rival = probe("rival");
  ASSERT_EQ(ask(rival, "begin 160Mi"), kGood);
  ASSERT_EQ(ask(rival, "paint own 8"), kGood);
  ASSERT_TRUE(eventually([&] { return of("owner", "swapped") > 0; }, 20s)) << "some of it is away";
  const std::string handle = ask(owner, "share");
  EXPECT_EQ(handle.size(), 128u) << handle;
  EXPECT_EQ(of("owner", "pinned"), 160 * kMi);
  Process other = consumer("other");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  EXPECT_EQ(ask(other, "look other"), "167772160 of 7");
}

TEST_F(Ipc, AnotherUserIsRefused) {
  if (getuid() != 0) GTEST_SKIP() << "only root can start a program as another user";
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "4Mi");
  ASSERT_EQ(chmod(folder().c_str(), 0755), 0);
  ASSERT_EQ(chmod(run_directory().c_str(), 0755), 0);
  Process other = run({"--name", "other"}, {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534",
                                            "--clear-groups", probe_program()});
  ASSERT_EQ(ask(other, "start"), kGood) << other.output();
  ASSERT_EQ(ask(other, "spin 1ms"), kGood);
  ASSERT_EQ(processes("other").size(), 1u) << "it is under nvshare";
  EXPECT_EQ(ask(other, "open " + handle), kBad);
}

// A child has no driver, and what its parent shares stays the parent's.
TEST_F(Ipc, AForkedChildForgets) {
  const Process scheduler = start_scheduler();
  Process owner = probe("owner");
  const std::string handle = share(owner, "4Mi");
  Process other = consumer("other");
  ASSERT_EQ(ask(other, "open " + handle), kGood);
  EXPECT_NE(ask(other, "fork close"), kGood);
  EXPECT_NE(ask(owner, "fork share"), handle);
  EXPECT_EQ(ask(other, "look other"), "4194304 of 41");
  EXPECT_EQ(ask(other, "close"), kGood);
}

}  // namespace
}  // namespace nvshare::integration
