#include "base/uuid.h"

#include <gtest/gtest.h>

namespace nvshare {
namespace {

TEST(Uuid, IsReadAsItIsWritten) {
  const std::string text = "GPU-07668105-c02a-992f-8a7b-38d1a79e196c";
  ASSERT_TRUE(parse_uuid(text));
  EXPECT_EQ(to_text(*parse_uuid(text)), text);
  EXPECT_FALSE(parse_uuid("MIG-07668105-c02a-992f-8a7b-38d1a79e196c"));
  EXPECT_FALSE(parse_uuid("GPU-07668105"));
  EXPECT_FALSE(parse_uuid(text + "0"));
  EXPECT_FALSE(parse_uuid("GPU-0766810g-c02a-992f-8a7b-38d1a79e196c"));
}

}  // namespace
}  // namespace nvshare
