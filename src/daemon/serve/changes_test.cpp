#include "daemon/serve/changes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

// A scheduler that finds these settings in its state file.
struct Restarted {
  explicit Restarted(const std::map<std::string, std::string>& kept_settings) {
    State before;
    before.settings = kept_settings;
    kept.restore(before, "", [](const KeptRun&) { return true; });
    Changes(t.broker, settings, kept, t.log).restore(t.now);
  }

  TestBroker t;
  Kept kept{t.log};
  Settings settings;
};

TEST(KeptSettings, ThatBoundEachOtherAreRestored) {
  // Both below what they are by themselves, and both above.
  for (const auto& [min, max] : {std::pair{1s, 2s}, std::pair{400s, 500s}}) {
    const std::map<std::string, std::string> kept{{"quantum_min", fmt::format("{}s", min.count())},
                                                  {"quantum_max", fmt::format("{}s", max.count())}};
    const Restarted next(kept);
    EXPECT_EQ(next.t.broker.core().config().quantum_min, min);
    EXPECT_EQ(next.t.broker.core().config().quantum_max, max);
    EXPECT_EQ(next.settings.core.quantum_max, max);
    EXPECT_EQ(next.kept.settings(), kept);
  }
}

TEST(KeptSettings, ThatDoNotFitStayKept) {
  const std::map<std::string, std::string> kept{
      {"trun", "9ms"}, {"turn", "9h"}, {"policy", "fair"}, {"max_clients", "7"}};
  const Restarted next(kept);
  EXPECT_EQ(next.settings.max_clients, 7);
  EXPECT_EQ(next.kept.settings(), kept);
  const std::string& lines = next.t.lines;
  const std::string event = "event=settings_not_restored";
  const std::size_t told = lines.find(event);
  ASSERT_NE(told, std::string::npos) << lines;
  EXPECT_EQ(lines.find(event, told + 1), std::string::npos) << "one line for all of them";
  for (const char* one : {"policy=fair (", "trun=9ms (", "turn=9h ("}) {
    EXPECT_NE(lines.find(one, told), std::string::npos) << one;
  }
}

}  // namespace
}  // namespace nvshare::daemon
