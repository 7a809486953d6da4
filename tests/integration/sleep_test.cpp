#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "integration/world.h"

// Programs that give the card back while they have nothing to do, and return.
namespace nvshare::integration {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kAll = 160 * kMiB;  // of each program; two do not fit

class Sleep : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_MEMORY", "256Mi");
    set("NVSHARE_RESERVE_BASE", "4Mi");
    set("NVSHARE_RESERVE_PER_PROCESS", "2Mi");
    set("NVSHARE_RESERVE_PERCENT", "1");
    set("NVSHARE_QUANTUM_MIN", "100ms");
  }

  // A program that has filled its memory and waits for requests.
  Process server(const std::string& name) {
    Process one = probe(name);
    EXPECT_EQ(ask(one, "begin 160Mi"), "CUDA_SUCCESS");
    EXPECT_EQ(ask(one, "write 7"), "written");
    return one;
  }
  void expect_said(const std::vector<std::string>& words, int code, const std::string& beginning) {
    const Outcome outcome = nvshare(words);
    EXPECT_EQ(outcome.ending.code, code) << outcome.output;
    EXPECT_EQ(outcome.output.rfind(beginning, 0), 0u) << outcome.output;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  }
  // A program that has just worked may still hold the GPU, so that its sleep is tried again.
  void put_to_sleep(const std::string& name) {
    Outcome last;
    EXPECT_TRUE(eventually(
        [&] {
          last = nvshare({"sleep", name});
          return last.ending.code == 0;
        },
        20s))
        << last.output;
    EXPECT_EQ(resident(name), 0) << last.output;
  }
  std::int64_t number(const std::string& name, const char* key) {
    const nlohmann::json found = tenant(name);
    return found.is_object() ? found.value(key, std::int64_t{-1}) : -1;
  }
  std::int64_t resident(const std::string& name) { return number(name, "resident"); }
  bool is_asleep(const std::string& name) {
    const nlohmann::json found = tenant(name);
    return found.is_object() && found.value("asleep", false);
  }
  std::int64_t moved(const std::string& name, const char* key) {
    return tenant(name).at("moves").value(key, std::int64_t{-1});
  }
  // What NVML says, which is asked once a second.
  std::int64_t used() { return status()["gpus"][0].value("memory_used", std::int64_t{-1}); }
  static void end(Process& one) {
    one.say("end");
    const auto ending = one.wait(20s);
    ASSERT_TRUE(ending);
    EXPECT_EQ(ending->code, 0) << one.output();
  }
};

TEST_F(Sleep, GivesTheCardBackAndTheNextLaunchBringsEveryByteBack) {
  const Process scheduler = start_scheduler();
  Process chat = server("chat");
  ASSERT_TRUE(eventually([&] { return used() >= kAll; }, 10s));
  put_to_sleep("chat");
  EXPECT_TRUE(is_asleep("chat"));
  EXPECT_TRUE(eventually([&] { return used() >= 0 && used() < 32 * kMiB; }, 10s)) << used();
  EXPECT_NE(nvshare({"why", "chat"}).output.find("has slept for"), std::string::npos);
  EXPECT_NE(nvshare({"status"}).output.find(" asleep "), std::string::npos);
  EXPECT_EQ(ask(chat, "read 7"), "same");
  EXPECT_FALSE(is_asleep("chat"));
  EXPECT_EQ(resident("chat"), kAll);
  end(chat);
}

TEST_F(Sleep, WakeBringsTheMemoryBackBeforeThereIsWork) {
  const Process scheduler = start_scheduler();
  Process chat = server("chat");
  put_to_sleep("chat");
  expect_said({"wake", "chat"}, 0, "chat is awake: 160MiB came back in ");
  EXPECT_EQ(resident("chat"), kAll);
  EXPECT_EQ(ask(chat, "read 7"), "same");
  end(chat);
}

