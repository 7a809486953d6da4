#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "integration/fake_scheduler.h"
#include "integration/world.h"
#include "wire/channel.h"

// Programs that a scheduler does not take. They are not free by that: they wait, or get CUDA's
// error.
namespace nvshare::integration {
namespace {

using Greeting = FakeScheduler::Greeting;

constexpr const char* kWaits = "nvshare: this program waits for the GPU, because ";

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

class RefusedProgram : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    std::filesystem::create_directories(run_directory());
    set("NVSHARE_SOFTGPU_TRACE", folder() + "/trace");
    set("LD_PRELOAD", NVSHARE_LIBRARY);
  }
  // Whether the driver was asked for a function, by any program.
  bool driver_was_asked_for(const std::string& function) const {
    std::stringstream text;
    text << std::ifstream(folder() + "/trace").rdbuf();
    return text.str().find(function) != std::string::npos;
  }
  // Whether it gives so many answers.
  static bool answers(const Process& one, std::size_t many, Duration limit = 20s) {
    return eventually([&] { return answers_of(one).size() >= many; }, limit);
  }
  // The program's own words, without the library's.
  static std::string last_answer(const Process& one) {
    const auto all = answers_of(one);
    return all.empty() ? "" : all.back();
  }
  std::unique_ptr<FakeScheduler> one_that(Greeting how,
                                          std::uint64_t hellos = FakeScheduler::kAll) {
    auto scheduler = std::make_unique<FakeScheduler>(run_directory());
    scheduler->turn_away(how, hellos);
    return scheduler;
  }
};

TEST_F(RefusedProgram, WaitsAndSaysWhyOnce) {
  auto scheduler = one_that(Greeting::Refuse);
  Process one = start({probe_program()});
  one.say("start");
  ASSERT_TRUE(eventually([&] { return scheduler->turned_away() >= 3; }, 20s))
      << "it does not ask again";
  EXPECT_EQ(answers_of(one).size(), 0u) << one.output();
  EXPECT_FALSE(driver_was_asked_for("cuDevicePrimaryCtxRetain")) << "a context takes GPU memory";
  EXPECT_EQ(count(one.output(),
                  std::string(kWaits) + "the scheduler refuses it: there is no place for you\n"),
            1u)
      << one.output();
  scheduler->welcome_all();
  ASSERT_TRUE(answers(one, 1));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_GT(scheduler->returned() + scheduler->holding(), 0u) << "it ran without a grant";
  EXPECT_EQ(count(one.output(), "nvshare: "), 1u) << one.output();
}

TEST_F(RefusedProgram, GoesOnByItselfWhenItIsTaken) {
  auto scheduler = one_that(Greeting::Refuse, 2);
  Process one = start({probe_program()});
  EXPECT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  EXPECT_EQ(scheduler->turned_away(), 2u);
}

TEST_F(RefusedProgram, IsFreeWhenTheSchedulerIsGone) {
  auto scheduler = one_that(Greeting::Refuse);
  Process one = start({probe_program()});
  one.say("start");
  ASSERT_TRUE(eventually([&] { return scheduler->turned_away() >= 2; }, 20s));
  EXPECT_EQ(answers_of(one).size(), 0u) << one.output();
  scheduler.reset();
  ASSERT_TRUE(answers(one, 1));
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
}

// Out of descriptors a scheduler closes connections and says nothing.
TEST_F(RefusedProgram, IsAlsoOneThatIsTurnedAwayWithoutAWord) {
  auto scheduler = one_that(Greeting::Close);
  Process one = start({probe_program()});
  one.say("start");
  ASSERT_TRUE(one.wait_for(std::string(kWaits) + "the scheduler refuses it: it closes", 20s));
  EXPECT_GT(scheduler->turned_away(), 1u);
  EXPECT_EQ(answers_of(one).size(), 0u) << one.output();
  EXPECT_FALSE(driver_was_asked_for("cuDevicePrimaryCtxRetain"));
  scheduler->welcome_all();
  ASSERT_TRUE(answers(one, 1));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
}

// It ran by itself. Between the questions of its library it does not.
TEST_F(RefusedProgram, StandsFromTheFirstQuestionOn) {
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
  auto scheduler = one_that(Greeting::Close);
  ASSERT_TRUE(eventually([&] { return scheduler->turned_away() >= 1; }, 20s));
  one.say("spin 1ms");
  EXPECT_FALSE(answers(one, 3, 2s)) << "it works";
  scheduler->welcome_all();
  ASSERT_TRUE(answers(one, 3));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
}

