#include "daemon/tenant_names.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

const std::string kId = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const std::string kPod = "0b1d2c3a-1111-2222-3333-444455556666";

std::optional<std::string> container_of(const std::string& text) {
  return found_in_cgroup(text).container;
}

TEST(TenantNames, AContainerHasTheBeginningOfItsIdOrItsName) {
  EXPECT_EQ(container_tenant(std::string(64, 'a'), 5).name, "container-aaaaaaaaaaaa");
  EXPECT_EQ(container_tenant(std::string(64, 'a'), 5).uid, 5u);
  EXPECT_EQ(container_tenant("web").name, "container-web");
  EXPECT_EQ(container_tenant("my box").name, "container-my_box");
  EXPECT_EQ(container_tenant(std::string(80, 'x')).name.size(), 63u);
}

TEST(TenantNames, UsersAndContainersAreFoundByTheirNames) {
  const auto user = tenant_called(user_tenant(1000).name);
  ASSERT_TRUE(user);
  EXPECT_EQ(user->kind, TenantKind::User);
  EXPECT_EQ(user->uid, 1000u);
  const auto container = tenant_called("container-web", 7);
  ASSERT_TRUE(container);
  EXPECT_EQ(container->kind, TenantKind::Container);
  EXPECT_EQ(container->uid, 7u);
  for (const char* other : {"", "train", "user-", "user-01", "user-x", "user-4294967295"}) {
    EXPECT_FALSE(tenant_called(other)) << other;
  }
}

TEST(Cgroup, TheGroupIsThatOfTheSecondHierarchy) {
  EXPECT_EQ(group_in_cgroup("9:name=systemd:/x\n4:memory:/y\n0::/a/b\n"), "/a/b");
  EXPECT_EQ(group_in_cgroup("0::/\n"), "/");
  EXPECT_FALSE(group_in_cgroup("4:memory:/y\n"));
  EXPECT_FALSE(group_in_cgroup(""));
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
    EXPECT_EQ(container_of("0::" + paths[i] + "\n"), kId) << paths[i];
  }
  EXPECT_EQ(container_of("12:memory:/docker/" + kId + "\n11:cpu:/\n"), kId);
  EXPECT_EQ(container_of("0::/lxc.payload.web1/init.scope\n"), "web1");
  EXPECT_EQ(container_of("3:devices:/lxc/web1\n"), "web1");
}

TEST(Cgroup, OfNestedOnesTheOuterCounts) {
  const std::string other(64, 'f');
  EXPECT_EQ(container_of("0::/docker/" + kId + "/docker/" + other + "\n"), kId);
}

// systemd-run --user --scope --unit=docker-ID is everybody's to do.
TEST(Cgroup, WhatAUserHasMadeIsNoContainer) {
  const std::string scope = "docker-" + kId + ".scope";
  const std::string slice = "0::/user.slice/user-1000.slice/";
  EXPECT_FALSE(container_of(slice + "user@1000.service/app.slice/" + scope + "\n"));
  EXPECT_FALSE(container_of(slice + scope + "\n"));
  EXPECT_FALSE(container_of("0::/user@1000.service/" + scope + "\n"));
  EXPECT_FALSE(container_of(slice + "lxc.payload.web1\n"));
  EXPECT_EQ(container_of("0::/user-made.slice/" + scope + "\n"), kId) << "nobody's number";
  EXPECT_EQ(container_of("0::/docker/" + kId + "/user.slice/user-1000.slice\n"), kId)
      << "a user inside a container";
}

TEST(Cgroup, ARunsNameIsNoPodAndNoContainer) {
  const std::string pod = "pod0b1d2c3a-1111-2222-3333-444455556666";
  const std::string hex(32, 'a');
  const std::string run = "0::/system.slice/cron.service/nvshare-run-";
  for (const std::string& name : {pod, "pod" + hex, "x-" + pod}) {
    EXPECT_FALSE(found_in_cgroup(run + name + "\n").pod) << name;
  }
  EXPECT_FALSE(found_in_cgroup(run + "a/docker-" + kId + ".scope\n").container);
  EXPECT_EQ(found_in_cgroup("0::/kubepods.slice/kubepods-" + pod + ".slice/nvshare-run-a\n").pod,
            pod.substr(3))
      << "a run in a pod";
}

