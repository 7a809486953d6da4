#include "core/policy/window_rules.h"

namespace nvshare::core {

WindowPolicy window_policy(ComputePolicy policy) {
  switch (policy) {
    case ComputePolicy::Wall:
      return wall_rules;
    case ComputePolicy::Weighted:
      return weighted_rules;
    case ComputePolicy::Hybrid:
      return hybrid_rules;
    case ComputePolicy::Coordinated:
      return coordinated_rules;
    case ComputePolicy::Dynamic:
      return dynamic_rules;
    case ComputePolicy::Fair:
    case ComputePolicy::Metered:
      return fair_rules;
  }
  return fair_rules;
}

}  // namespace nvshare::core
