#pragma once

#include <gtest/gtest.h>

#include <future>

#include "integration/fake_scheduler.h"
#include "programs/driver.h"
#include "programs/job_kernels.h"

// Tests that are themselves a program under libnvshare.so, with a scheduler that does what they
// say. preloaded_main.cpp starts the test program again with the library preloaded, the software
// GPU as its driver (two devices) and a run directory of its own.
namespace nvshare::integration {

using namespace nvshare::cuda;
using programs::Driver;

// The scheduler of this process.
FakeScheduler& scheduler();
// The driver as this process finds it, that is: the library's functions.
const Driver& driver();

// How often the software GPU was asked for a function.
unsigned long calls_of(const char* symbol);
// So many calls of it to come find no memory.
void fail_calls(const char* symbol, int calls);
// Whether it does more than to answer CUDA_ERROR_NOT_SUPPORTED.
bool is_implemented(const char* symbol);

#define EXPECT_OK(call) EXPECT_EQ((call), CUDA_SUCCESS)
#define ASSERT_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

// Device 0's primary context, current, and the kernels of job_kernels.h. The gate is open.
class Preloaded : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  template <FunctionId id, typename... Arguments>
  CUresult call(Arguments... arguments) {
    return driver().call<id>(arguments...);
  }
  CUresult spin(CUstream stream, Duration length);
  CUresult spin_per_thread(Duration length);
  CUresult fill(CUstream stream, CUdeviceptr to, unsigned value, std::uint64_t words);
  CUdeviceptr allocate(std::size_t bytes);
  CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  unsigned word(CUdeviceptr address);

  CUcontext context{};
  CUfunction noop_kernel{};
  CUfunction spin_kernel{};
  CUfunction fill_kernel{};
};

// Runs it in a thread of its own with `context` current. What does not come back within a minute of
// being waited for ends the test program: nothing else can be done about a thread that hangs.
class Aside {
 public:
  Aside(CUcontext context, std::function<CUresult()> body);
  ~Aside();
  bool returned() const;
  CUresult result();

 private:
  std::future<CUresult> future_;
};

}  // namespace nvshare::integration
