#include <fcntl.h>
#include <gtest/gtest.h>

#include "softgpu/child.h"
#include "softgpu/fixture.h"

// Which devices a program sees: CUDA_VISIBLE_DEVICES, as the real driver reads it.
namespace nvshare::softgpu {
namespace {

constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES=";

class Visible : public ::testing::Test {
 protected:
  void SetUp() override {
    use_own_card();
    setenv("NVSHARE_SOFTGPU_MEMORY", "1Gi", 1);
    setenv("NVSHARE_SOFTGPU_COUNT", "3", 1);
  }
  static Child seeing(const std::string& value) { return Child({"see"}, {kVariable + value}); }
  static std::string seen(const std::string& value) { return seeing(value).line(); }
  // A device's UUID, as a program that sees all of them is told.
  static std::string uuid(int device) {
    CUuuid bytes{};
    EXPECT_OK(cuInit(0));
    EXPECT_OK(cuDeviceGetUuid_v2(&bytes, device));
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
      char two[8];
      std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(bytes.bytes[i]));
      if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      text += two;
    }
    return text;
  }
};

TEST_F(Visible, AllDevicesAreWithoutTheVariable) {
  EXPECT_EQ(Child({"see"}).line(), "sees 0000:01:00.0 0000:02:00.0 0000:03:00.0");
}

TEST_F(Visible, NumbersChooseAndOrder) {
  EXPECT_EQ(seen("2,0"), "sees 0000:03:00.0 0000:01:00.0");
  EXPECT_EQ(seen("1,7,0"), "sees 0000:02:00.0");
}

TEST_F(Visible, NumbersCountTheFastestFirstUnlessTheOrderIsByBus) {
  std::vector<std::string> variables{"NVSHARE_SOFTGPU_FASTEST=2"};
  EXPECT_EQ(Child({"see"}, variables).line(), "sees 0000:03:00.0 0000:01:00.0 0000:02:00.0");
  variables.push_back("CUDA_VISIBLE_DEVICES=0,1");
  EXPECT_EQ(Child({"see"}, variables).line(), "sees 0000:03:00.0 0000:01:00.0");
  variables.push_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  EXPECT_EQ(Child({"see"}, variables).line(), "sees 0000:01:00.0 0000:02:00.0");
}

TEST_F(Visible, UuidsAndTheirBeginningsChoose) {
  EXPECT_EQ(seen(uuid(1)), "sees 0000:02:00.0");
  EXPECT_EQ(seen(uuid(2).substr(0, 12) + "," + uuid(0)), "sees 0000:03:00.0 0000:01:00.0");
  EXPECT_EQ(seen(uuid(2) + ",GPU-none," + uuid(0)), "sees 0000:03:00.0");
}

TEST_F(Visible, WithoutADeviceThereIsNoDriver) {
  const std::string none = "init " + std::to_string(CUDA_ERROR_NO_DEVICE);
  for (const char* value : {"", "-1", "7", "0,0", "GPU-none"}) {
    EXPECT_EQ(seen(value), none) << value;
  }
}

// Memory, work and processes are on the device that was chosen, whatever the program calls it.
TEST_F(Visible, MemoryIsTakenFromTheChosenDevice) {
  Child holder = seeing("2,1");
  ASSERT_EQ(holder.line(), "sees 0000:03:00.0 0000:02:00.0");
  // The module's table takes 2 MiB on each device that the program has a context on.
  EXPECT_EQ(Child({"free"}).line(), "free 1024 958 1022");
}

}  // namespace
}  // namespace nvshare::softgpu
