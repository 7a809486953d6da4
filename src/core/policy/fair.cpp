#include "core/policy/window_rules.h"

namespace nvshare::core {

// Coordinated in short turns: the finest grain and the most switches.
WindowRules fair_rules(const Load&, const Config& config) {
  return {.serial = true, .scale_quota = true, .turn = config.fair_turn};
}

}  // namespace nvshare::core
