#include "daemon/serve/giving_way.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/unique_fd.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

namespace fs = std::filesystem;

class GivingWay : public ::testing::Test {
 protected:
  GivingWay() {
    char name[] = "/tmp/nvshare-way-XXXXXX";
    folder_ = ::mkdtemp(name);
    for (const std::string& one : {own(), other()}) fs::create_directory(one);
  }
  ~GivingWay() override { fs::remove_all(folder_); }

  std::string own() const { return folder_ + "/own"; }
  std::string other() const { return folder_ + "/other"; }
  static UniqueFd listen_in(const std::string& directory) {
    return UniqueFd(wire::listen_at((directory + "/" + wire::kProgramSocket).c_str(), 0600));
  }

  std::string folder_;
};

TEST_F(GivingWay, OnlyASchedulerThatListensAnswers) {
  EXPECT_FALSE(answers_in(other()));
  EXPECT_FALSE(answers_in(folder_ + "/nowhere"));
  EXPECT_FALSE(answers_in("/" + std::string(200, 'x')));
  {
    const UniqueFd listening = listen_in(other());
    ASSERT_TRUE(listening);
    EXPECT_TRUE(answers_in(other()));
  }
  EXPECT_FALSE(answers_in(other())) << "its socket is still there";
}

TEST_F(GivingWay, AConnectionToTheOldPathReachesTheOtherScheduler) {
  const UniqueFd listening = listen_in(own());
  const UniqueFd others = listen_in(other());
  ASSERT_TRUE(link_sockets(own(), other()));
  EXPECT_TRUE(answers_in(own()));
  EXPECT_EQ(fs::read_symlink(own() + "/control.sock"), other() + "/control.sock");
  ASSERT_TRUE(link_sockets(own(), other())) << "and once more";
  EXPECT_EQ(std::distance(fs::directory_iterator(own()), fs::directory_iterator()), 2);
}

TEST_F(GivingWay, ASchedulerThatStartsLaterReplacesTheLinks) {
  ASSERT_TRUE(link_sockets(own(), other()));
  {
    const UniqueFd listening = listen_in(own());
    ASSERT_TRUE(listening) << "a link to nowhere";
    EXPECT_TRUE(answers_in(own()));
  }
  UniqueFd others = listen_in(other());
  ASSERT_TRUE(link_sockets(own(), other()));
  EXPECT_FALSE(listen_in(own())) << "the other scheduler answers there";
  others.reset();
  const UniqueFd listening = listen_in(own());
  ASSERT_TRUE(listening) << "a link to a socket that nobody listens on";
  EXPECT_TRUE(fs::is_socket(other() + "/" + wire::kProgramSocket)) << "which is not removed";
}

TEST_F(GivingWay, AFolderThatCannotBeWrittenToKeepsItsSockets) {
  EXPECT_FALSE(link_sockets(folder_ + "/nowhere", other()));
}

}  // namespace
}  // namespace nvshare::daemon