TEST_F(Sleep, MemoryThatHasNotChangedIsNotCopiedAgain) {
  const Process scheduler = start_scheduler();
  Process chat = server("chat");
  put_to_sleep("chat");
  EXPECT_EQ(moved("chat", "copied"), kAll);
  ASSERT_EQ(nvshare({"wake", "chat"}).ending.code, 0);
  const std::int64_t copied = moved("chat", "copied");
  put_to_sleep("chat");
  EXPECT_EQ(moved("chat", "out"), 2 * kAll);
  EXPECT_EQ(moved("chat", "copied"), copied) << "the host has it";
  EXPECT_EQ(ask(chat, "read 7"), "same");
  end(chat);
}

TEST_F(Sleep, AHeldTenantWaitsUntilItIsWoken) {
  const Process scheduler = start_scheduler();
  Process chat = server("chat");
  ASSERT_EQ(nvshare({"sleep", "--hold", "chat"}).ending.code, 0);
  EXPECT_EQ(resident("chat"), 0);
  const std::size_t before = answers_of(chat).size();
  chat.say("read 7");
  sleep(1s);
  EXPECT_EQ(answers_of(chat).size(), before) << "it has run";
  EXPECT_NE(nvshare({"why", "chat"}).output.find("has been held asleep"), std::string::npos);
  EXPECT_EQ(nvshare({"wake", "chat"}).ending.code, 0);
  EXPECT_TRUE(eventually([&] { return answers_of(chat).size() > before; }, 20s));
  EXPECT_EQ(answers_of(chat).back(), "same");
  end(chat);
}

TEST_F(Sleep, IdleOutPutsItToSleepAndItsNextLaunchWakesIt) {
  set("NVSHARE_IDLE_OUT", "300ms");
  const Process scheduler = start_scheduler();
  Process chat = server("chat");
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(eventually([&] { return is_asleep("chat") && resident("chat") == 0; }, 20s));
    EXPECT_EQ(ask(chat, "read 7"), "same");
  }
  ASSERT_EQ(nvshare({"config", "idle_out=0s"}).ending.code, 0);
  EXPECT_EQ(ask(chat, "spin 1ms"), "CUDA_SUCCESS");
  sleep(1s);
  EXPECT_FALSE(is_asleep("chat"));
  end(chat);
}

TEST_F(Sleep, AnotherTakesTheRoomAndBothKeepTheirData) {
  const Process scheduler = start_scheduler();
  Process chat = server("chat");
  put_to_sleep("chat");
  Process train = server("train");
  EXPECT_EQ(resident("train"), kAll);
  EXPECT_TRUE(is_asleep("chat"));
  // There is no room: it takes nothing from the other before it has work.
  expect_said({"wake", "chat"}, 0, "chat is awake; 160MiB stay on the host until it has work");
  EXPECT_EQ(resident("train"), kAll);
  EXPECT_EQ(ask(chat, "read 7"), "same");
  EXPECT_EQ(ask(train, "read 7"), "same");
  end(chat);
  end(train);
}

TEST_F(Sleep, EveryMistakeIsOneLine) {
  const Process scheduler = start_scheduler();
  Process chat = server("chat");
  expect_said({"sleep", "caht"}, 2,
              "nvshare sleep: there is no tenant 'caht'; did you mean 'chat'?");
  expect_said({"wake", "caht"}, 2, "nvshare wake: there is no tenant 'caht'");
  expect_said({"wake", "chat"}, 0, "chat is awake already");
  put_to_sleep("chat");
  expect_said({"sleep", "chat"}, 0, "chat sleeps already: 160MiB of it on the host");
  expect_said({"sleep", "chat", "--hold"}, 0, "chat is held asleep: 160MiB of it on the host");
  end(chat);  // also from its sleep
  ASSERT_TRUE(eventually([&] { return !has_tenant("chat"); }, 10s));
  expect_said({"sleep", "chat"}, 2, "nvshare sleep: there is no tenant 'chat'");
}

