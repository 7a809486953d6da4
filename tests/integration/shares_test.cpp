#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "integration/world.h"

// Shares of GPU time as the programs themselves count them.
namespace nvshare::integration {
namespace {

using Words = std::vector<std::string>;

class Shares : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }
  // Runs jobs to their ends, and again where something is `wrong` with their shares: see measure().
  template <typename Begin, typename Wrong>
  void expect(Begin begin, Wrong wrong) {
    measure(
        [&] {
          std::vector<Job> jobs = begin();
          expect_all_good(jobs, 60s);
          // Their names are needed for the next time.
          EXPECT_TRUE(eventually([&] { return !any_tenant(); }, 20s));
          return shares(jobs);
        },
        wrong);
  }
  // What a tenant is to get: its options, and the share of the GPU's time.
  struct Wanted {
    std::string name;
    Words options;
    double share;
  };
  void expect_shares(const std::vector<Wanted>& all, const Words& job_options) {
    const auto begin = [&] {
      std::vector<Job> jobs;
      for (const Wanted& one : all) jobs.push_back(job(one.name, one.options, job_options));
      return jobs;
    };
    expect(begin, [&](const std::vector<double>& got) {
      std::string wrong;
      for (std::size_t i = 0; i < all.size(); ++i) {
        wrong += wrong_share(got[i], all[i].share, all[i].name);
      }
      return wrong;
    });
  }
  // Jobs that share the whole GPU: their parts of what they got together, each as near as `within`,
  // and how much that is at least.
  template <typename Begin>
  void expect_parts(Begin begin, const std::vector<double>& parts, double within, double least) {
    expect(begin, [&](const std::vector<double>& got) {
      std::string wrong;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        wrong += wrong_number(got[i] / sum(got), parts[i], within, fmt::format("part {}", i));
      }
      if (sum(got) <= least)
        wrong += fmt::format("only {:.1f} % was used, not {}", sum(got), least);
      return wrong;
    });
  }
  bool any_tenant() { return runs() > 0; }
  static double sum(const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  }

 private:
  std::vector<Process> scheduler_;
};

TEST_F(Shares, OneAloneWithoutALimitHasItAll) {
  expect_shares({{"alone", {}, 100}}, {"--seconds", "4"});
}

TEST_F(Shares, ThreeWithLimits) {
  expect_shares({{"half", {"--cores", "45"}, 45},
                 {"quarter", {"--cores", "25"}, 25},
                 {"tenth", {"--cores", "10"}, 10}},
                {"--seconds", "5"});
}

TEST_F(Shares, TwoWithoutLimitsShareEqually) {
  const auto begin = [&] {
    std::vector<Job> jobs;
    for (const char* name : {"a", "b"}) jobs.push_back(job(name, {}, {"--seconds", "5"}));
    return jobs;
  };
  expect_parts(begin, {0.5, 0.5}, 0.02, 90);
}

TEST_F(Shares, LongKernelsDoNotTakeFromShortOnes) {
  const auto begin = [&] {
    std::vector<Job> jobs;
    jobs.push_back(job("long", {}, {"--seconds", "6", "--queue", "2"}, 20ms));
    jobs.push_back(job("short", {}, {"--seconds", "6", "--queue", "64"}, 100us));
    return jobs;
  };
  // A short kernel takes 2 us more than it is asked to; that is not counted.
  expect_parts(begin, {0.5, 0.5}, 0.03, 0);
}

TEST_F(Shares, LimitsOfMoreThanTheWholeAreScaledDown) {
  const auto begin = [&] {
    std::vector<Job> jobs;
    jobs.push_back(job("a", {"--cores", "90"}, {"--seconds", "5"}));
    jobs.push_back(job("b", {"--cores", "60"}, {"--seconds", "5"}));
    return jobs;
  };
  expect_parts(begin, {0.6, 0.4}, 0.02, 90);
}

TEST_F(Shares, EightPrograms) {
  const auto begin = [&] {
    std::vector<Job> jobs;
    for (int i = 0; i < 8; ++i) {
      jobs.push_back(job("job" + std::to_string(i), {}, {"--seconds", "9"}));
    }
    return jobs;
  };
  expect_parts(begin, std::vector<double>(8, 1 / 8.0), 0.02, 85);
}

