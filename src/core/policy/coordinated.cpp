#include "core/policy/window_rules.h"

namespace nvshare::core {

// One at a time, each for its quota; above 100 % in sum the quotas shrink in proportion.
WindowRules coordinated_rules(const Load&, const Config&) {
  return {.serial = true, .scale_quota = true};
}

}  // namespace nvshare::core
