#include <cstdlib>
#include <vector>

#include "machine.h"

// The driver's allocations fail by themselves, somewhere in the middle.
namespace nvshare::interposer {
namespace {

class Faults : public Machine {
 protected:
  static void SetUpTestSuite() {
    setenv("NVSHARE_SOFTGPU_FAIL_ALLOCATION", "5", 1);
    Machine::SetUpTestSuite();
  }
};

TEST_F(Faults, AFailedAllocationIsNotCounted) {
  std::vector<CUdeviceptr> addresses;
  int failed = 0;
  for (int i = 0; i < 10; ++i) {
    CUdeviceptr address = 0;
    const CUresult result = own::cuMemAlloc_v2(&address, 3 * kMiB);
    if (result == CUDA_SUCCESS) {
      addresses.push_back(address);
    } else {
      EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
      ++failed;
    }
    EXPECT_EQ(allocated(), addresses.size() * 3 * kMiB);
  }
  EXPECT_EQ(failed, 1);
  for (const CUdeviceptr address : addresses) EXPECT_OK(own::cuMemFree_v2(address));
  EXPECT_EQ(allocated(), 0u);
}

}  // namespace
}  // namespace nvshare::interposer
