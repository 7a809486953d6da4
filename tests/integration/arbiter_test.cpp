#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/talk/http_client.h"
#include "integration/world.h"

// Leases beside real load: who is let in, who waits, who is skipped.
namespace nvshare::integration {
namespace {

using Json = nlohmann::json;
using cli::HttpExchange;

constexpr Duration kLoadIsSeen = 20s;  // on a busy machine
// An answer that does not wait takes milliseconds. A class waits for 3 s.
constexpr Duration kAtOnce = 1s;
const char* const kHigh = "HIGH_PRESSURE";
const char* const kNormal = "NORMAL";

class ArbiterBesideLoad : public World {
 protected:
  void prepare() override { set("NVSHARE_USAGE_SAMPLE_INTERVAL", "200ms"); }

  cli::RunDirectory directory() const { return {run_directory(), cli::DirectoryKind::Chosen}; }
  Json call(const std::string& method, const std::string& path, const std::string& body = "") {
    const auto answer = cli::ask_http(directory(), {method, path, body}, 30s);
    EXPECT_TRUE(answer) << answer.error().message;
    return answer ? Json::parse(answer->body, nullptr, false) : Json::object();
  }
  // "RESULT REASON" of a request, which this process owns.
  std::string ask(const std::string& task_class, const std::string& more = "") {
    const Json answer = call("POST", "/v1/leases", request(task_class, more));
    last_ = answer.value("leaseId", "");
    gpu_ = answer.value("gpu", -1);
    return answer.value("result", answer.dump()) + " " + answer.value("reason", "");
  }
  static std::string request(const std::string& task_class, const std::string& more) {
    return "{\"taskType\":\"" + task_class + "\"" + more + "}";
  }
  void release(const std::string& lease) { call("DELETE", "/v1/leases/" + lease); }
  // Asks, and does not wait for the answer.
  HttpExchange start_asking(const std::string& task_class, const std::string& more) {
    auto begun =
        HttpExchange::begin(directory(), {"POST", "/v1/leases", request(task_class, more)}, 5s);
    EXPECT_TRUE(begun && begun->go_on());
    return std::move(*begun);
  }
  static std::string answer_of(HttpExchange& exchange, Duration limit) {
    const auto is_over = [&] {
      const auto done = exchange.go_on();
      return !done || *done;
    };
    return eventually(is_over, limit)
               ? Json::parse(exchange.answer().body, nullptr, false).value("result", "")
               : "";
  }

  // What the dispatcher reads of a GPU.
  Json gpu(std::size_t index = 0) { return call("GET", "/v1/status")["gpus"][index]; }
  std::string state(std::size_t index = 0) { return gpu(index)["gpu_admission_state"]; }
  bool comes_to(const std::string& wanted, std::size_t index = 0) {
    return eventually([&] { return state(index) == wanted; }, kLoadIsSeen);
  }
  double usage(std::size_t index = 0) {
    const Json now = gpu(index)["gpu_usage"];
    return now.is_number() ? now.get<double>() : -1;
  }
  bool usage_comes(double from, double to) {
    return eventually([&] { return usage() >= from && usage() <= to; }, kLoadIsSeen);
  }
  // Load that knows nothing of nvshare.
  Process foreign(const std::vector<std::string>& options = {}) {
    std::vector<std::string> words{gpu_job(), "--seconds", "60"};
    words.insert(words.end(), options.begin(), options.end());
    return start(words);
  }
  Process full_load() { return foreign({"--kernel", "20ms"}); }
  // Load under nvshare that takes all of the GPU, until its usage has been seen.
  Job batch(const std::string& priority) {
    Job one = job("batch", {"--priority", priority}, {"--seconds", "60"}, 5ms);
    EXPECT_TRUE(one.process.wait_for("progress", 20s)) << one.process.output();
    EXPECT_TRUE(usage_comes(90, 100)) << gpu();
    return one;
  }
  // Leases that there are now.
  std::size_t leases() { return call("GET", "/v1/leases")["leases"].size(); }
  Process lease_run(const std::vector<std::string>& words) {
    std::vector<std::string> all{nvshare_program(), "lease", "run"};
    all.insert(all.end(), words.begin(), words.end());
    return start(all);
  }

