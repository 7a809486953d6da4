#include "softgpu/state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "softgpu/engine/schedule.h"

namespace nvshare::softgpu {
namespace {

Config own_card(const char* test) {
  Config config;
  config.card = std::string(test) + "-" + std::to_string(getpid());
  config.memory = gib(2);
  config.count = 2;
  return config;
}

TEST(CardView, ShowsAnIdleCardWhenNobodyHasItOpen) {
  CardView view(own_card("idle"));
  const CardState state = view.snapshot();
  ASSERT_EQ(state.devices.size(), 2u);
  EXPECT_EQ(state.devices[0].total, std::uint64_t{2} << 30);
  EXPECT_EQ(state.devices[0].used, 0u);
  EXPECT_EQ(state.devices[1].pci_text, "00000000:02:00.0");
  EXPECT_EQ(state.devices[0].uuid_text.size(), 40u);
  EXPECT_NE(state.devices[0].uuid_text, state.devices[1].uuid_text);
  EXPECT_EQ(view.busy_between(0, 0, 0, state.now), 0);
}

TEST(CardView, ShowsWhoUsesWhat) {
  const Config config = own_card("used");
  CardConfig card;
  for (int i = 0; i < 2; ++i) card.devices.push_back(device_config(config, i));
  auto segment = Segment::join(config.card, card);
  ASSERT_TRUE(segment) << segment.error().message;
  ASSERT_TRUE(charge_memory(**segment, 1, 4096));
  CardView view(config);
  CardState state = view.snapshot();
  EXPECT_TRUE(state.devices[0].processes.empty());
  ASSERT_EQ(state.devices[1].processes.size(), 1u);
  EXPECT_EQ(state.devices[1].processes[0].pid, getpid());
  EXPECT_EQ(state.devices[1].processes[0].memory, 4096u);
  EXPECT_EQ(state.devices[1].used, 4096u);
  segment->reset();
  state = view.snapshot();
  EXPECT_TRUE(state.devices[1].processes.empty());
  EXPECT_EQ(state.devices[1].used, 0u);
}

}  // namespace
}  // namespace nvshare::softgpu
