#include "daemon/serve/giving_way.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

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

  static bool connects(const std::string& directory) {
    return UniqueFd(wire::connect_to((directory + "/" + wire::kProgramSocket).c_str())).get() >= 0;
  }

  std::string folder_;
};

// Answers the next question at a socket; with nothing when there is no answer.
void answer_one(const UniqueFd& listening, const wire::Header* answer) {
  pollfd asked{listening.get(), POLLIN, 0};
  ASSERT_EQ(poll(&asked, 1, 5'000), 1) << "nobody asks";
  const UniqueFd asker(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  alignas(8) char question[wire::kMaxMessage];
  ASSERT_GT(wire::receive(asker.get(), question, true), 0);
  const auto* look = wire::as<wire::Look>(wire::look_at(question, sizeof(wire::Look)));
  ASSERT_NE(look, nullptr);
  EXPECT_EQ(look->gpu[0], 7);
  if (answer != nullptr) wire::send(asker.get(), answer, true);
}

TEST_F(GivingWay, OnlyASchedulerThatListensAnswers) {
  const Uuid gpu{7};
  EXPECT_FALSE(answers_in(other(), gpu));
  EXPECT_FALSE(answers_in(folder_ + "/nowhere", gpu));
  EXPECT_FALSE(answers_in("/" + std::string(200, 'x'), gpu));
  {
    const UniqueFd listening = listen_in(other());
    ASSERT_TRUE(listening);
    const auto view = wire::make<wire::View>();
    std::thread scheduler([&] { answer_one(listening, &view.header); });
    EXPECT_TRUE(answers_in(other(), gpu));
    scheduler.join();
  }
  EXPECT_FALSE(answers_in(other(), gpu)) << "its socket is still there";
}

TEST_F(GivingWay, ASchedulerThatHangsOrRefusesDoesNotAnswer) {
  const Uuid gpu{7};
  const UniqueFd listening = listen_in(other());
  ASSERT_TRUE(listening);
  EXPECT_FALSE(answers_in(other(), gpu)) << "nobody reads";
  { const UniqueFd first(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  const auto refused = wire::make<wire::Refused>();
  std::thread scheduler([&] { answer_one(listening, &refused.header); });
  EXPECT_FALSE(answers_in(other(), gpu));
  scheduler.join();
}

TEST_F(GivingWay, AConnectionToTheOldPathReachesTheOtherScheduler) {
  const UniqueFd listening = listen_in(own());
  const UniqueFd others = listen_in(other());
  ASSERT_TRUE(link_sockets(own(), other()));
  EXPECT_TRUE(connects(own()));
  EXPECT_EQ(fs::read_symlink(own() + "/control.sock"), other() + "/control.sock");
  ASSERT_TRUE(link_sockets(own(), other())) << "and once more";
  EXPECT_EQ(fs::read_symlink(own() + "/api.sock"), other() + "/api.sock");
  EXPECT_EQ(std::distance(fs::directory_iterator(own()), fs::directory_iterator()), 3);
}

TEST_F(GivingWay, ASchedulerThatStartsLaterReplacesTheLinks) {
  ASSERT_TRUE(link_sockets(own(), other()));
  {
    const UniqueFd listening = listen_in(own());
    ASSERT_TRUE(listening) << "a link to nowhere";
    EXPECT_TRUE(connects(own()));
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
