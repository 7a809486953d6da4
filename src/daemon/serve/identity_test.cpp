#include "daemon/serve/identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace nvshare::daemon {
namespace {

const std::string kId = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

TEST(Stat, TheParentIsFoundWhateverTheNameIs) {
  EXPECT_EQ(parent_in_stat("12 (bash) S 7 12 12 0"), 7);
  EXPECT_EQ(parent_in_stat("12 (a) b) S 99 (x) R 7 1 2"), 7) << "the last parenthesis counts";
  EXPECT_EQ(parent_in_stat("12 () R 0 0"), 0);
  for (const char* bad :
       {"", "12", "12 (bash)", "12 (bash) S", "12 (bash) S x", "12 (bash) S -4"}) {
    EXPECT_FALSE(parent_in_stat(bad)) << bad;
  }
}

TEST(Cgroup, ContainersAreFoundWhoeverMadeThem) {
  const std::vector<std::string> paths{
      "/docker/" + kId,
      "/system.slice/docker-" + kId + ".scope",
      "/machine.slice/libpod-" + kId + ".scope/container",
      "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_5678.slice/"
      "cri-containerd-" +
          kId + ".scope",
      "/kubepods.slice/kubepods-pod12.slice/crio-" + kId + ".scope",
      "/kubepods/burstable/pod0b1d2c3a-1111-2222-3333-444455556666/" + kId,
      "/../../system.slice/containerd.service/kubepods-pod12.slice:cri-containerd:" + kId,
  };
  for (std::size_t i = 0; i + 1 < paths.size(); ++i) {
    EXPECT_EQ(container_in_cgroup("0::" + paths[i] + "\n"), kId) << paths[i];
  }
  EXPECT_EQ(container_in_cgroup("12:memory:/docker/" + kId + "\n11:cpu:/\n"), kId);
  EXPECT_EQ(container_in_cgroup("0::/lxc.payload.web1/init.scope\n"), "web1");
  EXPECT_EQ(container_in_cgroup("3:devices:/lxc/web1\n"), "web1");
}

TEST(Cgroup, OfNestedOnesTheOuterCounts) {
  const std::string other(64, 'f');
  EXPECT_EQ(container_in_cgroup("0::/docker/" + kId + "/docker/" + other + "\n"), kId);
}

// systemd-run --user --scope --unit=docker-ID is everybody's to do.
TEST(Cgroup, WhatAUserHasMadeIsNoContainer) {
  const std::string scope = "docker-" + kId + ".scope";
  const std::string slice = "0::/user.slice/user-1000.slice/";
  EXPECT_FALSE(container_in_cgroup(slice + "user@1000.service/app.slice/" + scope + "\n"));
  EXPECT_FALSE(container_in_cgroup(slice + scope + "\n"));
  EXPECT_FALSE(container_in_cgroup("0::/user@1000.service/" + scope + "\n"));
  EXPECT_FALSE(container_in_cgroup(slice + "lxc.payload.web1\n"));
  EXPECT_EQ(container_in_cgroup("0::/user-made.slice/" + scope + "\n"), kId) << "nobody's number";
  EXPECT_EQ(container_in_cgroup("0::/docker/" + kId + "/user.slice/user-1000.slice\n"), kId)
      << "a user inside a container";
}

TEST(Cgroup, WhatIsNoContainerIsNone) {
  for (const char* text :
       {"", "0::/\n", "0::/user.slice/user-1000.slice/session-1.scope\n", "nonsense\n", "::\n",
        "0::/system.slice/docker-tooshort.scope\n", "0::/lxc\n", "0::/lxc.payload.\n"}) {
    EXPECT_FALSE(container_in_cgroup(text)) << text;
  }
}

// A picture of /proc: 30 below 20 below 10 below 1.
struct Picture : testing::Test {
  Picture() {
    char name[] = "/tmp/nvshare-proc-XXXXXX";
    root = mkdtemp(name);
    process(1, 0, "0::/\n");
    process(10, 1, "0::/user.slice\n");
    process(20, 10, "0::/user.slice\n");
    process(30, 20, "0::/docker/" + kId + "\n");
    process(40, 40, "0::/\n");  // its own parent: cannot be, must not hang
  }
  ~Picture() override { std::filesystem::remove_all(root); }
  void process(int pid, int parent, const std::string& cgroup) {
    const std::string folder = root + "/" + std::to_string(pid);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/stat") << pid << " (x) y) S " << parent << " 0 0";
    std::ofstream(folder + "/cgroup") << cgroup;
    std::ofstream(folder + "/comm") << "pro\x01gram\n";
  }
  std::string root;
};

