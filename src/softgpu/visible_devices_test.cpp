#include "softgpu/visible_devices.h"

#include <gtest/gtest.h>

namespace nvshare::softgpu {
namespace {

using Devices = std::vector<int>;

const std::vector<std::string> kThree{
    "GPU-01020304-0506-0708-090a-0b0c0d0e0f10",
    "GPU-01020305-0506-0708-090a-0b0c0d0e0f10",
    "GPU-aa020304-0506-0708-090a-0b0c0d0e0f10",
};

Devices seen(std::string_view text) {
  return visible_devices(text, kThree, {0, 1, 2});
}

TEST(VisibleDevices, AreCountedByPciBusWhereTheOrderSaysSo) {
  EXPECT_EQ(counted_devices("PCI_BUS_ID", 3, 2), (Devices{0, 1, 2}));
  for (const char* order : {"", "FASTEST_FIRST", "pci_bus_id"}) {
    EXPECT_EQ(counted_devices(order, 3, 2), (Devices{2, 0, 1})) << order;
    EXPECT_EQ(counted_devices(order, 3, 0), (Devices{0, 1, 2})) << order;
  }
  EXPECT_EQ(counted_devices("", 2, 7), (Devices{0, 1})) << "there is no device 7";
}

TEST(VisibleDevices, AreNumberedAsTheyAreCounted) {
  EXPECT_EQ(visible_devices("0,2", kThree, {2, 0, 1}), (Devices{2, 1}));
  EXPECT_EQ(visible_devices(kThree[1], kThree, {2, 0, 1}), Devices{1}) << "a UUID is no number";
}

TEST(VisibleDevices, ComeInTheOrderOfTheirNumbers) {
  EXPECT_EQ(seen("2,0"), (Devices{2, 0}));
  EXPECT_EQ(seen(" 1 , 2"), (Devices{1, 2}));
  EXPECT_EQ(seen("1st"), Devices{1});
}

TEST(VisibleDevices, AreNamedByUuidAndByItsBeginning) {
  EXPECT_EQ(seen(kThree[1]), Devices{1});
  EXPECT_EQ(seen("GPU-aa,GPU-01020304"), (Devices{2, 0}));
}

TEST(VisibleDevices, EndAtAnEntryThatNamesNoDevice) {
  EXPECT_EQ(seen("1,3,0"), Devices{1});
  EXPECT_EQ(seen("0,-1,1"), Devices{0});
  EXPECT_EQ(seen("0,,1"), Devices{0});
  EXPECT_EQ(seen("0,GPU-aa"), Devices{0});
  EXPECT_EQ(seen("GPU-aa,1"), Devices{2});
  EXPECT_EQ(seen("GPU-aa,GPU-01"), Devices{2}) << "two devices begin so";
}

TEST(VisibleDevices, AreNoneWhereTheListIsEmpty) {
  EXPECT_EQ(seen(""), Devices{});
  EXPECT_EQ(seen("-1"), Devices{});
  EXPECT_EQ(seen("NoDevFiles"), Devices{});
  EXPECT_EQ(seen("99999999999999999999"), Devices{});
}

TEST(VisibleDevices, AreNoneWhereOneIsNamedTwice) {
  EXPECT_EQ(seen("0,1,0"), Devices{});
  EXPECT_EQ(seen("GPU-aa,GPU-aa02"), Devices{});
}

}  // namespace
}  // namespace nvshare::softgpu