  std::string last_;  // lease
  int gpu_ = -1;      // of the last lease
};

// 50 % of load are between the marks: the state depends on where the usage comes from.
TEST_F(ArbiterBesideLoad, TheUsageDrivesTheStateThroughBothMarks) {
  const Process scheduler = start_scheduler();
  const Json config = call("PATCH", "/v1/config", R"({"gpuUsage":{"baseLowWater":20}})");
  ASSERT_EQ(config["gpuUsage"]["baseLowWater"], 20) << config;
  ASSERT_TRUE(comes_to(kNormal)) << gpu();
  ASSERT_EQ(ask("ASR"), "ACQUIRED ");
  Process half =
      foreign({"--pattern", "bursty", "--kernel", "5ms", "--busy", "50ms", "--idle", "50ms"});
  ASSERT_TRUE(usage_comes(30, 70)) << gpu();
  EXPECT_EQ(state(), kNormal) << "below the high mark";
  HttpExchange waiter = [&] {
    const Process full = full_load();
    EXPECT_TRUE(comes_to(kHigh)) << gpu();
    EXPECT_GE(usage(), 85);
    EXPECT_EQ(ask("SEMANTIC_REPAIR"), "SKIPPED GPU_USAGE_HIGH");
    EXPECT_EQ(ask("NMT", R"(,"maxWaitMs":200)"), "TIMEOUT GPU_USAGE_HIGH");
    return start_asking("NMT", R"(,"maxWaitMs":60000)");
  }();
  ASSERT_TRUE(usage_comes(30, 70)) << gpu();
  EXPECT_EQ(state(), kHigh) << "above the low mark";
  EXPECT_EQ(answer_of(waiter, 500ms), "");
  half.signal(SIGTERM);
  ASSERT_TRUE(comes_to(kNormal)) << gpu();
  EXPECT_LE(usage(), 20);
  EXPECT_EQ(answer_of(waiter, kAtOnce), "ACQUIRED");
  EXPECT_EQ(ask("NMT"), "ACQUIRED ");
}

// One usage number stood for all GPUs: load on one GPU kept services off the others.
TEST_F(ArbiterBesideLoad, OneUsageNumberForAllGpus) {
  set("NVSHARE_SOFTGPU_COUNT", "2");
  const Process scheduler = start_scheduler();
  const Process busy = foreign({"--kernel", "20ms", "--device", "1"});
  ASSERT_TRUE(comes_to(kHigh, 1)) << call("GET", "/v1/status");
  EXPECT_EQ(state(0), kNormal);
  EXPECT_LT(usage(0), 10);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ask("ASR"), "ACQUIRED ");
    EXPECT_EQ(gpu_, 0) << "the GPU with room";
  }
  EXPECT_EQ(ask("SEMANTIC_REPAIR", R"(,"gpuKey":0)"), "ACQUIRED ");
  EXPECT_EQ(ask("SEMANTIC_REPAIR", R"(,"gpuKey":1)"), "SKIPPED GPU_USAGE_HIGH");
}

// By the raw usage no service would ever enter beside batch work.
TEST_F(ArbiterBesideLoad, ABatchJobOfLowPriorityHoldsNoServiceUp) {
  const Process scheduler = start_scheduler();
  const Job low = batch("-5");
  ASSERT_TRUE(comes_to(kNormal)) << gpu();
  std::vector<Duration> times;
  for (const char* task_class : {"ASR", "NMT", "ASR", "TTS"}) {
    const Duration begin = now();
    EXPECT_EQ(ask(task_class), "ACQUIRED ") << gpu();
    times.push_back(now() - begin);
    for (int i = 0; i < 5; ++i, sleep(100ms)) EXPECT_EQ(state(), kNormal) << gpu();
  }
  std::sort(times.begin(), times.end());
  EXPECT_LT(times[2], 100ms) << "at once";
  EXPECT_GE(usage(), 85) << "the dispatcher sees the usage of the whole GPU";
  release(last_);
  EXPECT_EQ(ask("SEMANTIC_REPAIR"), "SKIPPED GPU_USAGE_HIGH") << "below the batch job";
}

TEST_F(ArbiterBesideLoad, AJobOfHighPriorityIsInTheWayOfAllButTheFirst) {
  const Process scheduler = start_scheduler();
  allow_priorities();
  const Job high = batch("10");
  ASSERT_TRUE(comes_to(kHigh)) << gpu();
  const Duration begin = now();
  ASSERT_EQ(ask("ASR"), "ACQUIRED ") << "the floor rule";
  EXPECT_LT(now() - begin, kAtOnce);
  const std::string first = last_;
  EXPECT_EQ(ask("ASR", R"(,"maxWaitMs":300)"), "TIMEOUT GPU_USAGE_HIGH");
  HttpExchange low = start_asking("TTS", R"(,"maxWaitMs":60000)");
  ASSERT_TRUE(eventually([&] { return gpu()["gpu_queue_len"] == 1; }, 5s));
  HttpExchange next = start_asking("ASR", R"(,"maxWaitMs":60000)");
  ASSERT_TRUE(eventually([&] { return gpu()["gpu_queue_len"] == 2; }, 5s));
  release(first);
  EXPECT_EQ(answer_of(next, kAtOnce), "ACQUIRED") << "the floor rule again";
  EXPECT_EQ(answer_of(low, 500ms), "");
  EXPECT_EQ(state(), kHigh) << gpu();
}

