#include "core/policy/window_rules.h"

namespace nvshare::core {

// Weighted while the limits fit; above 100 % in sum one at a time at full price, so that the limits
// keep their meaning.
WindowRules hybrid_rules(const Load& load, const Config& config) {
  if (load.limit_sum <= 100) return weighted_rules(load, config);
  return {.serial = true};
}

}  // namespace nvshare::core
