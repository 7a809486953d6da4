#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "integration/world.h"

// Users with numbers that /etc/subuid gives to a user whom the machine does not know now.
namespace nvshare::integration {
namespace {

constexpr const char* kSubordinates = "/etc/subuid";

// Programs that are started from now on see `file` at `path`. False where this is not allowed.
bool show_at(const std::string& path, const std::string& file) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount(file.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0;
}

class Subordinate : public World {
 protected:
  void TearDown() override {
    if (shown_) umount(kSubordinates);
    World::TearDown();
  }
  void give_own_number_to(const std::string& user) {
    std::ofstream(file()) << user << ":" << geteuid() << ":1\n";
  }
  std::string file() const { return folder() + "/subuid"; }

  bool shown_ = false;
};

TEST_F(Subordinate, AProgramWaitsUntilItsUserIsKnown) {
  give_own_number_to("nobody-of-this-name");
  shown_ = show_at(kSubordinates, file());
  if (!shown_) GTEST_SKIP() << "the test may not mount";
  Process scheduler = start_scheduler();
  set("LD_PRELOAD", NVSHARE_LIBRARY);
  Process one = start({probe_program()});
  one.say("start");
  ASSERT_TRUE(one.wait_for("waits for the GPU, because the scheduler refuses it: /etc/subuid", 20s))
      << one.output();
  EXPECT_EQ(answers_of(one).size(), 0u) << one.output();
  // The scheduler reads a changed file at once.
  give_own_number_to("4711");
  ASSERT_TRUE(eventually([&] { return answers_of(one).size() == 1; }, 20s)) << one.output();
  EXPECT_EQ(answers_of(one)[0], "CUDA_SUCCESS");
  set("LD_PRELOAD", "");
  EXPECT_TRUE(has_tenant("user-4711"));
  EXPECT_FALSE(has_tenant("user-" + std::to_string(geteuid())));
}

}  // namespace
}  // namespace nvshare::integration