TEST_F(Shares, ProcessesOfATenantShareItsLimit) {
  constexpr int kProcesses = 4;
  // The share that each of them has counted, one after the other.
  const std::string each = gpu_job() + " --seconds 6 | sed 's/.*share=\\([0-9.]*\\).*/\\1/' & ";
  std::string all;
  for (int i = 0; i < kProcesses; ++i) all += each;
  const auto run_all = [&] {
    Process one = run({"--name", "all", "--cores", "25"}, {"sh", "-c", all + "wait"});
    EXPECT_EQ(one.wait(60s).value_or(Ending{}).code, 0) << one.output();
    std::vector<double> got;
    std::istringstream words(one.output());
    for (double share = 0; words >> share;) got.push_back(share);
    EXPECT_EQ(got.size(), std::size_t{kProcesses}) << one.output();
    EXPECT_TRUE(eventually([&] { return !any_tenant(); }, 20s));
    return got;
  };
  measure(run_all, [&](const std::vector<double>& got) {
    std::string wrong = wrong_share(sum(got), 25, "all together");
    for (const double one : got)
      wrong += wrong_number(one, sum(got) / kProcesses, 2, "one of them");
    return wrong;
  });
}

// However a program makes the GPU work, its limit holds.
class Patterns : public Shares, public ::testing::WithParamInterface<Words> {};

TEST_P(Patterns, TheLimitHolds) {
  Words options = GetParam();
  options.insert(options.end(), {"--seconds", "5"});
  expect_shares({{"limited", {"--cores", "40"}, 40}}, options);
}

INSTANTIATE_TEST_SUITE_P(All, Patterns,
                         ::testing::Values(Words{"--pattern", "sync", "--queue", "1"},
                                           Words{"--per-thread-stream", "--threads", "3"},
                                           Words{"--streams", "4", "--threads", "2"},
                                           Words{"--streams", "0"}, Words{"--queue", "64"}));

TEST_F(Shares, BurstsBelowTheLimitAreNotHeldBack) {
  const auto begin = [&] {
    std::vector<Job> jobs;
    jobs.push_back(
        job("bursty", {"--cores", "50"},
            {"--seconds", "5", "--pattern", "bursty", "--busy", "20ms", "--idle", "60ms"}));
    return jobs;
  };
  expect(begin, [](const std::vector<double>& got) {
    return wrong_number(got[0], 25, 2, "20 ms of work in every 80");
  });
}

class Priorities : public Shares {
 protected:
  void SetUp() override {
    Shares::SetUp();
    allow_priorities();
  }
  Job running(const std::string& name, int priority, Words job_options) {
    job_options.insert(job_options.end(), {"--seconds", "60"});
    Job one = job(name, {"--priority=" + std::to_string(priority)}, job_options);
    EXPECT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
    return one;
  }
};

// By turns alone it would have a quarter of the GPU, as each of them: of 20 ms in every 40 it loses
// what it waits for the shortest of turns to end.
TEST_F(Priorities, TheHigherOneWaitsForAShortTurnAtMost) {
  std::vector<Job> others;
  for (const char* name : {"a", "b", "c"}) others.push_back(running(name, 0, {"--queue", "4"}));
  const Job first =
      running("first", 5, {"--pattern", "bursty", "--busy", "20ms", "--idle", "20ms"});
  sleep(1s);
  measure([&] { return share_for(first, 3s); },
          [](double share) { return wrong_number(share, 44, 7, "20 ms of work in every 40"); });
  for (const Job& one : others) EXPECT_GT(one.share(now() - 3s, now()), 8);
}

// Waiting counts as priority, a second as a step.
TEST_F(Priorities, TheLowerOneGetsWhatIsLeftAndNeverNothing) {
  const Job high = running("high", 1, {"--queue", "4"});
  const Job low = running("low", 0, {"--queue", "4"});
  sleep(2s);
  const auto both = [&] {
    const Duration from = now();
    const double share = share_for(high, 4s);
    return std::pair{share, low.share(from, from + 4s)};
  };
  measure(both, [](const auto& got) {
    return wrong_number(got.first, 93, 7, "the higher one's share") +
           wrong_number(got.second, 5.2, 5, "the lower one's share");
  });
}

}  // namespace
}  // namespace nvshare::integration
