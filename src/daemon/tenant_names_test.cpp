#include "daemon/tenant_names.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

TEST(TenantNames, AContainerHasTheBeginningOfItsIdOrItsName) {
  EXPECT_EQ(container_tenant(std::string(64, 'a'), 5).name, "container-aaaaaaaaaaaa");
  EXPECT_EQ(container_tenant(std::string(64, 'a'), 5).uid, 5u);
  EXPECT_EQ(container_tenant("web").name, "container-web");
  EXPECT_EQ(container_tenant("my box").name, "container-my_box");
  EXPECT_EQ(container_tenant(std::string(80, 'x')).name.size(), 63u);
  EXPECT_FALSE(is_container_id(std::string(64, 'g')));
  EXPECT_FALSE(is_container_id(std::string(64, 'A')));
  EXPECT_FALSE(is_container_id(std::string(63, 'a')));
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

}  // namespace
}  // namespace nvshare::daemon
