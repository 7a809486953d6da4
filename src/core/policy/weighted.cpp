#include "core/policy/window_rules.h"

namespace nvshare::core {

// All run together and n clients pay 1/n each. 50 % + 50 % fill the GPU; limits above 100 % in sum
// mean nothing.
WindowRules weighted_rules(const Load&, const Config&) {
  return {.divide_bill = true};
}

}  // namespace nvshare::core
