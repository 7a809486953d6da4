// Processes of one tenant beside each other, under the metered policy.

#include <set>

#include "core/testing.h"

namespace nvshare::core {
namespace {

// Processes that always have work, of kernels that are as long as told, and a GPU that does them.
class Siblings : public ::testing::Test {
 protected:
  Siblings() {
    core_.gpu(0);
    core_.tenant(1, 100);
  }
  void add(int id, Duration kernel) {
    core_.step(ClientAdded{TestCore::cid(id), TenantId{1}, GpuId{0}});
    kernels_[TestCore::cid(id)] = kernel;
    follow(core_.want(id));
  }
  // One runs until its budget is spent or it is told to stop, and has a kernel to finish. All
  // meters are read once a second, as the daemon does.
  void play(Duration length) {
    const Time until = core_.now + length;
    while (core_.now < until) {
      const Time end = std::min({until, read_at_, stops_at_.value_or(until)});
      const auto tick = core_.core.next_wakeup();
      if (tick && *tick < end) {
        follow(core_.pass(std::max(Duration::zero(), *tick - core_.now)));
        continue;
      }
      follow(core_.pass(end - core_.now));
      if (core_.now == read_at_) {
        follow(core_.step(Usage{holder_, core_.now - began_}));
        read_at_ += 1s;
      }
      if (!stops_at_ || core_.now < *stops_at_) continue;
      const Duration used = core_.now - began_;
      had_[holder_] += core_.now - std::max(began_, counted_since_);
      stops_at_.reset();
      follow(core_.step(Released{holder_, used, !away.contains(holder_)}));
    }
  }
  void come_back(int id) {
    away.erase(TestCore::cid(id));
    follow(core_.want(id));
  }
  void count_from_now() {
    had_.clear();
    longest_without = {};
    counted_since_ = core_.now;
  }
  double part(int id) const {
    Duration all{};
    for (const auto& [client, time] : had_) all += time;
    return static_cast<double>(had_.at(TestCore::cid(id)).count()) /
           static_cast<double>(all.count());
  }

  TestCore core_;
  std::set<ClientId> away;     // have nothing to do after their turn
  Duration longest_without{};  // of the first, from one turn to the next

 private:
  void follow(const Decisions& decisions) {
    for (const Grant& grant : only<Grant>(decisions)) {
      holder_ = grant.client;
      began_ = core_.now;
      if (grant.budget) stops_at_ = began_ + whole_kernels(*grant.budget);
    }
    if (!only<Drop>(decisions).empty() && !stops_at_) {
      stops_at_ = began_ + whole_kernels(core_.now - began_ + 1ns);
    }
    const bool first = holder_ == TestCore::cid(1);
    if (!first) longest_without = std::max(longest_without, core_.now - first_had_);
    if (first) first_had_ = core_.now;
  }
  Duration whole_kernels(Duration work) const {
    const Duration kernel = kernels_.at(holder_);
    return (work + kernel - 1ns) / kernel * kernel;
  }

  std::map<ClientId, Duration> kernels_;
  std::map<ClientId, Duration> had_;
  Time counted_since_{};
  ClientId holder_{};
  Time began_{};
  Time first_had_{};
  Time read_at_{1s};
  std::optional<Time> stops_at_;
};

TEST_F(Siblings, LongKernelsDoNotTakeFromShortOnes) {
  add(1, 1ms);
  add(2, 30ms);
  add(3, 1ms);
  play(20s);
  for (int id : {1, 2, 3}) EXPECT_NEAR(part(id), 1 / 3.0, 0.01) << id;
}

TEST_F(Siblings, WhoHasRunAloneForLongOwesNothingToWhoJoins) {
  add(1, 1ms);
  play(600s);
  count_from_now();
  add(2, 1ms);
  play(10s);
  EXPECT_NEAR(part(1), 0.5, 0.01);
  EXPECT_LE(longest_without, 100ms);
}

TEST_F(Siblings, WhoComesBackHasNotSavedUpTheTimeItWasAway) {
  add(1, 1ms);
  add(2, 1ms);
  play(1s);
  add(3, 1ms);
  away.insert(TestCore::cid(2));
  play(600s);
  count_from_now();
  come_back(2);
  play(10s);
  for (int id : {1, 2, 3}) EXPECT_NEAR(part(id), 1 / 3.0, 0.01) << id;
  EXPECT_LE(longest_without, 100ms);
}

}  // namespace
}  // namespace nvshare::core
