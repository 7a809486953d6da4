#include <signal.h>

#include <nlohmann/json.hpp>

#include "integration/world.h"

// The driver needs memory for itself, and the card is full of programs' memory: of a module when
// one of its kernels is first launched, of a context when it is made.
namespace nvshare::integration {
namespace {

class DriverRoom : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_MEMORY", "256Mi");
    // The scheduler keeps nothing back: what is measured is all that programs cannot have.
    set("NVSHARE_RESERVE_BASE", "0");
    set("NVSHARE_RESERVE_PER_PROCESS", "0");
    set("NVSHARE_RESERVE_PERCENT", "0");
    set("NVSHARE_QUANTUM_MIN", "100ms");
  }

  // A program that has so much memory, and does nothing.
  Process holder(const std::string& name, const std::string& memory,
                 const std::string& backend = "swap") {
    Process one = probe(name, {"--backend", backend});
    EXPECT_EQ(ask(one, "begin " + memory), "CUDA_SUCCESS") << one.output();
    return one;
  }
  // One that fills the rest, works on it and looks at the end whether every word is right.
  Job needy(const std::vector<std::string>& run_options = {}) {
    set("NVSHARE_SOFTGPU_MODULE_MEMORY", "12Mi");
    return job("needy", run_options,
               {"--pattern", "train", "--memory", "56Mi", "--piece", "8Mi", "--queue", "2",
                "--check", "--launches", "50"});
  }
  static int code_of(Job& job) {
    const auto ending = job.process.wait(60s);
    EXPECT_TRUE(ending) << job.process.output();
    return ending ? ending->code : -1;
  }
  // Of a program's memory, as the scheduler has it.
  std::int64_t of_process(const std::string& name, const char* key) {
    const nlohmann::json one = tenant(name);
    return one.is_object() ? one["processes"].at(0).value(key, std::int64_t{-1}) : -1;
  }
  std::int64_t of_gpu(const char* pointer) {
    const nlohmann::json now = status();
    const nlohmann::json::json_pointer place(std::string("/gpus/0") + pointer);
    return now.contains(place) ? now[place].get<std::int64_t>() : -1;
  }
};

TEST_F(DriverRoom, OthersMakeRoomForCode) {
  const Process scheduler = start_scheduler();
  Process other = holder("other", "200Mi");
  Job one = needy();
  EXPECT_EQ(code_of(one), 0) << one.process.output() << scheduler.output();
  EXPECT_EQ(one.result("kernels"), "50");
  EXPECT_GT(of_gpu("/moves/out"), 0);
  EXPECT_EQ(ask(other, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_EQ(scheduler.output().find("client_disconnected"), std::string::npos)
      << scheduler.output();
}

// Each needs it while others work, and those bring their memory back meanwhile.
TEST_F(DriverRoom, ProgramsThatTakeTurnsMakeRoomForEachOther) {
  const Process scheduler = start_scheduler();
  set("NVSHARE_SOFTGPU_MODULE_MEMORY", "2Mi");
  std::vector<Job> jobs;
  for (const char* name : {"one", "two", "three"}) {
    jobs.push_back(job(name, {},
                       {"--pattern", "train", "--memory", "112Mi", "--piece", "8Mi", "--queue", "2",
                        "--check", "--launches", "30"}));
  }
  expect_all_good(jobs, 60s);
  EXPECT_EQ(scheduler.output().find("client_disconnected"), std::string::npos)
      << scheduler.output();
}

TEST_F(DriverRoom, OthersMakeRoomForAContext) {
  const Process scheduler = start_scheduler();
  const Process first = holder("first", "128Mi");
  const Process second = holder("second", "128Mi");
  set("NVSHARE_SOFTGPU_CONTEXT_MEMORY", "8Mi");
  Process one = probe("one");
  EXPECT_EQ(ask(one, "begin 16Mi"), "CUDA_SUCCESS") << scheduler.output();
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_GT(of_gpu("/moves/out"), 0);
  // What was asked for meanwhile has been given back.
  EXPECT_EQ(of_process("one", "allocated"), std::int64_t{16} << 20);
  EXPECT_EQ(of_process("one", "pinned"), 0);
}

// It is asked for like any other memory.
TEST_F(DriverRoom, WhoIsAtItsLimitGetsTheDriversAnswer) {
  const Process scheduler = start_scheduler();
  const Process other = holder("other", "200Mi");
  Job one = needy({"--mem", "56Mi"});
  EXPECT_EQ(code_of(one), 1);
  EXPECT_NE(one.process.output().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
      << one.process.output();
}

TEST_F(DriverRoom, NobodyMakesAnyWhereNothingMovesOrNobodyIsAsked) {
  Process scheduler = start_scheduler();
  const Process other = holder("other", "200Mi", "native");
  set("NVSHARE_SOFTGPU_MODULE_MEMORY", "12Mi");
  Process one = probe("one", {"--backend", "native"});
  ASSERT_EQ(ask(one, "begin 56Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(of_process("one", "allocated"), std::int64_t{56} << 20);
  scheduler.signal(SIGKILL);
  ASSERT_TRUE(scheduler.wait(10s));
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(ask(one, "free"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
}

}  // namespace
}  // namespace nvshare::integration
