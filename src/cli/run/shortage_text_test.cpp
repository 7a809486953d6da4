#include "cli/run/shortage_text.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "core/config.h"

namespace nvshare::cli {
namespace {

wire::Shortage shortage(Bytes asked, Bytes used, Bytes limit, Bytes gpu = gib(16)) {
  auto message = wire::make<wire::Shortage>();
  message.asked = static_cast<std::uint64_t>(asked.count);
  message.used = static_cast<std::uint64_t>(used.count);
  message.limit = static_cast<std::uint64_t>(limit.count);
  message.gpu = static_cast<std::uint64_t>(gpu.count);
  wire::put_text(message.reason, sizeof message.reason, "there is no room");
  return message;
}

TEST(ShortageText, SaysWhatTheLimitIsAndHowToRaiseIt) {
  EXPECT_EQ(
      shortage_text("train", shortage(mib(1536), mib(3277), gib(4))),
      "train asked for 1.5GiB more GPU memory: with the 3.2GiB it has that is 717MiB over its "
      "limit of 4GiB. Raise it: nvshare limit train --mem 5Gi, or start it with that --mem");
}

TEST(ShortageText, IsRightAlsoWhereRoundedNumbersWouldFit) {
  const std::string text = shortage_text("a", shortage(gib(1), gib(3) + kib(2), gib(4)));
  EXPECT_NE(text.find("with the 3GiB it has that is 2KiB over its limit of 4GiB"), text.npos)
      << text;
  EXPECT_NE(text.find("--mem 5Gi,"), text.npos) << text;
}

// The limit that is proposed; empty: none is.
std::string proposed(Bytes asked, Bytes used, Bytes limit, Bytes gpu = gib(16)) {
  const std::string text = shortage_text("a", shortage(asked, used, limit, gpu));
  const std::size_t at = text.find("--mem ");
  if (at == text.npos) return "";
  return text.substr(at + 6, text.find(',', at) - at - 6);
}

TEST(ShortageText, WhatIsProposedIsEnoughAndEasyToType) {
  EXPECT_EQ(proposed(mib(58), mib(200), mib(256)), "384Mi");
  EXPECT_EQ(proposed(gib(1), gib(4), gib(4)), "5Gi");
  EXPECT_EQ(proposed(Bytes{1}, gib(4), gib(4)), "5Gi");
  EXPECT_EQ(proposed(mib(1), gib(5), gib(4)), "6Gi") << "the limit was lowered";
}

TEST(ShortageText, ProposesNoMoreThanTheGpuHas) {
  EXPECT_EQ(proposed(gib(8), gib(8), gib(8)), "16Gi");
  EXPECT_EQ(proposed(mib(7600), gib(8), gib(8), mib(16276)), "16276Mi") << "not 16Gi";
  EXPECT_EQ(proposed(mib(8084), gib(8), gib(8), mib(16276)), "16276Mi") << "all of it";
  EXPECT_EQ(proposed(mib(8084) + Bytes{1}, gib(8), gib(8), mib(16276)), "");
  EXPECT_EQ(shortage_text("train", shortage(gib(20), gib(4), gib(8))),
            "train asked for 20GiB more GPU memory: with the 4GiB it has that is 16GiB over its "
            "limit of 8GiB, and the GPU has 16GiB");
}

// To one that may have more than the GPU has.
TEST(ShortageText, ProposesNoMoreThanALimitCanBe) {
  EXPECT_EQ(proposed(gib(20), gib(8), gib(8), Bytes{}), "28Gi");
  EXPECT_EQ(proposed(core::kMostMemory - gib(8), gib(8), gib(8), Bytes{}), "262144Gi");
  EXPECT_EQ(proposed(core::kMostMemory, Bytes{1}, gib(8), Bytes{}), "");
  const std::string text = shortage_text("a", shortage(core::kMostMemory, gib(4), gib(8), Bytes{}));
  EXPECT_NE(text.find("over its limit of 8GiB, and no limit is above 256TiB"), text.npos) << text;
}

// Of a user, or of the run around the run.
TEST(ShortageText, TheLimitOfALevelAboveIsNamed) {
  auto message = shortage(mib(1536), gib(1), Bytes{});
  message.level_used = static_cast<std::uint64_t>(mib(3277).count);
  message.level_limit = static_cast<std::uint64_t>(gib(4).count);
  wire::put_text(message.level, sizeof message.level, "user-1000");
  EXPECT_EQ(shortage_text("train", message),
            "train asked for 1.5GiB more GPU memory: with the 3.2GiB that user-1000 has that is "
            "717MiB over the limit of user-1000, which is 4GiB. Raise it: nvshare limit user-1000 "
            "--mem 5Gi");
  message.level_used = message.level_limit = static_cast<std::uint64_t>(gib(16).count);
  EXPECT_NE(shortage_text("train", message).find("nvshare limit user-1000 --mem 18Gi"),
            std::string::npos)
      << "tenants of a user may have more than the GPU together";
  message.used = static_cast<std::uint64_t>(gib(15).count);
  EXPECT_NE(shortage_text("train", message).find("which is 16GiB, and the GPU has 16GiB"),
            std::string::npos)
      << "no limit helps";
}

TEST(ShortageText, AnotherReasonIsGivenAsItIs) {
  const std::string text =
      "a asked for 1GiB more GPU memory and was refused: there is no room. See who has how much: "
      "nvshare status";
  EXPECT_EQ(shortage_text("a", shortage(gib(1), gib(3), Bytes{})), text);
  EXPECT_EQ(shortage_text("a", shortage(gib(1), gib(3), gib(4))), text);
}

TEST(ShortageText, BelievesNoNumber) {
  auto message = shortage({}, {}, gib(4));
  message.asked = message.used = message.gpu = UINT64_MAX;
  EXPECT_NE(
      shortage_text("a", message).find("512TiB over its limit of 4GiB, and the GPU has 256TiB"),
      std::string::npos)
      << shortage_text("a", message);
}

}  // namespace
}  // namespace nvshare::cli