// A scheduler that ends closes connections, too.
TEST_F(RefusedProgram, IsNotOneWhoseConnectionIsClosedOnce) {
  auto scheduler = one_that(Greeting::Close, 1);
  Process one = start({probe_program()});
  EXPECT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  EXPECT_EQ(scheduler->turned_away(), 1u);
  EXPECT_TRUE(scheduler->wait_for_clients(1));
  EXPECT_EQ(one.output().find("nvshare: "), std::string::npos) << one.output();
}

TEST_F(RefusedProgram, WithAnotherProtocolGetsAnError) {
  auto scheduler = one_that(Greeting::OtherProtocol);
  Process one = start({probe_program()});
  EXPECT_EQ(ask(one, "start"), "CUDA_ERROR_SYSTEM_NOT_READY");
  EXPECT_FALSE(driver_was_asked_for("cuDevicePrimaryCtxRetain"));
  EXPECT_EQ(count(one.output(),
                  "nvshare: this program gets no GPU, because its libnvshare.so "
                  "speaks protocol 1."),
            1u)
      << one.output();
  one.say("end");
  EXPECT_EQ(one.wait(20s).value_or(Ending{}).code, 0);
}

TEST_F(RefusedProgram, ForGoodGetsAnError) {
  auto scheduler = one_that(Greeting::RefuseForGood);
  Process one = start({probe_program()});
  EXPECT_EQ(ask(one, "start"), "CUDA_ERROR_SYSTEM_NOT_READY");
  EXPECT_EQ(ask(one, "start"), "CUDA_ERROR_SYSTEM_NOT_READY");
  EXPECT_FALSE(driver_was_asked_for("cuDevicePrimaryCtxRetain"));
  EXPECT_TRUE(eventually([&] { return scheduler->turned_away() >= 3; }, 20s));
  EXPECT_EQ(count(one.output(),
                  "nvshare: this program gets no GPU, because the scheduler refuses it: there is "
                  "no place for you (see `nvshare doctor`, or run it without nvshare)\n"),
            1u)
      << one.output();
  EXPECT_EQ(count(one.output(), "nvshare: "), 1u) << one.output();
}

// A scheduler of another version may be put back.
TEST_F(RefusedProgram, WithAContextWaitsAlsoWhereItIsRefusedForGood) {
  for (const auto how : {Greeting::OtherProtocol, Greeting::RefuseForGood}) {
    SCOPED_TRACE(how == Greeting::OtherProtocol ? "another protocol" : "for good");
    auto scheduler = one_that(how, 0);
    Process one = start({probe_program()});
    ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
    scheduler->turn_away(how);
    scheduler->reconnect(0);
    ASSERT_TRUE(one.wait_for(kWaits, 20s));
    one.say("spin 1ms");
    sleep(1500ms);
    EXPECT_EQ(answers_of(one).size(), 1u) << one.output();
    scheduler->welcome_all();
    ASSERT_TRUE(answers(one, 2));
    EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
  }
}

// The context is from a time without a scheduler.
TEST_F(RefusedProgram, WithAContextWaitsForAnother) {
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  auto scheduler = one_that(Greeting::OtherProtocol);
  ASSERT_TRUE(one.wait_for(std::string(kWaits) + "its libnvshare.so speaks protocol", 20s))
      << one.output();
  one.say("start");
  sleep(500ms);
  EXPECT_EQ(answers_of(one).size(), 1u) << one.output();
  scheduler->welcome_all();
  ASSERT_TRUE(answers(one, 2));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
}

// The link asks again after each end. A program that ends its own connections gains nothing.
TEST_F(RefusedProgram, IsNotOneWhoseConnectionsAreShort) {
  auto scheduler = one_that(Greeting::Refuse, 0);
  ASSERT_TRUE(scheduler->close());  // no grants
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  one.say("spin 1ms");
  for (int i = 0; i < 4; ++i) {
    sleep(300ms);
    ASSERT_TRUE(scheduler->reconnect(1));
  }
  sleep(300ms);
  EXPECT_EQ(answers_of(one).size(), 1u) << "it runs without a grant";
  scheduler.reset();
  EXPECT_TRUE(answers(one, 2, 5s)) << "it waits for a scheduler that is gone";
  EXPECT_EQ(one.output().find("nvshare: "), std::string::npos) << one.output();
}

