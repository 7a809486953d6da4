#pragma once

#include "core/config.h"

namespace nvshare::core {

// What a window policy looks at: the tenants that want the GPU now. Idle ones do not count.
struct Load {
  int limit_sum = 0;  // of their core limits, in percent

  friend bool operator==(const Load&, const Load&) = default;
};

// What a window policy answers. In every window a tenant may be billed limit x window.
struct WindowRules {
  bool serial = false;          // one client at a time; otherwise all that have quota
  bool divide_bill = false;     // a running client is billed time / number running
  bool scale_quota = false;     // quotas shrink by 100 / limit_sum when that is above 100
  bool stretch_window = false;  // the window lasts until everyone has had its quota
  Duration turn{};              // longest time at a stretch while others wait; 0 = the quota

  friend bool operator==(const WindowRules&, const WindowRules&) = default;
};

using WindowPolicy = WindowRules (*)(const Load& load, const Config& config);

WindowRules wall_rules(const Load& load, const Config& config);
WindowRules weighted_rules(const Load& load, const Config& config);
WindowRules hybrid_rules(const Load& load, const Config& config);
WindowRules coordinated_rules(const Load& load, const Config& config);
WindowRules dynamic_rules(const Load& load, const Config& config);
WindowRules fair_rules(const Load& load, const Config& config);

// `policy` is one of the window policies (not Metered).
WindowPolicy window_policy(ComputePolicy policy);

}  // namespace nvshare::core
