#include <fmt/format.h>

#include <ostream>

#include "integration/world.h"

// Kinds of work times limits, as they are measured on a real card (tests/gpu/compute): what each
// gets of the GPU's time is its limit, within two points.
namespace nvshare::integration {
namespace {

struct Workload {
  std::string name;
  Duration kernel;
  std::vector<std::string> options;
  double wants = 100;  // percent of the GPU's time, when nobody limits it

  friend void PrintTo(const Workload& work, std::ostream* out) { *out << work.name; }
};

const Workload kGemm{"gemm", 2ms, {"--queue", "8"}};
const Workload kFine{"fine", 20us, {"--queue", "256"}};
const Workload kBursty{
    "bursty", 1ms, {"--pattern", "bursty", "--busy", "60ms", "--idle", "40ms"}, 60};
const Workload kStep{"step", 200us, {"--queue", "48"}};
const Workload kGraph{"graph", 1ms, {"--pattern", "graph"}};
const Workload kLong{"long", 200ms, {"--queue", "2"}};

// A kernel of the software GPU takes that much beside what it says it does, which counts as well.
constexpr Duration kBeside = 2us;
double of_gpu(const Workload& work) {
  return static_cast<double>((work.kernel + kBeside).count()) /
         static_cast<double>(work.kernel.count());
}

class Matrix : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }
  Job running(const std::string& name, const Workload& work, int limit) {
    std::vector<std::string> options = work.options;
    options.insert(options.end(), {"--seconds", "500"});
    Job one = job(name, {"--cores", std::to_string(limit)}, options, work.kernel);
    EXPECT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
    return one;
  }
  void set_limit(const std::string& name, int limit) {
    const Outcome changed = nvshare({"limit", name, "--cores", std::to_string(limit)});
    EXPECT_EQ(changed.ending.code, 0) << changed.output;
    sleep(200ms);  // by then it holds
  }
  static std::pair<double, double> shares_for(const Job& a, const Job& b, Duration length) {
    const Duration from = now();
    const double share = share_for(a, length);
    return {share, b.share(from, from + length)};
  }
  // The job alone under each of the limits.
  void expect_limits(const Workload& work, const std::vector<int>& limits, Duration each) {
    const Job one = running(work.name, work, 100);
    for (const int limit : limits) {
      set_limit(work.name, limit);
      const double wanted = std::min<double>(limit, work.wants);
      measure([&] { return share_for(one, each) * of_gpu(work); },
              [&](double share) {
                return wrong_share(share, wanted, fmt::format("{} under {} %", work.name, limit));
              });
    }
  }

 private:
  std::vector<Process> scheduler_;
};

class Single : public Matrix, public ::testing::WithParamInterface<Workload> {};

TEST_P(Single, HasItsLimit) {
  expect_limits(GetParam(), {10, 25, 50, 75, 90}, 2s);
}

INSTANTIATE_TEST_SUITE_P(All, Single, ::testing::Values(kGemm, kFine, kBursty, kStep, kGraph),
                         [](const auto& one) { return one.param.name; });

// One kernel more or less in this time is 1.7 points.
TEST_F(Matrix, LongKernelsHaveTheirLimit) {
  expect_limits(kLong, {50}, 12s);
}
TEST_F(Matrix, LongKernelsHaveHighLimits) {
  expect_limits(kLong, {75, 90}, 12s);
}
// They come by twos, with a long time in between.
TEST_F(Matrix, LongKernelsHaveLowLimits) {
  expect_limits(kLong, {10, 25}, 24s);
}

// Work that takes long is not taken for work that waits for what the gate keeps out.
TEST_F(Matrix, KernelsOfMoreThanHalfASecondAreStopped) {
  const Job one = running("slow", Workload{"slow", 700ms, {"--queue", "2"}}, 25);
  measure([&] { return share_for(one, 28s); },
          [&](double share) { return wrong_number(share, 25, 8, "its share"); });
}

struct Pair {
  int limits[2];
  double shares[2];

  friend void PrintTo(const Pair& pair, std::ostream* out) {
    *out << pair.limits[0] << "+" << pair.limits[1];
  }
};

class Pairs
    : public Matrix,
      public ::testing::WithParamInterface<std::tuple<Pair, std::pair<Workload, Workload>>> {};

TEST_P(Pairs, HaveTheirLimits) {
  const Pair& pair = std::get<0>(GetParam());
  const auto& work = std::get<1>(GetParam());
  const Job a = running("a", work.first, pair.limits[0]);
  const Job b = running("b", work.second, pair.limits[1]);
  sleep(500ms);
  measure([&] { return shares_for(a, b, 3s); },
          [&](const auto& got) {
            return wrong_share(got.first * of_gpu(work.first), pair.shares[0], "a") +
                   wrong_share(got.second * of_gpu(work.second), pair.shares[1], "b");
          });
}

constexpr int kNone = 100;
INSTANTIATE_TEST_SUITE_P(
    All, Pairs,
    ::testing::Combine(::testing::Values(Pair{{25, 75}, {25, 75}}, Pair{{30, 60}, {30, 60}},
                                         Pair{{50, 50}, {50, 50}}, Pair{{50, kNone}, {50, 50}},
                                         Pair{{80, 80}, {50, 50}}, Pair{{kNone, kNone}, {50, 50}}),
                       ::testing::Values(std::pair{kGemm, kGemm}, std::pair{kStep, kStep},
                                         std::pair{kGemm, kStep}, std::pair{kGemm, kFine},
                                         std::pair{kStep, kGraph})));

// What they could have had each alone they have together: one works in the gaps of the other.
TEST_F(Matrix, BurstyProgramsKeepTheirRhythm) {
  const Workload work{"", 1ms, {"--pattern", "bursty", "--busy", "20ms", "--idle", "30ms"}, 40};
  const Job a = running("a", work, 100);
  sleep(500ms);
  const double alone = share_for(a, 4s);
  EXPECT_LE(alone, 40.5);
  const Job b = running("b", work, 100);
  sleep(1s);
  measure([&] { return shares_for(a, b, 3s); },
          [&](const auto& got) {
            return wrong_share(got.first, alone, "a") + wrong_share(got.second, alone, "b");
          });
}

// From a fifth of a second after the command on the new limit holds.
TEST_F(Matrix, AChangedLimitHoldsAtOnce) {
  const Job one = running("live", kGemm, 80);
  sleep(1s);
  for (const int limit : {20, 60, 10, 90}) {
    measure(
        [&] {
          set_limit("live", 100 - limit);
          sleep(1s);
          set_limit("live", limit);
          return share_for(one, 1500ms);
        },
        [&](double share) { return wrong_share(share, limit, "the new limit's"); });
  }
}

}  // namespace
}  // namespace nvshare::integration
