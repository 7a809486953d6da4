#include <signal.h>

#include <nlohmann/json.hpp>

#include "integration/world.h"

// `nvshare run --oversubscribe-self`: programs that are larger than the card by themselves. Each
// changes all of its memory again and again, and looks at the end whether every word is right.
namespace nvshare::integration {
namespace {

class Oversubscribe : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_MEMORY", "128Mi");
    set("NVSHARE_RESERVE_BASE", "4Mi");
    set("NVSHARE_RESERVE_PER_PROCESS", "2Mi");
    set("NVSHARE_RESERVE_PERCENT", "1");
    set("NVSHARE_QUANTUM_MIN", "100ms");
  }

  Job trainer(const std::string& name, const std::vector<std::string>& run_options,
              const std::string& memory, const std::string& piece,
              const std::vector<std::string>& more) {
    std::vector<std::string> words{"--pattern", "train",   "--memory", memory,   "--piece",
                                   piece,       "--queue", "2",        "--check"};
    words.insert(words.end(), more.begin(), more.end());
    return job(name, run_options, words);
  }
  static void expect_good(Job& job) {
    const auto ending = job.process.wait(120s);
    ASSERT_TRUE(ending) << job.name << " has not ended:\n" << job.process.output();
    EXPECT_EQ(ending->code, 0) << job.name << ":\n" << job.process.output();
  }
  nlohmann::json only_process(const std::string& name) {
    const nlohmann::json one = tenant(name);
    const nlohmann::json::json_pointer place("/processes/0");
    return one.is_object() && one.contains(place) ? one[place] : nlohmann::json::object();
  }
};

TEST_F(Oversubscribe, TwiceTheCardRunsToTheEndWithEveryByteRight) {
  const Process scheduler = start_scheduler();
  // In many pieces, and all of it in one.
  for (const char* piece : {"8Mi", "256Mi"}) {
    Job large = trainer("large", {"--oversubscribe-self"}, "256Mi", piece, {"--launches", "200"});
    EXPECT_TRUE(eventually(
        [&] { return only_process("large").value("allocated", 0l) >= 256l << 20; }, 60s));
    const nlohmann::json process = only_process("large");
    EXPECT_EQ(process.value("backend", ""), "managed");
    EXPECT_GE(process.value("beyond", 0l), 128l << 20);
    EXPECT_GE(process.value("swapped", 0l), process.value("beyond", 0l));
    EXPECT_LE(process.value("resident", 0l), 128l << 20);
    EXPECT_TRUE(tenant("large").value("oversubscribe_self", false));
    expect_good(large);
    EXPECT_EQ(large.result("kernels"), "200");
    EXPECT_TRUE(eventually([&] { return !has_tenant("large"); }, 10s));
  }
}

TEST_F(Oversubscribe, WithoutThatItIsRefused) {
  const Process scheduler = start_scheduler();
  for (const char* backend : {"managed", "swap", "native"}) {
    Job large = trainer("large", {"--backend", backend}, "256Mi", "8Mi", {"--launches", "10"});
    const auto ending = large.process.wait(60s);
    ASSERT_TRUE(ending);
    EXPECT_EQ(ending->code, 1);
    EXPECT_NE(large.process.output().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
        << large.process.output();
    EXPECT_TRUE(eventually([&] { return !has_tenant("large"); }, 10s));
  }
}

TEST_F(Oversubscribe, ALimitHolds) {
  const Process scheduler = start_scheduler();
  Job fits = trainer("fits", {"--oversubscribe-self", "--mem", "193Mi"}, "192Mi", "8Mi",
                     {"--launches", "50"});
  expect_good(fits);
  Job large = trainer("large", {"--oversubscribe-self", "--mem", "192Mi"}, "200Mi", "8Mi",
                      {"--launches", "50"});
  const auto ending = large.process.wait(60s);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->code, 1) << large.process.output();
}

TEST_F(Oversubscribe, ItTakesTurnsWithOthers) {
  const Process scheduler = start_scheduler();
  Job large = trainer("large", {"--oversubscribe-self"}, "256Mi", "8Mi", {"--seconds", "100"});
  Job other = trainer("other", {"--backend", "swap"}, "80Mi", "8Mi", {"--seconds", "100"});
  const auto moved_out = [&](const std::string& name) {
    const nlohmann::json one = tenant(name);
    return one.is_object() ? one.value("/moves/out"_json_pointer, 0l) : 0l;
  };
  EXPECT_TRUE(eventually(
      [&] { return moved_out("other") > 240l << 20 && moved_out("large") > 240l << 20; }, 60s));
  large.process.signal(SIGTERM);
  other.process.signal(SIGTERM);
  expect_good(large);
  expect_good(other);
}

}  // namespace
}  // namespace nvshare::integration
