#include "config/memory_limit.h"

#include <gtest/gtest.h>

#include "config/exact_text.h"
#include "core/config.h"

namespace nvshare::config {
namespace {

TEST(MemoryLimit, IsASizeOrNone) {
  EXPECT_EQ(*parse_memory_limit("4Gi"), gib(4));
  EXPECT_EQ(*parse_memory_limit("0"), Bytes{});
  EXPECT_EQ(*parse_memory_limit("500B"), Bytes{500});
  EXPECT_EQ(*parse_memory_limit("1048576"), mib(1));
  EXPECT_EQ(parse_memory_limit("500").error().message,
            "'500' is a number of bytes: write 500Mi or 500Gi, or 500B if bytes are meant");
  EXPECT_EQ(parse_memory_limit("257Ti").error().message,
            "'257Ti' is more than any GPU has (256TiB at most)");
  EXPECT_FALSE(parse_memory_limit("4Q"));
}

TEST(MemoryLimit, WhatIsPrintedIsRead) {
  for (const Bytes one : {Bytes{}, Bytes{1}, Bytes{500}, kib(3), mib(1) - Bytes{1}, mib(1500),
                          gib(8) + Bytes{1}, core::kMostMemory}) {
    const auto read = parse_memory_limit(exact_text(one));
    ASSERT_TRUE(read) << exact_text(one);
    EXPECT_EQ(*read, one);
  }
}

}  // namespace
}  // namespace nvshare::config