// Between two connections nobody would count the memory.
TEST_F(RefusedProgram, AllocatesNothingBetweenTwoConnections) {
  auto scheduler = one_that(Greeting::Refuse, 0);
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "alloc 1Mi"), "CUDA_SUCCESS");
  scheduler->turn_away(Greeting::Silence);
  scheduler->reconnect(0);
  one.say("alloc 2Mi");
  sleep(700ms);
  EXPECT_EQ(answers_of(one).size(), 2u) << "nobody was asked for the memory";
  scheduler->welcome_all();
  ASSERT_TRUE(scheduler->reconnect(1));
  ASSERT_TRUE(answers(one, 3));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
  EXPECT_TRUE(eventually([&] { return scheduler->allocated() == 3u << 20; }, 20s));
}

// A question that the old connection did not answer is asked again on the new one.
TEST_F(RefusedProgram, AsksForMemoryAgainWhereTheConnectionEndedFirst) {
  auto scheduler = one_that(Greeting::Refuse, 0);
  scheduler->keep_waiting(true);
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  one.say("alloc 1Mi");
  ASSERT_TRUE(scheduler->wait_for_requests(1));
  ASSERT_TRUE(scheduler->reconnect(1));
  ASSERT_TRUE(scheduler->wait_for_requests(1)) << "it took the memory without an answer";
  EXPECT_EQ(answers_of(one).size(), 1u);
  scheduler->keep_waiting(false);
  ASSERT_TRUE(answers(one, 2));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
  EXPECT_TRUE(eventually([&] { return scheduler->allocated() == 1u << 20; }, 20s));
}

// The scheduler takes it, breaks off, and does not take it again.
TEST_F(RefusedProgram, NeitherLaunchesNorAllocatesAfterARestart) {
  for (const std::string what : {"spin 1ms", "alloc 1Mi", "info"}) {
    SCOPED_TRACE(what);
    auto scheduler = one_that(Greeting::Refuse, 0);
    Process one = start({probe_program()});
    ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
    ASSERT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
    scheduler->turn_away(Greeting::Refuse);
    scheduler->reconnect(0);
    ASSERT_TRUE(one.wait_for(kWaits, 20s));
    one.say(what);
    sleep(1500ms);
    EXPECT_EQ(answers_of(one).size(), 2u) << one.output();
    scheduler->welcome_all();
    ASSERT_TRUE(answers(one, 3));
    EXPECT_EQ(count(one.output(), "nvshare: "), 1u) << one.output();
  }
}

// The line comes once a minute (Saying).
TEST_F(RefusedProgram, WaitsEachTimeThatItIsRefused) {
  auto scheduler = one_that(Greeting::Refuse, 2);
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  for (std::size_t round = 1; round <= 2; ++round) {
    const std::uint64_t before = scheduler->turned_away();
    scheduler->turn_away(Greeting::Refuse);
    scheduler->reconnect(0);
    ASSERT_TRUE(eventually([&] { return scheduler->turned_away() > before; }, 20s));
    one.say("spin 1ms");
    sleep(500ms);
    EXPECT_EQ(answers_of(one).size(), round) << one.output();
    scheduler->welcome_all();
    ASSERT_TRUE(answers(one, round + 1));
    EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
  }
  EXPECT_EQ(count(one.output(), "nvshare: "), 1u) << one.output();
}

TEST_F(RefusedProgram, MayUseMemoryOfTheBackendThatItIsTakenWith) {
  // No scheduler first: the program is free, and has a context.
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  auto scheduler = one_that(Greeting::Refuse, 3);
  scheduler->backend(wire::Backend::Swap);
  ASSERT_TRUE(one.wait_for(kWaits, 20s));
  ASSERT_EQ(ask(one, "alloc 4Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(scheduler->allocated(), std::uint64_t{4} << 20);
  EXPECT_EQ(scheduler->pinned(), 0u) << "it could leave the GPU";
}

// Nobody answers, but somebody has said who may ask.
TEST_F(RefusedProgram, IsAlsoOneThatMayNotOpenTheSocket) {
  auto scheduler = one_that(Greeting::Refuse, 0);
  const std::string socket = run_directory() + "/" + wire::kProgramSocket;
  std::vector<std::string> words{probe_program()};
  if (::geteuid() == 0) {  // root may open everything
    words = {"/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all", probe_program()};
  }
  ASSERT_EQ(::chmod(socket.c_str(), 0), 0);
  Process one = start(words);
  one.say("start");
  ASSERT_TRUE(one.wait_for(std::string(kWaits) +
                               "the scheduler refuses it: this program may not open " + socket +
                               " (ask its owner to allow it, or run it without nvshare)\n",
                           20s))
      << one.output();
  EXPECT_EQ(answers_of(one).size(), 0u) << one.output();
  ASSERT_EQ(::chmod(socket.c_str(), 0600), 0);
  ASSERT_TRUE(answers(one, 1));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
}

TEST_F(RefusedProgram, HasTooManyFilesOpen) {
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "files"), "full");
  sleep(1500ms);  // until the link has looked for a scheduler
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS") << "there is no scheduler";
  EXPECT_EQ(one.output().find("nvshare: "), std::string::npos) << one.output();
  auto scheduler = one_that(Greeting::Refuse, 0);
  ASSERT_TRUE(one.wait_for(std::string(kWaits) + "it has too many files open", 20s))
      << one.output();
  EXPECT_NE(one.output().find("raise `ulimit -n`"), std::string::npos) << one.output();
  ASSERT_EQ(ask(one, "apart spin 1ms"), "apart");
  sleep(500ms);
  EXPECT_EQ(answers_of(one).size(), 4u) << one.output();
  EXPECT_EQ(ask(one, "nofiles"), "closed");
  ASSERT_TRUE(answers(one, 6));
  EXPECT_EQ(last_answer(one), "CUDA_SUCCESS");
}

