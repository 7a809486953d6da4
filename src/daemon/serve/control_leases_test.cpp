// What the control socket tells of leases.

#include "daemon/serve/control_testing.h"

namespace nvshare::daemon {
namespace {

LeaseFacts::Leases two_leases(const LeaseFacts::IsWanted& is_wanted) {
  LeaseFacts::Leases all;
  const auto add = [&](const std::string& tenant, bool active) {
    if (!is_wanted(tenant)) return;
    core::LeaseView view;
    view.task_class = "ASR";
    view.active = active;
    all.first.push_back({"0123", tenant, view, active ? 7 : 0, active ? "held" : "waits"});
    ++all.total;
  };
  add("train", true);
  add("user-1000", false);
  return all;
}

TEST_F(ControlTest, AGpuWithoutLeasesSaysNothingOfThem) {
  EXPECT_TRUE(ask({{"op", "status"}})["gpus"][0].at("leases").is_null());
  EXPECT_TRUE(ask({{"op", "why"}, {"name", "train"}}).at("leases").empty());
}

TEST_F(ControlTest, StatusShowsHowAGpuStandsForLeases) {
  LeaseFacts facts;
  facts.gpu = [](GpuId) {
    core::ArbiterGpuView view;
    view.state = core::Admission::High;
    view.usage = 91.5;
    view.age = 300ms;
    view.marks = {85, 78};
    view.active = 2;
    view.waiting = 1;
    return std::optional<LeaseFacts::Gpu>({view, 4});
  };
  control.set_leases(facts);
  EXPECT_EQ(ask({{"op", "status"}})["gpus"][0]["leases"],
            json::parse(R"({"state":"HIGH_PRESSURE","usage":91.5,"usage_age":300000000,)"
                        R"("high_water":85.0,"low_water":78.0,"active":2,"slots":4,"waiting":1})"));
}

TEST_F(ControlTest, WhyNamesTheLeasesOfATenantAndOfNoOther) {
  LeaseFacts facts;
  facts.leases = two_leases;
  control.set_leases(facts);
  const json why = ask({{"op", "why"}, {"name", "train"}});
  ASSERT_EQ(why["leases"].size(), 1u);
  EXPECT_EQ(why["leases"][0],
            json::parse(R"({"lease":"0123","tenant":"train","class":"ASR","gpu":0,"active":true,)"
                        R"("pid":7,"text":"held"})"));
  EXPECT_EQ(why["leases_total"], 1);
}

TEST_F(ControlTest, AUserThatOnlyAsksForLeasesHasAReasonToo) {
  EXPECT_NE(refused({{"op", "why"}, {"name", "user-1000"}}), "");
  LeaseFacts facts;
  facts.leases = two_leases;
  control.set_leases(facts);
  const json why = ask({{"op", "why"}, {"name", "user-1000"}});
  EXPECT_TRUE(why["processes"].empty());
  ASSERT_EQ(why["leases"].size(), 1u);
  EXPECT_EQ(why["leases"][0]["text"], "waits");
  EXPECT_TRUE(why["leases"][0]["pid"].is_null());
  EXPECT_NE(refused({{"op", "why"}, {"name", "nobody"}}), "");
}

TEST_F(ControlTest, ATenantThatIsGoneHasLinesInTheTrace) {
  t.broker.trace().add_lease("lease_asked", "gone", " lease=1");
  EXPECT_EQ(ask({{"op", "trace"}, {"name", "gone"}})["lines"].size(), 1u);
  EXPECT_NE(refused({{"op", "trace"}, {"name", "nobody"}}), "");
}

// It must be said which of the two is meant.
TEST_F(ControlTest, ANameOfAUserAndARunHasNoLeasesAndNoLines) {
  ASSERT_TRUE(t.broker.begin_run({TenantKind::Run, "alice", 7}, {}, t.now));
  ASSERT_TRUE(t.broker.tenant_for({TenantKind::User, "user-1000", 1000}, {}, t.now));
  t.broker.trace().add_lease("lease_asked", "alice", " lease=1");
  LeaseFacts facts;
  facts.leases = [](const LeaseFacts::IsWanted&) { return LeaseFacts::Leases{{}, 1}; };
  control.set_leases(facts);
  for (const char* op : {"why", "trace"}) {
    EXPECT_NE(refused({{"op", op}, {"name", "alice"}}).find("is a user and a run"),
              std::string::npos);
  }
}

TEST_F(ControlTest, LeasesOfAPartAreItsTenantsToo) {
  const auto part = t.broker.begin_run({TenantKind::Run, "inner", 1000}, {}, t.now,
                                       wire::Backend::Default, false, tenant);
  ASSERT_TRUE(part);
  LeaseFacts facts;
  facts.leases = [](const LeaseFacts::IsWanted& is_wanted) {
    LeaseFacts::Leases all;
    all.total = is_wanted("inner") ? 1 : 0;
    return all;
  };
  control.set_leases(facts);
  EXPECT_EQ(ask({{"op", "why"}, {"name", "train"}})["leases_total"], 1);
  EXPECT_EQ(ask({{"op", "why"}, {"name", "inner"}})["leases_total"], 1);
}

}  // namespace
}  // namespace nvshare::daemon
