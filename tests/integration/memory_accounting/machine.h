#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "interposer/catch/bodies.h"
#include "interposer/link/ipc.h"
#include "interposer/link/link.h"
#include "interposer/link/look.h"
#include "interposer/memory/count.h"
#include "interposer/memory/memory.h"

// The interposer's bodies for memory, on the software GPU's driver and with a scheduler of a few
// numbers: what is allowed on a device, what is allocated there, and where it is.
namespace nvshare::interposer {

#define EXPECT_OK(call) EXPECT_EQ((call), CUDA_SUCCESS)
#define ASSERT_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr int kDevices = 2;

struct Account {
  std::atomic<uint64_t> limit{0};  // 0: none
  std::atomic<uint64_t> allocated{0};
  std::atomic<uint64_t> pinned{0};  // of these, never to leave the GPU
  std::atomic<uint64_t> absent{0};  // of these, not on the GPU
  std::atomic<uint64_t> requests{0};
  std::atomic<bool> full{false};       // there is no room for what can wait
  std::atomic<bool> brings_in{false};  // what is away is brought in before anybody passes this gate
  std::atomic<wire::Backend> backend{wire::Backend::Native};
};
extern Account g_accounts[kDevices];

// Other processes that share memory: the owner is this process itself, unless a test stands in for
// it.
struct Neighbour {
  bool known_to_scheduler = true;
  bool is_self = false;
  std::function<int(const wire::IpcMemory& memory)> reach;  // a socket to the owner, or -1
};
extern Neighbour g_neighbour;
// The two ends of a connection.
struct Pair {
  int asker = -1;
  int owner = -1;
};
Pair new_pair();

// How often the driver's function was called.
unsigned long driver_calls(FunctionId id);

// The driver's function is another one for a while.
class Instead {
 public:
  Instead(FunctionId id, void* function)
      : place_(catching::g_driver[static_cast<unsigned>(id)]), before_(place_) {
    place_ = function;
  }
  ~Instead() { place_ = before_; }
  Instead(const Instead&) = delete;
  Instead& operator=(const Instead&) = delete;

 private:
  void*& place_;
  void* before_;
};

// A function of the table that only refuses.
template <typename Function>
struct Refusing;
template <typename... Arguments>
struct Refusing<CUresult(Arguments...)> {
  static CUresult call(Arguments...) { return CUDA_ERROR_OUT_OF_MEMORY; }
};

// A context on device 0, nothing allocated, no limit; at the end nothing is counted any more.
class Machine : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  void SetUp() override;
  void TearDown() override;

  static uint64_t allocated(int device = 0) { return g_accounts[device].allocated; }
  static void limit(uint64_t bytes, int device = 0) { g_accounts[device].limit = bytes; }

  static CUcontext new_context(CUdevice device);
  // As the interposer does it.
  static CUresult destroy_context(CUcontext gone);
  static CUdeviceptr allocate(uint64_t bytes);
  static CUstream new_stream();

  CUcontext context{};
};

}  // namespace nvshare::interposer
