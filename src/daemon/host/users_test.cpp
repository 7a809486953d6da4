#include "daemon/host/users.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace nvshare::daemon {
namespace {

class Subordinates : public ::testing::Test {
 protected:
  Subordinates() {
    char name[] = "/tmp/nvshare-subuid-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~Subordinates() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/subuid"; }
  void write(const std::string& text, int seconds) {
    std::ofstream(path()) << text;
    const auto time = std::filesystem::file_time_type::clock::now() + std::chrono::seconds(seconds);
    std::filesystem::last_write_time(path(), time);
  }
  SubordinateUsers users() const {
    return SubordinateUsers(
        [](const std::string& name) {
          return name == "alice" ? std::optional<std::uint32_t>(1000) : std::nullopt;
        },
        path());
  }

  std::string folder_;
};

TEST_F(Subordinates, AreTheirUsers) {
  write("alice:100000:65536\n2000:300000:10\nnobody-here:400000:10\n", 0);
  SubordinateUsers all = users();
  EXPECT_EQ(all.user_of(100000), 1000u);
  EXPECT_EQ(all.user_of(165535), 1000u);
  EXPECT_EQ(all.user_of(165536), 165536u);
  EXPECT_EQ(all.user_of(99999), 99999u);
  EXPECT_EQ(all.user_of(300009), 2000u) << "a number for a name";
  EXPECT_EQ(all.user_of(400000), 400000u) << "a name that the machine does not know";
  EXPECT_EQ(all.user_of(0), 0u);
}

TEST_F(Subordinates, AFileThatChangesIsReadAgain) {
  SubordinateUsers all = users();
  EXPECT_EQ(all.user_of(100000), 100000u) << "there is no file";
  write("alice:100000:10\n", 0);
  EXPECT_EQ(all.user_of(100000), 1000u);
  write("alice:200000:10\n", 5);
  EXPECT_EQ(all.user_of(100000), 100000u);
  EXPECT_EQ(all.user_of(200000), 1000u);
}

TEST_F(Subordinates, LinesThatAreNoneArePassedOver) {
  write("\n#\nalice\nalice:x:5\nalice:5:x\n:::\nalice:4294967295:4294967295\nalice:7:1", 0);
  SubordinateUsers all = users();
  EXPECT_EQ(all.user_of(7), 1000u) << "also without an end of the line";
  EXPECT_EQ(all.user_of(5), 5u);
  EXPECT_EQ(all.user_of(0), 0u) << "no number wraps";
}

TEST(SystemNames, GroupsOfARealUserAndOfNone) {
  const auto own = groups_of_user(0);
  ASSERT_TRUE(own);
  EXPECT_FALSE(own->empty());
  const auto none = groups_of_user(4'000'000'000u);
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
}

}  // namespace
}  // namespace nvshare::daemon