TEST(Cgroup, WhatIsNoContainerIsNone) {
  for (const char* text :
       {"", "0::/\n", "0::/user.slice/user-1000.slice/session-1.scope\n", "nonsense\n", "::\n",
        "0::/system.slice/docker-tooshort.scope\n", "0::/lxc\n", "0::/lxc.payload.\n"}) {
    EXPECT_FALSE(container_of(text)) << text;
  }
}

TEST(Cgroup, APodIsAroundItsContainers) {
  const std::vector<std::string> paths{
      "/kubepods.slice/kubepods-burstable.slice/"
      "kubepods-burstable-pod0b1d2c3a_1111_2222_3333_444455556666.slice/cri-containerd-" +
          kId + ".scope",
      "/kubepods.slice/kubepods-pod0b1d2c3a_1111_2222_3333_444455556666.slice/crio-" + kId +
          ".scope",
      "/kubepods/besteffort/pod" + kPod + "/" + kId,
      "/kubelet.slice/kubelet-kubepods.slice/"
      "kubelet-kubepods-pod0b1d2c3a_1111_2222_3333_444455556666.slice/cri-containerd-" +
          kId + ".scope",
  };
  for (const std::string& path : paths) {
    const FoundInCgroup found = found_in_cgroup("0::" + path + "\n");
    EXPECT_EQ(found.pod, kPod) << path;
    EXPECT_EQ(found.container, kId) << path;
  }
  EXPECT_EQ(found_in_cgroup("0::/kubepods/pod" + std::string(32, 'a') + "/x\n").pod,
            std::string(32, 'a'))
      << "a static pod";
  const FoundInCgroup inside = found_in_cgroup("0::/docker/" + kId + "/kubepods/pod" + kPod + "\n");
  EXPECT_FALSE(inside.pod) << "a cluster inside a container";
  EXPECT_EQ(inside.container, kId);
  for (const char* none : {"/podium", "/kubepods/pod12", "/podman-0b1d2c3a"}) {
    EXPECT_FALSE(found_in_cgroup("0::" + std::string(none) + "\n").pod) << none;
  }
}

TEST(Cgroup, AGroupThatAUserOwnsHasNoContainersBelowIt) {
  const IsOfAUser users = [](const std::string& group) { return group == "/system.slice/ci"; };
  const std::string made = "0::/system.slice/ci/" + kId + "\n";
  EXPECT_FALSE(found_in_cgroup(made, users).container);
  EXPECT_EQ(found_in_cgroup(made).container, kId);
  EXPECT_FALSE(found_in_cgroup("0::/system.slice/ci/pod" + kPod + "\n", users).pod);
  EXPECT_EQ(found_in_cgroup("0::/system.slice/" + kId + "\n", users).container, kId);
}

TEST(TenantNames, PodsAndCgroupsHaveNamesToo) {
  EXPECT_EQ(pod_named(kPod)->name, "pod-" + kPod);
  EXPECT_EQ(pod_named("pod-" + kPod)->name, "pod-" + kPod);
  EXPECT_EQ(pod_named("pod-" + kPod)->kind, TenantKind::Pod);
  EXPECT_EQ(cgroup_named("/system.slice/jupyter@1.service")->name,
            "cgroup-system.slice-jupyter_1.service");
  EXPECT_EQ(cgroup_named("/" + std::string(100, 'x'))->name.size(), 63u);
  for (const char* bad : {"", "web", "pod-", "0b1d2c3a-1111-2222-3333-44445555666"}) {
    EXPECT_FALSE(pod_named(bad)) << bad;
  }
  for (const std::string& bad :
       {std::string(), std::string("/"), std::string("a/b"), std::string("/a/"),
        std::string("/a//b"), std::string("/a/../b"), "/docker/" + kId, "/kubepods/pod" + kPod,
        std::string("/user.slice/user-1000.slice/x")}) {
    EXPECT_FALSE(cgroup_named(bad)) << bad;
  }
  EXPECT_EQ(tenant_called("pod-x")->kind, TenantKind::Pod);
  EXPECT_EQ(tenant_called("cgroup-x")->kind, TenantKind::Cgroup);
}

}  // namespace
}  // namespace nvshare::daemon