TEST_F(Picture, ARunIsFoundAboveItsProcesses) {
  const Processes processes(root);
  const std::map<int, TenantId> runs{{10, TenantId{5}}};
  EXPECT_EQ(*processes.run_above(30, runs), TenantId{5});
  EXPECT_EQ(*processes.run_above(10, runs), TenantId{5});
  EXPECT_FALSE(*processes.run_above(1, runs));
  EXPECT_FALSE(*processes.run_above(77, runs)) << "gone";
  EXPECT_FALSE(*processes.run_above(0, runs));
  const std::map<int, TenantId> nested{{10, TenantId{5}}, {20, TenantId{6}}};
  EXPECT_EQ(*processes.run_above(30, nested), TenantId{6});
}

// Nobody leaves a run by starting more processes below one another than are looked at.
TEST_F(Picture, WhatIsTooDeepIsNotKnown) {
  for (int pid = 1000; pid < 1200; ++pid) process(pid, pid == 1000 ? 10 : pid - 1, "0::/\n");
  const Processes processes(root);
  const std::map<int, TenantId> runs{{10, TenantId{5}}};
  EXPECT_EQ(*processes.run_above(1100, runs), TenantId{5});
  EXPECT_FALSE(processes.run_above(1199, runs));
  EXPECT_FALSE(processes.run_above(40, runs));
  EXPECT_TRUE(processes.run_above(1199, {})) << "without runs it is under none";
}

TEST_F(Picture, WhoCannotBeReadIsNotKnown) {
  const Processes processes(root);
  const std::map<int, TenantId> runs{{10, TenantId{5}}};
  std::ofstream(root + "/20/stat") << "nonsense";
  EXPECT_FALSE(processes.run_above(30, runs));
  std::filesystem::remove(root + "/20/stat");
  std::filesystem::create_directory(root + "/20/stat");
  EXPECT_FALSE(processes.run_above(30, runs)) << "is there, and cannot be read";
  std::filesystem::remove_all(root + "/20");
  const auto invisible = processes.run_above(30, runs);
  ASSERT_TRUE(invisible);
  EXPECT_FALSE(*invisible);
}

TEST_F(Picture, ATenantIsAContainerOrAUser) {
  const Processes processes(root);
  const TenantName container = processes.tenant_of(30, 1000);
  EXPECT_EQ(container.kind, TenantKind::Container);
  EXPECT_EQ(container.name, "container-0123456789ab");
  const TenantName user = processes.tenant_of(20, 1000);
  EXPECT_EQ(user.kind, TenantKind::User);
  EXPECT_EQ(user.name, "user-1000");
  EXPECT_EQ(processes.tenant_of(77, 1000).name, "user-1000") << "gone already";
  EXPECT_EQ(processes.name_of(20), "pro?gram");
  EXPECT_EQ(processes.name_of(77), "?");
}

// A process that cannot be looked at shares host memory with no other process.
TEST_F(Picture, AHomeIsEmptyWhereTheKernelDoesNotSay) {
  const Processes processes(root);
  EXPECT_EQ(processes.home_of(20, 1000), "") << "no namespaces";
  EXPECT_EQ(processes.home_of(77, 1000), "") << "gone already";
  EXPECT_EQ(processes.home_of(0, 1000), "");
}

TEST(Processes, ProgramsOfAUserHaveOneHome) {
  const Processes processes;
  const std::string home = processes.home_of(getpid(), 1000);
  EXPECT_NE(home, "");
  EXPECT_EQ(processes.home_of(getppid(), 1000), home);
  EXPECT_NE(processes.home_of(getpid(), 1001), home);
}

TEST(Processes, TheRealOnesAreRead) {
  const Processes processes;
  EXPECT_EQ(*processes.run_above(getpid(), {{getppid(), TenantId{1}}}), TenantId{1});
  EXPECT_NE(processes.name_of(getpid()), "?");
}

}  // namespace
}  // namespace nvshare::daemon
