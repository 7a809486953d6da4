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
  SubordinateUsers users() {
    return SubordinateUsers(
        [this](const std::string& name) {
          ++asked_;
          return name == "alice" && !away_ ? std::optional<std::uint32_t>(1000) : std::nullopt;
        },
        path(), [this] { return now_; });
  }
  static std::uint32_t user(SubordinateUsers& all, std::uint32_t uid) {
    const auto user = all.user_of(uid);
    return user ? *user : UINT32_MAX;
  }

  std::string folder_;
  bool away_ = false;  // the directory of users
  int asked_ = 0;
  SubordinateUsers::Clock::time_point now_{};
};

TEST_F(Subordinates, AreTheirUsers) {
  write("alice:100000:65536\n2000:300000:10\nnobody-here:400000:10\n", 0);
  SubordinateUsers all = users();
  EXPECT_EQ(user(all, 100000), 1000u);
  EXPECT_EQ(user(all, 165535), 1000u);
  EXPECT_EQ(user(all, 165536), 165536u);
  EXPECT_EQ(user(all, 99999), 99999u);
  EXPECT_EQ(user(all, 300009), 2000u) << "a number for a name";
  EXPECT_EQ(user(all, 0), 0u);
}

// A number of its own would be outside of the user's limits.
TEST_F(Subordinates, AreNoUsersWhileTheirUserIsNotKnown) {
  write("alice:100000:65536\n", 0);
  away_ = true;
  SubordinateUsers all = users();
  const auto refused = all.user_of(100001);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, path() +
                                         " gives the user number 100001 to 'alice', which the "
                                         "machine does not know");
  away_ = false;
  EXPECT_FALSE(all.user_of(100002)) << "asked a moment ago";
  EXPECT_EQ(asked_, 1);
  now_ += SubordinateUsers::kAskAgain;
  EXPECT_EQ(user(all, 100001), 1000u);
  EXPECT_EQ(user(all, 100002), 1000u);
  EXPECT_EQ(asked_, 2) << "an answer lasts";
}

TEST_F(Subordinates, KeepTheUserThatWasKnownLast) {
  write("alice:100000:10\n", 0);
  SubordinateUsers all = users();
  EXPECT_EQ(user(all, 100000), 1000u);
  away_ = true;
  write("alice:200000:10\n", 5);
  EXPECT_EQ(user(all, 200000), 1000u);
}

TEST_F(Subordinates, AFileThatChangesIsReadAgain) {
  SubordinateUsers all = users();
  EXPECT_EQ(user(all, 100000), 100000u) << "there is no file";
  write("alice:100000:10\n", 0);
  EXPECT_EQ(user(all, 100000), 1000u);
  write("alice:200000:10\n", 5);
  EXPECT_EQ(user(all, 100000), 100000u);
  EXPECT_EQ(user(all, 200000), 1000u);
}

TEST_F(Subordinates, LinesThatAreNoneArePassedOver) {
  write("\n#\nalice\nalice:x:5\nalice:5:x\n:::\nalice:4294967295:4294967295\nalice:7:1", 0);
  SubordinateUsers all = users();
  EXPECT_EQ(user(all, 7), 1000u) << "also without an end of the line";
  EXPECT_EQ(user(all, 5), 5u);
  EXPECT_EQ(user(all, 0), 0u) << "no number wraps";
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