TEST_F(Sleep, AJobThatIsHeldLosesNothing) {
  const Process scheduler = start_scheduler();
  Job train = job("train", {},
                  {"--pattern", "train", "--memory", "160Mi", "--piece", "16Mi", "--queue", "2",
                   "--check", "--seconds", "100"});
  ASSERT_TRUE(eventually([&] { return train.samples().size() > 4; }, 30s));
  expect_said({"sleep", "train"}, 1, "nvshare sleep: train has work for the GPU and is awake");
  for (int round = 0; round < 3; ++round) {
    const Outcome outcome = nvshare({"sleep", "--hold", "train"});
    EXPECT_EQ(outcome.ending.code, 0) << outcome.output;
    EXPECT_EQ(resident("train"), 0) << outcome.output;
    const double before = train.kernels_at(Duration::max());
    sleep(300ms);
    EXPECT_EQ(train.kernels_at(Duration::max()), before) << "it runs";
    EXPECT_EQ(nvshare({"wake", "train"}).ending.code, 0);
    EXPECT_TRUE(eventually([&] { return train.kernels_at(Duration::max()) > before; }, 20s));
  }
  train.process.signal(SIGTERM);
  const auto ending = train.process.wait(60s);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->code, 0) << train.process.output();
}

TEST_F(Sleep, WhatTheHostHasNoPlaceForStays) {
  set("NVSHARE_ARENA_LIMIT", "64Mi");
  const Process scheduler = start_scheduler();
  Process chat = probe("chat");
  ASSERT_EQ(ask(chat, "start"), "CUDA_SUCCESS");
  for (int i = 0; i < 10; ++i) ASSERT_EQ(ask(chat, "alloc 16Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(chat, "write 7"), "written");
  Outcome outcome;
  ASSERT_TRUE(eventually(
      [&] {
        outcome = nvshare({"sleep", "chat"});
        return outcome.ending.code == 0;
      },
      20s));
  EXPECT_NE(outcome.output.find("stay on the GPU: the host has no place for them"),
            std::string::npos)
      << outcome.output;
  EXPECT_GT(resident("chat"), 0);
  EXPECT_LT(resident("chat"), kAll);
  EXPECT_NE(nvshare({"status"}).output.find("the host has no place"), std::string::npos);
  EXPECT_NE(nvshare({"why", "chat"}).output.find("the host has no place"), std::string::npos);
  EXPECT_EQ(ask(chat, "read 7"), "same");
  end(chat);
}

// A new scheduler knows of no sleep: the client is awake, and its memory comes when it has work.
TEST_F(Sleep, ARestartOfTheSchedulerLeavesNobodyWaiting) {
  Process first = start_scheduler();
  Process chat = server("chat");
  Process held = server("held");
  put_to_sleep("chat");
  ASSERT_EQ(nvshare({"sleep", "--hold", "held"}).ending.code, 0);
  const std::size_t before = answers_of(held).size();
  held.say("read 7");
  sleep(200ms);
  first.signal(SIGKILL);
  ASSERT_TRUE(first.wait(10s));
  const Process second = start_scheduler();
  EXPECT_EQ(ask(chat, "read 7"), "same");
  EXPECT_TRUE(eventually([&] { return answers_of(held).size() > before; }, 20s));
  EXPECT_EQ(answers_of(held).back(), "same");
  EXPECT_FALSE(is_asleep("chat"));
  put_to_sleep("chat");
  EXPECT_EQ(ask(chat, "read 7"), "same");
  end(chat);
  end(held);
}

// Its memory comes back by itself, since nobody else is there to ask.
TEST_F(Sleep, WithoutTheSchedulerASleeperRunsOn) {
  Process scheduler = start_scheduler();
  Process chat = server("chat");
  ASSERT_EQ(nvshare({"sleep", "--hold", "chat"}).ending.code, 0);
  scheduler.signal(SIGKILL);
  ASSERT_TRUE(scheduler.wait(10s));
  EXPECT_EQ(ask(chat, "read 7"), "same");
  end(chat);
}

}  // namespace
}  // namespace nvshare::integration
