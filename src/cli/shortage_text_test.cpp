#include "cli/shortage_text.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace nvshare::cli {
namespace {

wire::Shortage shortage(Bytes asked, Bytes used, Bytes limit) {
  auto message = wire::make<wire::Shortage>();
  message.asked = static_cast<std::uint64_t>(asked.count);
  message.used = static_cast<std::uint64_t>(used.count);
  message.limit = static_cast<std::uint64_t>(limit.count);
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

TEST(ShortageText, WhatIsProposedIsEnoughAndEasyToType) {
  const auto proposed = [](Bytes asked, Bytes used, Bytes limit) {
    const std::string text = shortage_text("a", shortage(asked, used, limit));
    const std::size_t at = text.find("--mem ") + 6;
    return text.substr(at, text.find(',', at) - at);
  };
  EXPECT_EQ(proposed(mib(58), mib(200), mib(256)), "384Mi");
  EXPECT_EQ(proposed(gib(1), gib(4), gib(4)), "5Gi");
  EXPECT_EQ(proposed(Bytes{1}, gib(4), gib(4)), "5Gi");
  EXPECT_EQ(proposed(mib(1), gib(5), gib(4)), "6Gi") << "the limit was lowered";
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
  message.asked = message.used = UINT64_MAX;
  EXPECT_NE(shortage_text("a", message).find("512TiB over its limit of 4GiB"), std::string::npos)
      << shortage_text("a", message);
}

}  // namespace
}  // namespace nvshare::cli
