#include "base/run_name.h"

#include <gtest/gtest.h>

#include <string>

namespace nvshare {
namespace {

TEST(RunName, IsChecked) {
  for (const std::string& good : {std::string("train-1.b_C"), std::string(63, 'a'),
                                  std::string("user"), std::string("run-user-1000")}) {
    EXPECT_TRUE(check_run_name(good)) << good;
  }
  for (const std::string& bad :
       {std::string(), std::string(64, 'a'), std::string("two words"), std::string("a/b"),
        std::string("new\nline"), std::string("é"), std::string("user-1000"),
        std::string("container-ab"), std::string("--"), std::string("-h")}) {
    EXPECT_FALSE(check_run_name(bad)) << bad;
  }
  EXPECT_EQ(check_run_name("container-ab").error().message,
            "names that begin with 'container-' are the scheduler's own: "
            "give another with --name");
}

}  // namespace
}  // namespace nvshare