// Its link could neither ask for grants nor give them back.
TEST_F(RefusedProgram, IsAlsoOneThatCannotStartAThread) {
  auto scheduler = one_that(Greeting::Refuse, 0);
  Process one = start({probe_program()});
  ASSERT_NE(ask(one, "total").find("total="), std::string::npos);  // the driver's threads run
  ASSERT_EQ(ask(one, "threadless"), "threadless");
  EXPECT_EQ(ask(one, "start"), "CUDA_ERROR_SYSTEM_NOT_READY");
  EXPECT_FALSE(driver_was_asked_for("cuDevicePrimaryCtxRetain"));
  EXPECT_EQ(count(one.output(),
                  "nvshare: this program gets no GPU, because it cannot start another thread"),
            1u)
      << one.output();
}

// Work in flight ends later than the scheduler waits for a hello.
TEST_F(RefusedProgram, IsNotOneWhoseWorkTakesLong) {
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "launch 7s"), "CUDA_SUCCESS");
  const Process scheduler = start_scheduler();
  EXPECT_TRUE(eventually([&] { return processes(user()).size() == 1; }, 15s));
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_EQ(one.output().find("nvshare: "), std::string::npos) << one.output();
}

// As Python does it with KeyboardInterrupt. A profiler's signals do not end the first second.
TEST_F(RefusedProgram, GetsControlAfterASignalThatItHandles) {
  auto scheduler = one_that(Greeting::Refuse);
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "handle"), "handled");
  const Duration begin = now();
  one.say("start");
  ASSERT_TRUE(one.wait_for(kWaits, 20s));
  one.signal(SIGTERM);
  ASSERT_TRUE(answers(one, 2, 5s)) << one.output();
  EXPECT_EQ(last_answer(one), "CUDA_ERROR_SYSTEM_NOT_READY");
  EXPECT_GE(now() - begin, 1s);
  EXPECT_FALSE(driver_was_asked_for("cuDevicePrimaryCtxRetain"));
  one.say("end");
  EXPECT_EQ(one.wait(5s).value_or(Ending{}).code, 0);
}

TEST_F(RefusedProgram, EndsByCtrlC) {
  auto scheduler = one_that(Greeting::Refuse);
  Process one = start({probe_program()});
  one.say("start");
  ASSERT_TRUE(one.wait_for(kWaits, 20s));
  one.signal(SIGINT);
  EXPECT_EQ(one.wait(5s).value_or(Ending{}).signal, SIGINT);
}

TEST_F(RefusedProgram, EndsWhileAThreadWaits) {
  for (const std::string what : {"start", "spin 1ms", "alloc 1Mi"}) {
    SCOPED_TRACE(what);
    const bool first = what == "start";
    auto scheduler = one_that(Greeting::Refuse, first ? FakeScheduler::kAll : 0);
    Process one = start({probe_program()});
    if (!first) {
      ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
      scheduler->turn_away(Greeting::Refuse);
      scheduler->reconnect(0);
      ASSERT_TRUE(one.wait_for(kWaits, 20s));
    }
    ASSERT_EQ(ask(one, "apart " + what), "apart");
    ASSERT_TRUE(one.wait_for(kWaits, 20s));
    sleep(300ms);
    EXPECT_EQ(answers_of(one).size(), first ? 1u : 2u) << one.output();
    one.say("end");
    EXPECT_EQ(one.wait(5s).value_or(Ending{}).code, 0);
  }
}

