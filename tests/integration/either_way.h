#pragma once

#include "integration/world.h"
#include "own_cgroup.h"

namespace nvshare::integration {

// A test that is done twice: with a cgroup of its own for each run, and without.
template <typename Fixture>
class EitherWay : public Fixture, public testing::WithParamInterface<bool> {
 protected:
  void prepare() override {
    if (GetParam() && !cgroups_can_be_made()) {
      GTEST_SKIP() << "no group can be made here (root, cgroup2)";
    }
    this->set("NVSHARE_RUN_CGROUPS", GetParam() ? "true" : "false");
  }
};

inline std::string name_of_way(const testing::TestParamInfo<bool>& info) {
  return info.param ? "WithGroups" : "WithoutGroups";
}

}  // namespace nvshare::integration
