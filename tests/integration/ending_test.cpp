#include <unistd.h>

#include <cstdlib>

#include "integration/preloaded.h"
#include "integration/process.h"

// A program that has begun to end and is not gone yet: its main() has returned, and so has what it
// registered for then, but for the last of it.
namespace nvshare::integration {
namespace {

class LastMoments : public ::testing::Test {
 protected:
  LastMoments() : program_({NVSHARE_PROBE}, environment(), folder() + "/ending.log") {}
  void SetUp() override {
    scheduler().open();
    ASSERT_EQ(ask("linger"), "yes");
    ASSERT_EQ(ask("start"), "CUDA_SUCCESS");
  }
  void TearDown() override {
    program_.say("end");
    const auto ended = program_.wait(20s);
    EXPECT_TRUE(ended && ended->code == 0) << program_.output();
    scheduler().open();
    EXPECT_EQ(scheduler().complaints(), "");
  }
  // Tells it a line, and waits for the answer.
  std::string ask(const std::string& line) {
    const std::size_t before = program_.output().size();
    program_.say(line);
    eventually([&] { return program_.output().find('\n', before) != std::string::npos; }, 20s);
    const std::string all = program_.output().substr(before);
    return all.substr(0, all.find('\n'));
  }
  // It ends, up to where it lingers.
  void end() {
    program_.say("end");
    ASSERT_EQ(ask("here"), "unknown: here");
  }
  void end_behind(const std::string& line) {
    ASSERT_EQ(ask(line + "\nend"), "CUDA_SUCCESS");
    ASSERT_EQ(ask("here"), "unknown: here");
  }
  bool is_there() { return program_.running(); }

 private:
  static std::string folder() { return std::getenv("NVSHARE_RUN_DIR"); }
  static Environment environment() {
    Environment all;
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string text = *one;
      all[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    all["LD_PRELOAD"] = NVSHARE_LIBRARY;
    return all;
  }

  Process program_;
};

// Nobody would give it back before the kernel has taken the process apart.
TEST_F(LastMoments, AGrantThatComesThenGoesBackAtOnce) {
  ASSERT_TRUE(scheduler().close());
  ASSERT_EQ(ask("aside 1ms"), "aside");
  ASSERT_TRUE(scheduler().wait_for_waiting(1));
  end();
  scheduler().open();
  EXPECT_TRUE(
      eventually([] { return scheduler().waiting() == 0 && scheduler().holding() == 0; }, 5s));
  EXPECT_TRUE(is_there());
}

// Nor the one that it holds: it had something to do until a moment ago.
TEST_F(LastMoments, AGrantThatIsHeldThenGoesBackAtOnce) {
  end_behind("launch 5ms");
  EXPECT_TRUE(eventually([] { return scheduler().holding() == 0; }, 5s));
  EXPECT_TRUE(is_there());
}

// But not while its work is still on the GPU.
TEST_F(LastMoments, AGrantWhoseWorkIsNotDoneIsKept) {
  end_behind("launch 3s");
  EXPECT_FALSE(eventually([] { return scheduler().holding() == 0; }, 500ms));
  EXPECT_EQ(ask("spin 1ms"), "CUDA_ERROR_DEINITIALIZED") << "nor does anybody wait at the gate";
}

// Nor would a grant that is asked for then be of use: the driver is gone, or about to go.
TEST_F(LastMoments, WhoWantsToWorkThenIsRefusedAndDoesNotWait) {
  ASSERT_EQ(ask("spin 1ms"), "CUDA_SUCCESS");
  ASSERT_TRUE(eventually([] { return scheduler().holding() == 0; }, 20s));
  ASSERT_TRUE(scheduler().close());
  end();
  EXPECT_EQ(ask("spin 1ms"), "CUDA_ERROR_DEINITIALIZED");
  EXPECT_EQ(scheduler().waiting(), 0u) << "it asks for nothing";
}

}  // namespace
}  // namespace nvshare::integration