TEST_F(RefusedProgram, HasChildrenThatDoNotHang) {
  auto scheduler = one_that(Greeting::Refuse);
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "apart start"), "apart");
  ASSERT_TRUE(one.wait_for(kWaits, 20s));
  for (const std::string what : {"start", "retain", "alloc 1Mi", "info"}) {
    SCOPED_TRACE(what);
    const std::size_t before = answers_of(one).size();
    one.say("fork " + what);
    ASSERT_TRUE(answers(one, before + 1, 5s)) << one.output();
    EXPECT_EQ(last_answer(one), "CUDA_ERROR_NOT_INITIALIZED");
  }
  one.say("fork nvml");
  ASSERT_TRUE(answers(one, 6, 5s));
  EXPECT_NE(last_answer(one).find("total="), std::string::npos) << one.output();
}

// Another thread forks while the scheduler is asked for the first time.
TEST_F(RefusedProgram, HasChildrenThatDoNotHangWhileItsLinkIsMade) {
  auto scheduler = one_that(Greeting::Silence, 1);
  Process one = start({probe_program()});
  ASSERT_EQ(ask(one, "apart start"), "apart");
  ASSERT_TRUE(eventually([&] { return scheduler->turned_away() == 1; }, 20s));
  one.say("fork retain");
  ASSERT_TRUE(answers(one, 3, 5s)) << one.output();
  EXPECT_EQ(count(one.output(), "CUDA_ERROR_NOT_INITIALIZED"), 1u) << one.output();
  EXPECT_EQ(count(one.output(), "CUDA_SUCCESS"), 1u) << one.output();
}

// --- with the real scheduler ---------------------------------------------------------------------

TEST_F(RefusedProgram, WaitsUntilAnotherEnds) {
  set("NVSHARE_MAX_CLIENTS_PER_USER", "1");
  const Process scheduler = start_scheduler();
  Process first = start({probe_program()});
  ASSERT_EQ(ask(first, "start"), "CUDA_SUCCESS");
  Process second = start({gpu_job(), "--seconds", "1", "--progress", "50ms"});
  ASSERT_TRUE(second.wait_for(std::string(kWaits) + "the scheduler refuses it: ", 20s))
      << second.output();
  ASSERT_TRUE(second.wait_for("as many as max_clients_per_user allows\n", 5s)) << second.output();
  sleep(1500ms);
  EXPECT_EQ(second.output().find("progress"), std::string::npos) << "it works";
  EXPECT_EQ(ask(first, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_FALSE(
      eventually([&] { return second.output().find("progress") != std::string::npos; }, 500ms));
  first.say("end");
  ASSERT_EQ(first.wait(20s).value_or(Ending{}).code, 0);
  EXPECT_TRUE(second.wait_for("progress", 20s)) << second.output();
  EXPECT_EQ(second.wait(30s).value_or(Ending{}).code, 0) << second.output();
}

// Another program has the only place, and does nothing.
TEST_F(RefusedProgram, KeepsToItsCoresOnceItIsTaken) {
  const Process scheduler = start_scheduler();
  Process other = start({probe_program()});
  ASSERT_EQ(ask(other, "start"), "CUDA_SUCCESS");
  set("LD_PRELOAD", "");
  const std::string job = gpu_job() + " --seconds 60 --progress 50ms --kernel 1ms";
  Job one{run({"--name", "one", "--cores", "10"},
              {"/bin/sh", "-c", "echo ready; read line; exec " + job}),
          "one", 1ms};
  ASSERT_TRUE(one.process.wait_for("ready", 20s)) << one.process.output();
  ASSERT_EQ(nvshare({"config", "max_clients_per_user=1"}).ending.code, 0);
  one.process.say("go");
  ASSERT_TRUE(one.process.wait_for(kWaits, 20s)) << one.process.output();
  sleep(2s);
  EXPECT_TRUE(one.samples().empty()) << one.process.output();
  ASSERT_EQ(nvshare({"config", "max_clients_per_user=8"}).ending.code, 0);
  ASSERT_TRUE(one.process.wait_for("progress", 20s)) << one.process.output();
  sleep(1s);
  EXPECT_EQ(wrong_share(share_for(one, 4s), 10, "one"), "");
}

// A MIG instance has a UUID of its own, which the scheduler does not know.
TEST_F(RefusedProgram, OnAnUnknownGpuGetsAnError) {
  const Process scheduler = start_scheduler();
  set("NVSHARE_SOFTGPU_CARD", std::filesystem::path(folder()).filename().string() + "-other");
  Process one = start({probe_program()});
  EXPECT_EQ(ask(one, "start"), "CUDA_ERROR_SYSTEM_NOT_READY");
  EXPECT_EQ(count(one.output(), "nvshare: this program gets no GPU, because the scheduler"), 1u)
      << one.output();
}

}  // namespace
}  // namespace nvshare::integration
