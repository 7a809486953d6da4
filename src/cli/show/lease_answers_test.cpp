#include "cli/show/lease_answers.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

constexpr const char* kId = "0123456789abcdef0123456789abcdef";

TEST(LeaseAnswers, TimesAreReadToTheMillisecond) {
  const auto time = read_wall_time("1970-01-02T01:01:01.250Z");
  ASSERT_TRUE(time);
  EXPECT_EQ(time->time_since_epoch(), 25h + 61s + 250ms);
  EXPECT_EQ(
      *read_wall_time("2028-03-01T00:00:00.000Z") - *read_wall_time("2028-02-28T00:00:00.000Z"),
      48h);
  for (const char* text :
       {"", "2026-11-19T19:07:00Z", "2026-11-19 19:07:00.000Z", "2026-02-30T00:00:00.000Z",
        "2026-11-19T24:00:00.000Z", "2026-11-19T19:60:00.000Z", "2026-11-19T19:07:00.0x0Z",
        "2026-11-19T19:07:00.000+", "1969-12-31T23:59:59.999Z", "9999-01-01T00:00:00.000Z"}) {
    EXPECT_FALSE(read_wall_time(text)) << text;
  }
}

TEST(LeaseAnswers, ALeaseLastsFromItsGrantToItsDeadline) {
  const auto answer = read_lease_answer(
      R"({"result":"ACQUIRED","leaseId":"0123456789abcdef0123456789abcdef","queueWaitMs":12,)"
      R"("acquiredAt":"2026-11-19T19:07:00.500Z","expiresAt":"2026-11-19T19:07:10.750Z"})");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->id, kId);
  EXPECT_EQ(answer->hold, 10250ms);
  EXPECT_EQ(answer->waited, 12ms);
}

TEST(LeaseAnswers, AGrantWithoutAUsableLeaseIsAnError) {
  for (const char* rest :
       {R"(})",
        R"(,"leaseId":"../../v1","acquiredAt":"2026-11-19T19:07:00.500Z",)"
        R"("expiresAt":"2026-11-19T19:07:10.750Z"})",
        R"(,"leaseId":"0123456789abcdef0123456789abcdef","acquiredAt":"now","expiresAt":""})",
        R"(,"leaseId":"0123456789abcdef0123456789abcdef",)"
        R"("acquiredAt":"2026-11-19T19:07:10.500Z","expiresAt":"2026-11-19T19:07:10.500Z"})"}) {
    EXPECT_FALSE(read_lease_answer(std::string(R"({"result":"ACQUIRED")") + rest)) << rest;
  }
  EXPECT_FALSE(read_lease_answer("[]"));
  EXPECT_FALSE(read_lease_answer("no JSON"));
}

TEST(LeaseAnswers, ARefusalSaysWhenToComeAgain) {
  const auto answer = read_lease_answer(
      R"({"result":"TIMEOUT","reason":"GPU_BUSY","queueWaitMs":300,"retryAfterMs":1200})");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->result, "TIMEOUT");
  EXPECT_EQ(answer->reason, "GPU_BUSY");
  EXPECT_EQ(answer->waited, 300ms);
  EXPECT_EQ(answer->retry_after, 1200ms);
  EXPECT_FALSE(read_lease_answer(R"({"result":"SKIPPED"})")->retry_after);
}

TEST(LeaseAnswers, NumbersOutOfRangeDoNotOverflow) {
  const auto answer = read_lease_answer(
      R"({"result":"TIMEOUT","queueWaitMs":-5,"retryAfterMs":18446744073709551615})");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->waited, 0ns);
  EXPECT_GT(*answer->retry_after, 24h);
}

TEST(LeaseAnswers, LeasesOfOthersHaveNoId) {
  const auto leases = read_leases(
      R"({"leases":[{"leaseId":null,"taskType":"NMT","priority":80,"gpu":1,"state":"WAITING",)"
      R"("askedAt":"2026-11-19T19:07:00.000Z","givesUpAt":"2026-11-19T19:07:03.000Z","uid":1000,)"
      R"("pid":4711,"trace":"t"},{"leaseId":"a","state":"ACTIVE","pid":null,)"
      R"("expiresAt":"2026-11-19T19:07:09.000Z"}]})");
  ASSERT_TRUE(leases);
  ASSERT_EQ(leases->size(), 2u);
  const LeaseInfo& waiting = leases->at(0);
  EXPECT_EQ(waiting.id, "");
  EXPECT_EQ(waiting.task_class, "NMT");
  EXPECT_EQ(waiting.gpu, 1);
  EXPECT_FALSE(waiting.active);
  EXPECT_EQ(*waiting.ends - *waiting.asked, 3s);
  EXPECT_EQ(waiting.uid, 1000);
  EXPECT_EQ(waiting.pid, 4711);
  EXPECT_TRUE(leases->at(1).active);
  EXPECT_FALSE(leases->at(1).pid);
  EXPECT_TRUE(leases->at(1).ends);
  EXPECT_FALSE(read_leases(R"({"classes":[]})"));
}

TEST(LeaseAnswers, StatusHasGpusAndCounts) {
  const auto status = read_lease_status(
      R"({"time":"2026-11-19T19:07:00.000Z","gpus":[{"gpu":2,"gpu_admission_state":"UNKNOWN",)"
      R"("gpu_usage":null,"gpu_usage_cache_age_ms":null,"gpu_queue_len":3,"active_leases":1,)"
      R"("lease_slots":4,"high_water":85,"low_water":70.5,"raised_until":null}],)"
      R"("classes":{"ASR":{"counts":{"acquired":4,"queueWaitMsTotal":20}},"TTS":{}}})");
  ASSERT_TRUE(status);
  ASSERT_EQ(status->gpus.size(), 1u);
  EXPECT_FALSE(status->gpus[0].usage);
  EXPECT_FALSE(status->gpus[0].age);
  EXPECT_EQ(status->gpus[0].waiting, 3);
  EXPECT_EQ(status->gpus[0].low, 70.5);
  ASSERT_EQ(status->classes.size(), 1u);
  EXPECT_EQ(status->classes[0].second.waited, 20ms);
}

TEST(LeaseAnswers, ARefusalNamesTheClassThatWasMeant) {
  const std::string json = R"({"error":"there is no class 'NTM'","classes":["ASR","NMT"]})";
  EXPECT_EQ(refusal_text(json, "NTM"), "there is no class 'NTM'; did you mean 'NMT'?");
  EXPECT_EQ(refusal_text(json, "other"), "there is no class 'NTM' (classes: ASR, NMT)");
  EXPECT_EQ(refusal_text(R"({"error":"no\u001b[2J"})"), "no?[2J");
  EXPECT_EQ(refusal_text("<html>"), "refused by the scheduler");
}

TEST(LeaseAnswers, ARequestSaysOnlyWhatWasGiven) {
  LeaseWish wish;
  wish.task_class = "NMT";
  EXPECT_EQ(lease_request(wish), R"({"taskType":"NMT","withChildren":true})");
  wish.gpu = "1";
  wish.max_wait = 300ms;
  wish.hold_max = 10s;
  wish.busy = "SKIP";
  wish.audio = 12s;
  wish.gpu_hold = 1500us;
  EXPECT_EQ(
      lease_request(wish),
      R"({"taskType":"NMT","withChildren":true,"gpuKey":"1","maxWaitMs":300,"holdMaxMs":10000,)"
      R"("busyPolicy":"SKIP","hint":{"estimatedAudioMs":12000,"estimatedGpuHoldMs":2}})");
}

}  // namespace
}  // namespace nvshare::cli
