#include "core/policy/window_rules.h"

namespace nvshare::core {

// Together while the limits fit; above 100 % in sum one after the other, first come first served,
// each for its whole quota, however long the round takes.
WindowRules dynamic_rules(const Load& load, const Config& config) {
  if (load.limit_sum <= 100) return weighted_rules(load, config);
  return {.serial = true, .stretch_window = true};
}

}  // namespace nvshare::core
