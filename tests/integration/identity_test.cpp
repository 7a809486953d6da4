#include <algorithm>
#include <nlohmann/json.hpp>

#include "integration/world.h"
#include "own_cgroup.h"

// Who a program is, is decided by where it was started, not by what it says. And: processes that
// fork.
namespace nvshare::integration {
namespace {

class Identity : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    scheduler_.push_back(start_scheduler());
  }

 private:
  std::vector<Process> scheduler_;
};

TEST_F(Identity, AProgramCannotNameItselfIntoAnothersTenant) {
  Process victim = probe("victim", {"--cores", "90", "--mem", "1Gi"});
  ASSERT_EQ(ask(victim, "start"), "CUDA_SUCCESS");
  Process thief = probe("thief", {"--cores", "10", "--mem", "64Mi"});
  const std::string taken = "refused: the name 'victim' is taken by ";
  EXPECT_EQ(ask(thief, "claim victim").rfind(taken, 0), 0u);
  Process stranger = start({probe_program()});
  EXPECT_EQ(ask(stranger, "claim victim").rfind(taken, 0), 0u);
  EXPECT_EQ(ask(stranger, "claim user-0"),
            "refused: names that begin with 'user-' are the scheduler's own: "
            "give another with --name");
  ASSERT_EQ(ask(thief, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(thief, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_EQ(processes("victim").size(), 1u) << "only the victim itself";
  EXPECT_EQ(processes("thief").size(), 1u);
  EXPECT_EQ(ask(thief, "alloc 128Mi"), "CUDA_ERROR_OUT_OF_MEMORY") << "its own limit holds";
}

TEST_F(Identity, ARunWithinARunAsksForNoMoreThanTheOuterOneHas) {
  Process inner =
      run({"--name", "outer", "--mem", "64Mi"},
          {nvshare_program(), "run", "--name", "inner", "--mem", "1Gi", "--", "echo", "started"});
  const auto ending = inner.wait(20s);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->code, 2);
  EXPECT_NE(inner.output().find("memory 1GiB is above the limit of 'outer', which is 64MiB"),
            std::string::npos)
      << inner.output();
  EXPECT_EQ(inner.output().find("started"), std::string::npos) << inner.output();
}

TEST_F(Identity, ARunWithinARunIsAPartOfIt) {
  Process inner =
      run({"--name", "outer", "--mem", "64Mi", "--cores", "50"},
          {nvshare_program(), "run", "--name", "inner", "--mem", "32Mi", "--", probe_program()});
  ASSERT_EQ(ask(inner, "start"), "CUDA_SUCCESS") << inner.output();
  ASSERT_EQ(ask(inner, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_EQ(tenant("inner").value("parent", ""), "outer");
  EXPECT_EQ(tenant("outer").value("parent", ""), user());
  EXPECT_EQ(processes("inner").size(), 1u);
  EXPECT_EQ(ask(inner, "alloc 48Mi"), "CUDA_ERROR_OUT_OF_MEMORY") << "its own limit holds";
  EXPECT_EQ(ask(inner, "alloc 16Mi"), "CUDA_SUCCESS");
  EXPECT_EQ(tenant("outer").value("allocated", 0l), 16l << 20);
  const Outcome shown = nvshare({"status"});
  EXPECT_NE(shown.output.find("\n  outer"), std::string::npos) << shown.output;
  EXPECT_NE(shown.output.find("\n    inner"), std::string::npos) << shown.output;
}

// The run has a cgroup of its own, which tells where its keeper and the parents do not any more.
class Groups : public Identity {
 protected:
  void SetUp() override {
    if (!cgroups_can_be_made()) GTEST_SKIP() << "no group can be made here (root, cgroup2)";
    Identity::SetUp();
    const Process first =
        run({"--name", "first"}, {"sh", "-c", "grep ^0: /proc/self/cgroup; read x"});
    ASSERT_TRUE(eventually([&] { return first.output().find("0::") != std::string::npos; }, 20s));
    ASSERT_NE(first.output().find("/nvshare-run-first"), std::string::npos) << first.output();
  }
  // As ask(), of a program that has lost its `nvshare run`.
  static std::string ask_orphan(Process& program, const std::string& line) {
    const std::size_t before = answers_of(program).size();
    program.say(line);
    EXPECT_TRUE(eventually([&] { return answers_of(program).size() > before; }, 30s)) << line;
    return answers_of(program).size() > before ? answers_of(program).back() : "no answer";
  }
};

// The program's parent is the keeper, and the keeper's is `nvshare run`, which would take over.
const std::string kKillKeepers = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID";

TEST_F(Groups, AProgramThatKillsItsKeeperStaysInItsRun) {
  Process program =
      run({"--name", "train", "--mem", "64Mi"},
          {"sh", "-c", kKillKeepers + "; exec setsid sh -c '" + probe_program() + "'"});
  ASSERT_TRUE(program.wait(20s)) << "its keeper is still there";
  ASSERT_EQ(ask_orphan(program, "start"), "CUDA_SUCCESS") << program.output();
  EXPECT_EQ(ask_orphan(program, "alloc 128Mi"), "CUDA_ERROR_OUT_OF_MEMORY") << "the run's limit";
  EXPECT_EQ(processes("train").size(), 1u);
  EXPECT_EQ(tenant("train").value("memory", 0l), 64l << 20);
  program.say("end");
  EXPECT_TRUE(eventually([&] { return !has_tenant("train") || processes("train").empty(); }, 20s));
}

TEST_F(Groups, ARunEndsWithTheLastProcessOfItsGroup) {
  Process program = run({"--name", "train"}, {"sh", "-c", kKillKeepers + "; setsid sleep 3"});
  ASSERT_TRUE(program.wait(20s));
  EXPECT_TRUE(has_tenant("train")) << "a process is left, though none on a GPU";
  EXPECT_TRUE(eventually([&] { return !has_tenant("train"); }, 20s));
}

TEST_F(Identity, ChildrenBelongToTheTenantOfTheirParents) {
  Process family = run({"--name", "family", "--mem", "64Mi"},
                       {"sh", "-c", "setsid sh -c '" + probe_program() + "'"});
  ASSERT_EQ(ask(family, "start"), "CUDA_SUCCESS") << family.output();
  ASSERT_EQ(ask(family, "spin 1ms"), "CUDA_SUCCESS");
  EXPECT_EQ(processes("family").size(), 1u);
  EXPECT_EQ(ask(family, "alloc 128Mi"), "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(Identity, AChildThatUsesTheGpuIsAProcessOfItsOwn) {
  Process one = probe("one", {"--mem", "64Mi"});
  EXPECT_EQ(ask(one, "fork start"), "CUDA_SUCCESS") << "a fork before the GPU is used";
  EXPECT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS");
}

// As with the driver itself: a child has no device, and neither hangs nor harms its parent.
TEST_F(Identity, AForkAfterTheGpuWasUsedHarmsNobody) {
  Process one = probe("one");
  ASSERT_EQ(ask(one, "start"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "alloc 32Mi"), "CUDA_SUCCESS");
  ASSERT_EQ(ask(one, "launch 200ms"), "CUDA_SUCCESS");
  EXPECT_EQ(ask(one, "fork spin 1ms"), "CUDA_ERROR_NOT_INITIALIZED");
  EXPECT_EQ(ask(one, "fork alloc 1Mi"), "CUDA_ERROR_NOT_INITIALIZED");
  EXPECT_EQ(ask(one, "spin 1ms"), "CUDA_SUCCESS") << "the parent goes on";
  EXPECT_EQ(processes("one").size(), 1u);
  EXPECT_EQ(tenant("one")["processes"][0].value("allocated", 0l), 32l << 20);
}

class Devices : public World {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_SOFTGPU_COUNT", "2");
    scheduler_.push_back(start_scheduler());
  }

 private:
  std::vector<Process> scheduler_;
};

TEST_F(Devices, AreSharedEachByItself) {
  const auto both = [&] {
    std::vector<Job> jobs;
    jobs.push_back(job("first", {}, {"--seconds", "6"}));
    jobs.push_back(
        job("second", {"--cores", "40", "--gpu", "all"}, {"--seconds", "6", "--device", "1"}));
    EXPECT_TRUE(eventually(
        [&] {
          const nlohmann::json second = tenant("second");
          return second.is_object() && second["processes"].size() == 1 &&
                 second["processes"][0].value("gpu", -1) == 1;
        },
        20s));
    EXPECT_EQ(status()["gpus"].size(), 2u);
    expect_all_good(jobs, 60s);
    EXPECT_TRUE(eventually([&] { return !has_tenant("first") && !has_tenant("second"); }, 20s));
    return shares(jobs);
  };
  measure(both, [&](const std::vector<double>& got) {
    return wrong_share(got[0], 100, "first") + wrong_share(got[1], 40, "second");
  });
}

}  // namespace
}  // namespace nvshare::integration
