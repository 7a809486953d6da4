#include "core/testing.h"
#include "watch.h"

namespace nvshare::properties {
namespace {

using namespace core;

// The core's bills are exact to the nanosecond, also when years have been billed, and the rule that
// says so reckons as exactly: a nanosecond is not lost beside a year, as it is in a double.
TEST(Bills, AreExactAfterYears) {
  TestCore t;
  Watch watch(t.core.config(), t.now);
  const auto tell = [&](const Event& event) {
    watch.after(event, t.now, t.core.step(event, t.now), t.core);
  };
  tell(GpuAdded{GpuId{0}, gib(16)});
  tell(TenantAdded{TenantId{1}, "t", {}});
  tell(ClientAdded{ClientId{1}, TenantId{1}, GpuId{0}});
  tell(WorkRequested{ClientId{1}});
  constexpr Duration kYear = 24h * 365;
  Duration used{};
  for (const Duration more : std::initializer_list<Duration>{kYear, 1ns, 1ns, 1ns, kYear, 1ns}) {
    t.now += more;
    used += more;
    tell(Released{ClientId{1}, more, true});
    EXPECT_EQ(t.core.snapshot().shares[0].billed, used);
  }
  EXPECT_EQ(to_lines(watch.broken()), "");
}

}  // namespace
}  // namespace nvshare::properties
