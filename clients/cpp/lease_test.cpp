// The client and the real scheduler.

#include "nvshare/lease.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "daemon/harness.h"

namespace nvshare {

std::string acquire_in_cxx17(const std::string& socket);

namespace {

using namespace std::chrono_literals;

// A scheduler with one lease at a time.
class LeaseClientTest : public testing::Test {
 protected:
  static daemon::SchedulerProcess::Setup setup(const std::string& queue) {
    daemon::SchedulerProcess::Setup setup;
    setup.environment = {"NVSHARE_HTTP_LISTEN=off", "NVSHARE_LEASE_SLOTS=1",
                         "NVSHARE_LEASE_QUEUE=" + queue};
    return setup;
  }
  explicit LeaseClientTest(const std::string& queue = "8") : scheduler_(setup(queue)) {}

  LeaseClient client() const { return LeaseClient(scheduler_.folder() + "/api.sock"); }
  bool is_free() const {
    return client().acquire({.task_class = "ASR", .max_wait = 0ms}).lease.has_value();
  }

  daemon::SchedulerProcess scheduler_;
};

TEST_F(LeaseClientTest, ALeaseEndsWithItsScope) {
  {
    const auto before = std::chrono::system_clock::now();
    const auto got = client().acquire({.task_class = "ASR", .max_wait = 500ms, .hold_max = 20s});
    ASSERT_TRUE(got.lease) << got.reason;
    EXPECT_EQ(got.outcome, LeaseOutcome::Acquired);
    EXPECT_EQ(got.reason, "");
    EXPECT_EQ(got.lease->id().size(), 32u);
    EXPECT_EQ(got.lease->gpu(), 0);
    EXPECT_EQ(got.lease->gpu_key().substr(0, 4), "GPU-");
    EXPECT_GT(got.lease->expires_at(), before + 19s);
    EXPECT_LT(got.lease->expires_at(), std::chrono::system_clock::now() + 21s);
    EXPECT_FALSE(is_free());
  }
  EXPECT_TRUE(is_free());
}

TEST_F(LeaseClientTest, ALeaseIsReleasedOnce) {
  auto got = client().acquire({.task_class = "ASR"});
  ASSERT_TRUE(got.lease);
  EXPECT_TRUE(got.lease->release());
  EXPECT_FALSE(got.lease->release());
  EXPECT_TRUE(is_free());
  EXPECT_EQ(got.lease->renew().kind, LeaseRenewal::Kind::Gone);
}

TEST_F(LeaseClientTest, ALeaseThatIsMovedStays) {
  std::optional<Lease> kept;
  {
    auto got = client().acquire({.task_class = "ASR"});
    ASSERT_TRUE(got.lease);
    Lease moved = std::move(*got.lease);
    kept = std::move(moved);
  }
  EXPECT_FALSE(is_free());
  kept.reset();
  EXPECT_TRUE(is_free());
}

TEST_F(LeaseClientTest, ARefusalSaysWhyAndWhenToComeAgain) {
  const auto holder =
      client().acquire({.task_class = "ASR", .hold_max = 30s, .estimated_gpu_hold = 20s});
  ASSERT_TRUE(holder.lease);
  const auto skipped = client().acquire({.task_class = "SEMANTIC_REPAIR"});
  EXPECT_EQ(skipped.outcome, LeaseOutcome::Skipped);
  EXPECT_EQ(skipped.reason, "GPU_BUSY");
  EXPECT_GT(skipped.retry_after, 1s);
  EXPECT_LE(skipped.retry_after, 20s);

  LeaseRequest request{.task_class = "NMT", .busy_policy = BusyPolicy::FallbackCpu};
  EXPECT_EQ(client().acquire(request).outcome, LeaseOutcome::FallbackCpu);
  request.busy_policy = BusyPolicy::Skip;
  EXPECT_EQ(client().acquire(request).outcome, LeaseOutcome::Skipped);

  const auto late = client().acquire({.task_class = "NMT", .max_wait = 50ms});
  EXPECT_EQ(late.outcome, LeaseOutcome::Timeout);
  EXPECT_GE(late.queue_wait, 50ms);
}

class LeaseClientFullTest : public LeaseClientTest {
 protected:
  LeaseClientFullTest() : LeaseClientTest("0") {}
};
TEST_F(LeaseClientFullTest, AFullQueueIsToldApart) {
  const auto holder = client().acquire({.task_class = "ASR"});
  ASSERT_TRUE(holder.lease);
  const auto full = client().acquire({.task_class = "ASR"});
  EXPECT_EQ(full.outcome, LeaseOutcome::QueueFull);
  EXPECT_EQ(full.reason, "GPU_BUSY");
}

TEST_F(LeaseClientTest, AWaitingRequestGetsTheLease) {
  const auto holder = client().acquire({.task_class = "ASR", .hold_max = 300ms});
  ASSERT_TRUE(holder.lease);
  const auto got = client().acquire({.task_class = "NMT", .max_wait = 30s});
  EXPECT_TRUE(got.lease) << got.reason;
  EXPECT_GT(got.queue_wait, 0ms);
}

TEST_F(LeaseClientTest, EverythingThatARequestSaysIsTaken) {
  LeaseRequest request{.task_class = "TTS",
                       .max_wait = 1s,
                       .hold_max = 2s,
                       .gpu = "0",
                       .busy_policy = BusyPolicy::Skip,
                       .estimated_audio = 9s,
                       .estimated_gpu_hold = 1s,
                       .trace = "a \"call\"\\ \n\t\x01 caf\u00e9"};
  // A request that skips gets nothing before the first reading of the usage.
  LeaseAnswer got;
  EXPECT_TRUE(daemon::eventually([&] {
    got = client().acquire(request);
    return got.lease || got.outcome != LeaseOutcome::Skipped;
  }));
  ASSERT_TRUE(got.lease) << got.reason;
  request.gpu = got.lease->gpu_key();
  got.lease.reset();
  EXPECT_TRUE(client().acquire(request).lease);
}

TEST_F(LeaseClientTest, AMistakeIsRefusedInOneLine) {
  const auto refusal = [&](const LeaseRequest& request) {
    const auto got = client().acquire(request);
    EXPECT_EQ(got.outcome, LeaseOutcome::Refused);
    return got.reason;
  };
  EXPECT_EQ(refusal({.task_class = "X\"Y"}), "there is no class 'X\"Y'");
  EXPECT_EQ(refusal({.task_class = "ASR", .gpu = "9"}), "there is no GPU \"9\"; there are 1");
  EXPECT_EQ(refusal({.task_class = "ASR", .max_wait = -1ms}),
            "maxWaitMs: -1 is not a whole number from 0 to 86400000");
  EXPECT_EQ(refusal({.task_class = "ASR", .trace = std::string(300, 'x')}),
            "trace: it has more than 256 bytes");
}

TEST_F(LeaseClientTest, ARenewedLeaseExpiresLater) {
  auto got = client().acquire({.task_class = "ASR", .hold_max = 5s});
  ASSERT_TRUE(got.lease);
  const auto first = got.lease->expires_at();
  EXPECT_TRUE(got.lease->renew(20s));
  EXPECT_GT(got.lease->expires_at(), first + 10s);
  const auto wrong = got.lease->renew(0ms);
  EXPECT_EQ(wrong.kind, LeaseRenewal::Kind::Failed);
  EXPECT_NE(wrong.reason.find("holdMaxMs"), wrong.reason.npos) << wrong.reason;
  EXPECT_FALSE(is_free()) << "a renewal that failed takes nothing away";
}

TEST_F(LeaseClientTest, AnOverdueLeaseIsGone) {
  auto got = client().acquire({.task_class = "ASR", .hold_max = 1ms});
  ASSERT_TRUE(got.lease);
  EXPECT_TRUE(daemon::eventually([&] { return is_free(); }));
  const auto renewal = got.lease->renew();
  EXPECT_EQ(renewal.kind, LeaseRenewal::Kind::Gone);
  EXPECT_EQ(renewal.reason, "OVERDUE");
}

TEST_F(LeaseClientTest, AChildDoesNotGiveItsParentsLeaseBack) {
  auto got = client().acquire({.task_class = "ASR"});
  ASSERT_TRUE(got.lease);
  const pid_t child = fork();
  if (child == 0) {
    const bool kept = !got.lease->renew() && !got.lease->release();
    got.lease.reset();
    _exit(kept ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(is_free());
  EXPECT_TRUE(got.lease->renew());
}

TEST_F(LeaseClientTest, ALeaseEndsWithItsProcess) {
  const pid_t child = fork();
  if (child == 0) {
    const auto got = client().acquire({.task_class = "ASR"});
    _exit(got.lease ? 0 : 1);  // no destructor runs
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(daemon::eventually([&] { return is_free(); }));
}

TEST_F(LeaseClientTest, WorksInCxx17) {
  EXPECT_EQ(acquire_in_cxx17(scheduler_.folder() + "/api.sock").size(), 32u);
  EXPECT_TRUE(is_free());
}

TEST_F(LeaseClientTest, FindsTheSchedulerOfTheRunDirectory) {
  ASSERT_EQ(setenv("NVSHARE_RUN_DIR", scheduler_.folder().c_str(), 1), 0);
  EXPECT_TRUE(LeaseClient().acquire({.task_class = "ASR"}).lease);
  setenv("NVSHARE_RUN_DIR", "", 1);
  EXPECT_EQ(LeaseClient::default_socket(), "/run/nvshare/api.sock");
  unsetenv("NVSHARE_RUN_DIR");
  EXPECT_EQ(LeaseClient::default_socket(), "/run/nvshare/api.sock");
}

}  // namespace
}  // namespace nvshare