// No other arbiter enforces a lease across programs.
TEST_F(ArbiterBesideLoad, TheHolderOfALeaseGoesBeforeABatchJob) {
  const Process scheduler = start_scheduler();
  const Job low = batch("0");
  Job service = job("service", {}, {"--seconds", "60"}, 5ms);
  ASSERT_TRUE(service.process.wait_for("progress", 20s)) << service.process.output();
  expect_share_for(service, 2s, 50);
  const std::string owner =
      fmt::format(R"(,"ownerPid":{},"withChildren":true)", service.process.pid());
  ASSERT_EQ(ask("ASR", owner), "ACQUIRED ");
  expect_share_for(service, 2s, 98);
  release(last_);
  expect_share_for(service, 2s, 50);
  ASSERT_EQ(ask("ASR", owner + R"(,"holdMaxMs":1)"), "ACQUIRED ");
  ASSERT_TRUE(eventually([&] { return leases() == 0; }, 5s)) << "overdue";
  expect_share_for(service, 2s, 50);
}

// What a program does is read from its own count of launches, so that nobody's word is trusted.
TEST_F(ArbiterBesideLoad, TheGateClosesForTheHolderOfAnOverdueLease) {
  const Process scheduler = start_scheduler();
  Job service = job("service", {}, {"--seconds", "60"}, 5ms);
  ASSERT_TRUE(service.process.wait_for("progress", 20s)) << service.process.output();
  ASSERT_EQ(ask("NMT"), "ACQUIRED ") << "another one's, so that the gate protects somebody";
  const std::string owner =
      fmt::format(R"(,"ownerPid":{},"withChildren":true)", service.process.pid());
  ASSERT_EQ(ask("ASR", owner + R"(,"holdMaxMs":300)"), "ACQUIRED ");
  const std::string late = last_;
  expect_share_for(service, 200ms, 99);
  ASSERT_TRUE(eventually([&] { return leases() == 1; }, 5s)) << "overdue";
  sleep(500ms);
  EXPECT_EQ(share_for(service, 1s), 0) << "nobody else uses the GPU, and the gate is closed";
  const Outcome why = nvshare({"why", "service"});
  EXPECT_NE(why.output.find("its lease is over"), std::string::npos) << why.output;
  release(late);
  EXPECT_TRUE(eventually([&] { return share_for(service, 200ms) > 50; }, 5s)) << "given back late";
}

// Of 2 GiB each has 900 MiB, and contexts 600. Without a lease the service would wait for the job's
// quantum: 10 s.
TEST_F(ArbiterBesideLoad, ALeaseIsGrantedWhenTheHoldersMemoryIsThere) {
  set("NVSHARE_SOFTGPU_MEMORY", "2Gi");
  const Process scheduler = start_scheduler();
  Process service = probe("service");
  ASSERT_EQ(World::ask(service, "start"), "CUDA_SUCCESS") << service.output();
  ASSERT_EQ(World::ask(service, "alloc 900Mi"), "CUDA_SUCCESS") << service.output();
  Job batch = job("batch", {"--priority", "-5"}, {"--seconds", "60", "--memory", "900Mi"}, 5ms);
  ASSERT_TRUE(batch.process.wait_for("progress", 30s)) << batch.process.output();
  const auto away = [&] {
    const Json memory = tenant("service");
    return memory.value("resident", std::int64_t{0}) < memory.value("allocated", std::int64_t{0});
  };
  ASSERT_TRUE(eventually(away, 20s)) << tenant("service");
  const std::string owner = fmt::format(R"(,"ownerPid":{},"withChildren":true)", service.pid());
  const Duration begin = now();
  EXPECT_EQ(ask("ASR", owner + R"(,"maxWaitMs":8000)"), "ACQUIRED ");
  EXPECT_LT(now() - begin, 8s);
  EXPECT_FALSE(away()) << tenant("service");
}

// --- nvshare lease run -------------------------------------------------------------------------

TEST_F(ArbiterBesideLoad, LeaseRunHoldsALeaseForItsProgram) {
  const Process scheduler = start_scheduler();
  const std::string script = "echo id=$NVSHARE_LEASE; read line; exit 7";
  Process run = lease_run({"--class", "NMT", "--", "sh", "-c", script});
  ASSERT_TRUE(run.wait_for("\n", 20s)) << run.output();
  const Json all = call("GET", "/v1/leases")["leases"];
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(run.output(), "id=" + all[0]["leaseId"].get<std::string>() + "\n");
  EXPECT_EQ(all[0]["pid"], run.pid());
  EXPECT_EQ(all[0]["taskType"], "NMT");
  run.say("end");
  EXPECT_EQ(run.wait(20s).value_or(Ending{}).code, 7);
  EXPECT_EQ(leases(), 0u) << "given back before it ended";
  EXPECT_EQ(call("GET", "/v1/status")["classes"]["NMT"]["released"], 1);
}

