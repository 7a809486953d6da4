#include "daemon/state_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace nvshare::daemon {
namespace {

class StateFileTest : public testing::Test {
 protected:
  StateFileTest() {
    char name[] = "/tmp/nvshare-state-XXXXXX";
    folder = mkdtemp(name);
    path = folder + "/state";
  }
  ~StateFileTest() override { std::filesystem::remove_all(folder); }

  static State with(const std::string& turn) {
    State state;
    state.settings["turn"] = turn;
    return state;
  }
  void put(const std::string& where, const std::string& text) const {
    std::ofstream(where, std::ios::trunc) << text;
    chmod(where.c_str(), 0600);
  }
  static std::string get(const std::string& where) {
    std::ostringstream text;
    text << std::ifstream(where).rdbuf();
    return text.str();
  }
  bool is_there(const std::string& end) const {
    return std::filesystem::exists(std::filesystem::symlink_status(path + end));
  }

  std::string folder;
  std::string path;
};

TEST_F(StateFileTest, TheFirstStartHasNoneAndNoProblem) {
  const auto found = StateFile(path).load();
  EXPECT_FALSE(found.any);
  EXPECT_TRUE(found.problems.empty());
}

TEST_F(StateFileTest, WhatIsSavedIsLoaded) {
  StateFile file(path);
  ASSERT_TRUE(file.save(with("1ms"), Durable::Yes));
  ASSERT_TRUE(file.save(with("2ms"), Durable::No));
  const auto found = StateFile(path).load();
  EXPECT_TRUE(found.any);
  EXPECT_EQ(found.state, with("2ms"));
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_FALSE(is_there(".new"));
  EXPECT_FALSE(is_there(".link"));
}

TEST_F(StateFileTest, TheOldFileIsTheLastDurableOneBefore) {
  StateFile file(path);
  ASSERT_TRUE(file.save(with("1ms"), Durable::Yes));
  EXPECT_FALSE(is_there(".old"));
  ASSERT_TRUE(file.save(with("2ms"), Durable::No));
  EXPECT_EQ(*parse_state(get(path + ".old")), with("1ms"));
  ASSERT_TRUE(file.save(with("3ms"), Durable::No));
  EXPECT_EQ(*parse_state(get(path + ".old")), with("1ms")) << "the second may not be on the disk";
  ASSERT_TRUE(file.save(with("4ms"), Durable::Yes));
  ASSERT_TRUE(file.save(with("5ms"), Durable::Yes));
  EXPECT_EQ(*parse_state(get(path + ".old")), with("4ms"));
}

TEST_F(StateFileTest, TornAnywhereItIsSetAsideForTheOldOne) {
  const std::string whole = to_text(with("2ms"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(path + ".old", to_text(with("1ms")));
    put(path, whole.substr(0, length));
    const auto found = StateFile(path).load();
    ASSERT_TRUE(found.any) << length;
    ASSERT_EQ(found.state, with("1ms"));
    ASSERT_EQ(found.problems, std::vector<std::string>{path + ": is torn or damaged"});
    ASSERT_EQ(get(path + ".bad"), whole.substr(0, length));
    ASSERT_FALSE(is_there(""));
  }
}

TEST_F(StateFileTest, WithoutAGoodOneItStartsAfresh) {
  put(path, "nonsense");
  put(path + ".old", "nonsense");
  const auto found = StateFile(path).load();
  EXPECT_FALSE(found.any);
  EXPECT_EQ(found.state, State{});
  EXPECT_EQ(found.problems.size(), 2u);
  EXPECT_TRUE(StateFile(path).save(with("1ms"), Durable::Yes));
  EXPECT_TRUE(StateFile(path).load().any);
}

TEST_F(StateFileTest, ALaterVersionIsSetAside) {
  std::string later = to_text(with("1ms"));
  later.replace(later.find(" 1 "), 3, " 7 ");
  put(path, later);
  const auto found = StateFile(path).load();
  EXPECT_FALSE(found.any);
  EXPECT_EQ(get(path + ".bad"), later);
}

TEST_F(StateFileTest, AForeignFileIsSetAside) {
  const std::string text = to_text(with("1ms"));
  const auto expect_set_aside = [&](const std::string& why) {
    const auto found = StateFile(path).load();
    EXPECT_FALSE(found.any) << why;
    EXPECT_EQ(found.problems, std::vector<std::string>{path + ": " + why});
    EXPECT_FALSE(is_there(""));
    EXPECT_TRUE(is_there(".bad"));
    std::filesystem::remove_all(path + ".bad");
  };
  put(folder + "/elsewhere", text);
  ASSERT_EQ(symlink((folder + "/elsewhere").c_str(), path.c_str()), 0);
  expect_set_aside("is a link");
  put(path, text);
  chmod(path.c_str(), 0620);
  expect_set_aside("can be written by others");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_set_aside("is not a file");
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  expect_set_aside("is not a file");
  if (geteuid() != 0) return;  // nobody else can give files away
  put(path, text);
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  expect_set_aside("belongs to another user");
}

TEST_F(StateFileTest, AFolderThatCannotBeWrittenIsAnError) {
  StateFile nowhere(folder + "/a/b/state");
  const auto saved = nowhere.save(with("1ms"), Durable::Yes);
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().message.find("No such file"), std::string::npos) << saved.error().message;
  EXPECT_TRUE(StateFile(folder + "/a/state").save(with("1ms"), Durable::Yes)) << "its own is made";
}

// The limit on a file's size stands for a full disk.
TEST_F(StateFileTest, AFullDiskLeavesTheFileThatIsThere) {
  StateFile file(path);
  ASSERT_TRUE(file.save(with("1ms"), Durable::Yes));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto saved = file.save(with("2ms"), Durable::Yes);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(saved);
  EXPECT_EQ(StateFile(path).load().state, with("1ms"));
  EXPECT_FALSE(is_there(".new"));
  EXPECT_TRUE(file.save(with("3ms"), Durable::Yes)) << "there is room again";
}

}  // namespace
}  // namespace nvshare::daemon
