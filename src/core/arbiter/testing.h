#pragma once

// An arbiter with a hand on its clock, for tests.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/arbiter/arbiter.h"

namespace nvshare::core {

inline std::string text_of(const Answer& answer) {
  std::string text(name_of(answer.outcome));
  if (answer.reason != LeaseReason::None) text += " " + std::string(name_of(answer.reason));
  return text;
}

class TestArbiter {
 public:
  explicit TestArbiter(const ArbiterConfig& config = {}, int gpus = 1) : arbiter(config) {
    EXPECT_TRUE(problems(config).empty()) << problems(config).front();
    for (int i = 0; i < gpus; ++i) arbiter.add_gpu(GpuId{static_cast<std::uint64_t>(i)});
  }

  LeaseRequest request(const std::string& task_class, int gpu = 0) {
    return {LeaseId{++last_}, GpuId{static_cast<std::uint64_t>(gpu)}, task_class};
  }
  // Asks; what the answer to this request is, empty while it waits.
  std::string ask(const LeaseRequest& request) {
    auto result = arbiter.ask(request, now);
    if (!result) return result.error().message;
    keep(*result);
    return answer_to(request.lease);
  }
  std::string ask(const std::string& task_class, int gpu = 0) {
    return ask(request(task_class, gpu));
  }
  // The id of the request that was made last.
  LeaseId last() const { return LeaseId{last_}; }
  void release(LeaseId lease) {
    auto result = arbiter.release(lease, now);
    EXPECT_TRUE(result) << result.error().message;
    if (result) keep(*result);
  }
  void ready(LeaseId lease) {
    auto result = arbiter.ready(lease, now);
    EXPECT_TRUE(result) << result.error().message;
    if (result) keep(*result);
  }
  void usage(double busy, int gpu = 0, const std::array<double, kPriorities>& billed = {}) {
    keep(arbiter.take_sample(GpuId{static_cast<std::uint64_t>(gpu)},
                             UsageSample::of(now, busy, billed), now));
  }
  // Lets time pass, and calls the arbiter whenever it asks for it. With `busy` the GPU 0 has a
  // sample like that each 800 ms.
  void pass(Duration duration, std::optional<double> busy = std::nullopt) {
    const Time until = now + duration;
    while (true) {
      std::optional<Time> next = arbiter.next_wakeup();
      if (busy && (!next || next_sample_ < *next)) next = next_sample_;
      if (!next || *next > until) break;
      now = std::max(now, *next);
      if (busy && now >= next_sample_) {
        next_sample_ = now + 800ms;
        usage(*busy);
      }
      keep(arbiter.tick(now));
    }
    now = until;
  }
  std::string answer_to(LeaseId lease) const {
    const Answer* answer = find(lease);
    return answer ? text_of(*answer) : "";
  }
  // The last answer about a lease.
  const Answer* find(LeaseId lease) const {
    for (auto it = answers.rbegin(); it != answers.rend(); ++it) {
      if (it->lease == lease) return &*it;
    }
    return nullptr;
  }
  std::string state(int gpu = 0) const {
    return std::string(name_of(arbiter.gpu(GpuId{static_cast<std::uint64_t>(gpu)}, now)->state));
  }
  int active(int gpu = 0) const {
    return arbiter.gpu(GpuId{static_cast<std::uint64_t>(gpu)}, now)->active;
  }
  int waiting(int gpu = 0) const {
    return arbiter.gpu(GpuId{static_cast<std::uint64_t>(gpu)}, now)->waiting;
  }

  Arbiter arbiter;
  Time now{1h};
  Answers answers;

 private:
  void keep(const Answers& more) { answers.insert(answers.end(), more.begin(), more.end()); }

  std::uint64_t last_ = 0;
  Time next_sample_{};
};

}  // namespace nvshare::core