// The lease is renewed until then: its time is shorter than the program's.
TEST_F(ArbiterBesideLoad, TheLeaseOfAKilledLeaseRunGoesToTheNext) {
  set("NVSHARE_LEASE_SLOTS", "1");
  const Process scheduler = start_scheduler();
  Process first = lease_run(
      {"--class", "NMT", "--hold", "600ms", "--", "sh", "-c", "echo started; exec sleep 60"});
  ASSERT_TRUE(first.wait_for("started", 20s)) << first.output();
  Process second = lease_run({"--class", "ASR", "--max-wait", "60s", "--", "echo", "second"});
  ASSERT_TRUE(eventually([&] { return gpu()["gpu_queue_len"] == 1; }, 20s));
  sleep(1500ms);
  ASSERT_EQ(second.output(), "");
  const Duration begin = now();
  first.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return gpu()["gpu_queue_len"] == 0; }, 1s))
      << "the lease is gone " << std::chrono::duration<double>(now() - begin).count() << " s later";
  EXPECT_EQ(second.wait(20s).value_or(Ending{}).code, 0);
  EXPECT_EQ(second.output(), "second\n");
  EXPECT_EQ(leases(), 0u);
}

TEST_F(ArbiterBesideLoad, LeaseRunWithoutALeaseStartsNothing) {
  const Process scheduler = start_scheduler();
  ASSERT_EQ(ask("ASR"), "ACQUIRED ");
  const Process busy = full_load();
  ASSERT_TRUE(comes_to(kHigh)) << gpu();
  const Outcome repair =
      nvshare({"lease", "run", "--class", "SEMANTIC_REPAIR", "--", "echo", "no"});
  EXPECT_EQ(repair.ending.code, 75);
  EXPECT_NE(repair.output.find("no lease: the GPU is under high load"), std::string::npos)
      << repair.output;
  const Outcome cpu =
      nvshare({"lease", "run", "--class", "ASR", "--busy", "fallback", "--fallback-cpu", "--", "sh",
               "-c", "echo \"<${CUDA_VISIBLE_DEVICES-unset}>\"; exit 3"});
  EXPECT_EQ(cpu.ending.code, 3);
  EXPECT_NE(cpu.output.find("<>\n"), std::string::npos) << cpu.output;
}

// --- where people look -------------------------------------------------------------------------

TEST_F(ArbiterBesideLoad, StatusWhyAndTraceTellOfLeases) {
  set("NVSHARE_LEASE_SLOTS", "1");
  const Process scheduler = start_scheduler();
  EXPECT_EQ(nvshare({"status"}).output.find("leases on GPU"), std::string::npos);
  Process holder =
      start({nvshare_program(), "run", "--name", "asr", "--", nvshare_program(), "lease", "run",
             "--class", "ASR", "--", "sh", "-c", "echo started; exec sleep 60"});
  ASSERT_TRUE(holder.wait_for("started", 20s)) << holder.output();
  Process waiter = lease_run({"--class", "NMT", "--max-wait", "60s", "--", "true"});
  ASSERT_TRUE(eventually([&] { return gpu()["gpu_queue_len"] == 1; }, 20s));

  const auto has = [](const Outcome& outcome, const std::string& text) {
    EXPECT_NE(outcome.output.find(text), std::string::npos) << text << "\n" << outcome.output;
  };
  has(nvshare({"status"}), "leases on GPU 0: 1 / 1, 1 waiting, ");
  const Json all = call("GET", "/v1/leases")["leases"];
  const std::string held = all[0]["leaseId"];
  const std::string waits = all[1]["leaseId"];
  const Outcome why = nvshare({"why", "asr"});
  has(why, "lease " + held + " of ASR (pid ");
  has(why, " on GPU 0: held for ");
  EXPECT_EQ(why.output.find(waits), std::string::npos) << "another tenant's";
  has(nvshare({"why", held}), "lease of ASR (pid ");
  has(nvshare({"why", waits}), "no slot is free (1 of 1 are taken)");
  holder.signal(SIGTERM);
  EXPECT_EQ(waiter.wait(20s).value_or(Ending{}).code, 0);
  const Outcome trace = nvshare({"trace", "asr"});
  for (const char* event : {"lease_asked", "lease_acquired", "lease_released"}) {
    has(trace, std::string("event=") + event + " tenant=asr lease=1 class=ASR");
  }
  EXPECT_EQ(trace.output.find(held), std::string::npos) << "its name is the right to it";
  EXPECT_EQ(trace.output.find("class=NMT"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::integration
