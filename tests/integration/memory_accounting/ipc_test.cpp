#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "interposer/gate/records.h"
#include "interposer/memory/ipc_answer.h"
#include "interposer/memory/ipc_handle.h"
#include "machine.h"
#include "wire/channel.h"

// CUDA IPC of memory that can leave the GPU. The process opens its own memory, as if it were
// another one: the two sides meet over a pair of sockets.
// Owner and asker are one process here. The sanitizer does not see that a message brings a
// descriptor, and takes its close for a race with its use by the thread that sent it.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:^close$\nrace:impl_cuMemExportToShareableHandle\n";
}
#endif

namespace nvshare::interposer {
namespace {

class IpcMemory : public Machine {
 protected:
  void SetUp() override {
    Machine::SetUp();
    account.backend = wire::Backend::Swap;
    before = used();
  }
  void TearDown() override {
    gate::g_captures = 0;
    EXPECT_TRUE(soon([&] { return used() == before; })) << used() - before;
    Machine::TearDown();
  }

  static CUipcMemHandle share(CUdeviceptr address) {
    CUipcMemHandle handle{};
    EXPECT_OK(own::cuIpcGetMemHandle(&handle, address));
    return handle;
  }
  static CUresult try_open(const CUipcMemHandle& handle, CUdeviceptr* address) {
    return own::cuIpcOpenMemHandle_v2(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  static CUdeviceptr open(const CUipcMemHandle& handle) {
    CUdeviceptr address = 0;
    EXPECT_OK(try_open(handle, &address));
    return address;
  }
  static unsigned word_at(CUdeviceptr address) {
    unsigned word = 0;
    EXPECT_OK(real<FunctionId::cuMemcpyDtoH_v2>(&word, address, sizeof word));
    return word;
  }
  static void write(CUdeviceptr address, unsigned word) {
    EXPECT_OK(real<FunctionId::cuMemcpyHtoD_v2>(address, &word, sizeof word));
  }
  static uint64_t used() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_OK(real<FunctionId::cuMemGetInfo_v2>(&free, &total));
    return total - free;
  }
  // Threads of the owner's side: each has a socket, and is gone a moment after the answer.
  static bool answers_are_over() {
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::ifstream(one.path() / "comm") >> name;
      if (name == "nvshare-ipc") return false;
    }
    return true;
  }
  static size_t descriptors() {
    EXPECT_TRUE(soon(answers_are_over));
    size_t count = 0;
    for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
      ++count;
    }
    return count;
  }
  // A thread of the owner's may still be at work for a moment.
  template <typename Condition>
  static bool soon(Condition condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  }
  template <typename Value>
  static Value ask(CUdeviceptr address, CUpointer_attribute attribute) {
    Value value{};
    EXPECT_OK(own::cuPointerGetAttribute(&value, attribute, address));
    return value;
  }

  Account& account = g_accounts[0];
  uint64_t before = 0;
};

TEST_F(IpcMemory, OpenedTwiceItHasOneAddressAndGoesWithTheLastClose) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  write(memory + kMiB, 41);
  const CUipcMemHandle handle = share(memory + 4096);
  const CUdeviceptr address = open(handle);
  EXPECT_NE(address, memory);
  EXPECT_EQ(open(handle), address);
  EXPECT_EQ(open(share(memory)), address) << "all handles of an allocation are equal";
  EXPECT_EQ(word_at(address + kMiB), 41u);
  for (int i = 0; i < 3; ++i) EXPECT_OK(own::cuIpcCloseMemHandle(address));
  EXPECT_EQ(own::cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuIpcCloseMemHandle(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(own::cuMemFree_v2(memory));
}

TEST_F(IpcMemory, ItCountsAtItsOwnerWhereItIsPinned) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  EXPECT_EQ(account.pinned, 0u);
  const CUdeviceptr address = open(share(memory));
  EXPECT_EQ(allocated(), 3 * kMiB);
  EXPECT_EQ(account.pinned, 3 * kMiB);
  EXPECT_OK(own::cuMemFree_v2(memory));
  EXPECT_EQ(allocated(), 0u);
  EXPECT_EQ(account.pinned, 0u);
  EXPECT_GT(used(), before) << "it is still open";
  EXPECT_OK(own::cuIpcCloseMemHandle(address));
}

TEST_F(IpcMemory, AnAddressIsToldAboutAsTheDriverDoesIt) {
  const CUdeviceptr small = allocate(700);
  const CUdeviceptr memory = allocate(5000);
  EXPECT_EQ(ask<unsigned>(memory, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 1u);
  const CUdeviceptr address = open(share(memory));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(own::cuMemGetAddressRange_v2(&base, &bytes, address + 4999));
  EXPECT_EQ(base, address);
  EXPECT_EQ(bytes, 5000u);
  EXPECT_EQ(ask<CUcontext>(address, CU_POINTER_ATTRIBUTE_CONTEXT), context);
  EXPECT_EQ(ask<int>(address, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
  EXPECT_EQ(ask<unsigned>(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(own::cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  CUipcMemHandle handle{};
  EXPECT_EQ(own::cuIpcGetMemHandle(&handle, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(own::cuIpcCloseMemHandle(address));
  EXPECT_OK(own::cuMemFree_v2(memory));
  EXPECT_OK(own::cuMemFree_v2(small));
  EXPECT_EQ(account.pinned, 0u);
}

TEST_F(IpcMemory, WhatTheDriverRefusesIsRefused) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  const CUipcMemHandle handle = share(memory);
  CUdeviceptr address = 0;
  EXPECT_EQ(own::cuIpcOpenMemHandle_v2(&address, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_open(handle, nullptr), CUDA_ERROR_INVALID_VALUE);
  g_neighbour.is_self = true;
  EXPECT_EQ(try_open(handle, &address), CUDA_ERROR_INVALID_CONTEXT);
  g_neighbour.is_self = false;
  EXPECT_OK(real<FunctionId::cuCtxSetCurrent>(nullptr));
  EXPECT_EQ(try_open(handle, &address), CUDA_ERROR_INVALID_CONTEXT);
  CUipcMemHandle other{};
  EXPECT_EQ(own::cuIpcGetMemHandle(&other, memory), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_OK(real<FunctionId::cuCtxSetCurrent>(context));
  EXPECT_OK(own::cuMemFree_v2(memory));
  EXPECT_EQ(try_open(handle, &address), CUDA_ERROR_INVALID_VALUE) << "it is freed";
}

// The one before protocol 1.4: nobody would find this process.
TEST_F(IpcMemory, WithAnOlderSchedulerNothingIsSharedOrPinned) {
  g_neighbour.known_to_scheduler = false;
  const CUdeviceptr memory = allocate(3 * kMiB);
  CUipcMemHandle handle{};
  EXPECT_EQ(own::cuIpcGetMemHandle(&handle, memory), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(account.pinned, 0u);
  EXPECT_OK(own::cuMemFree_v2(memory));
}

TEST_F(IpcMemory, MemoryThatIsAwayComesBackToBeShared) {
  account.full = account.brings_in = true;
  const CUdeviceptr memory = allocate(3 * kMiB);
  EXPECT_EQ(account.absent, 3 * kMiB);
  const CUdeviceptr address = open(share(memory));
  EXPECT_EQ(account.absent, 0u);
  EXPECT_EQ(account.pinned, 3 * kMiB);
  EXPECT_OK(own::cuIpcCloseMemHandle(address));
  EXPECT_OK(own::cuMemFree_v2(memory));
}

TEST_F(IpcMemory, TheEndOfAContextClosesWhatItHasOpened) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  const CUipcMemHandle handle = share(memory);
  const CUdeviceptr address = open(handle);
  const CUcontext second = new_context(0);
  const CUdeviceptr other = open(handle);
  EXPECT_NE(other, address) << "each context has its own";
  EXPECT_OK(destroy_context(second));
  EXPECT_OK(real<FunctionId::cuCtxSetCurrent>(context));
  EXPECT_EQ(own::cuIpcCloseMemHandle(other), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(own::cuIpcCloseMemHandle(address));
  EXPECT_OK(own::cuMemFree_v2(memory));
}

TEST_F(IpcMemory, WhatIsClosedDuringACaptureGoesAfterwards) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  const CUdeviceptr address = open(share(memory));
  const unsigned long waits = driver_calls(FunctionId::cuCtxSynchronize);
  gate::g_captures = 1;
  EXPECT_OK(own::cuIpcCloseMemHandle(address));
  EXPECT_EQ(driver_calls(FunctionId::cuCtxSynchronize), waits) << "that would spoil the capture";
  gate::g_captures = 0;
  EXPECT_EQ(own::cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(open(share(memory)), address) << "until then it is there";
  EXPECT_OK(own::cuIpcCloseMemHandle(address));
  EXPECT_OK(own::cuMemFree_v2(memory));
}

TEST_F(IpcMemory, AnOwnerThatHangsUpIsAskedAgain) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  const CUipcMemHandle handle = share(memory);
  int asked = 0;
  g_neighbour.reach = [&](const wire::IpcMemory& wanted) {
    const Pair pair = new_pair();
    if (++asked < 3) {
      close(pair.owner);
    } else {
      memory::ipc_answer(pair.owner, wanted);
    }
    return pair.asker;
  };
  EXPECT_OK(own::cuIpcCloseMemHandle(open(handle)));
  EXPECT_EQ(asked, 3);
  EXPECT_OK(own::cuMemFree_v2(memory));
}

// Whatever the owner says: the driver's error, and nothing is left.
TEST_F(IpcMemory, NonsenseIsRefusedAndLeavesNothing) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  const CUipcMemHandle handle = share(memory);
  const size_t open_before = descriptors();
  auto good = wire::make<wire::IpcPiece>();
  good.count = 1;
  good.bytes = 4 * kMiB;
  good.length = 3 * kMiB;
  std::vector<std::function<void(wire::IpcPiece&)>> changes{
      [](auto& piece) { piece.count = 0; },          [](auto& piece) { piece.count = 5000; },
      [](auto& piece) { piece.count = 2; },  // and no more comes
      [](auto& piece) { piece.index = 1; },          [](auto& piece) { piece.bytes = 0; },
      [](auto& piece) { piece.bytes = 2 * kMiB; },  // less than it is
      [](auto& piece) { piece.bytes = UINT64_MAX; }, [](auto& piece) { piece.offset = 4 * kMiB; },
      [](auto& piece) { piece.length = 0; },         [](auto& piece) { piece.length = 5 * kMiB; },
      [](auto& piece) { piece.header.type = 999; },  [](auto& piece) { piece.header.size = 8; },
  };
  memory::IpcHandle name;
  ASSERT_TRUE(memory::read_handle(handle, name));
  for (size_t i = 0; i < 2 * changes.size(); ++i) {
    const bool with_memory = i % 2 == 0;
    wire::IpcPiece piece = good;
    changes[i / 2](piece);
    g_neighbour.reach = [&](const wire::IpcMemory& wanted) {
      const Pair truth = new_pair();
      memory::ipc_answer(truth.owner, wanted);
      alignas(8) char buffer[wire::kMaxMessage];
      int descriptor = -1;
      EXPECT_GT(wire::receive(truth.asker, buffer, true, &descriptor), 0);
      close(truth.asker);
      const Pair pair = new_pair();
      EXPECT_EQ(wire::send(pair.owner, &piece.header, false, with_memory ? descriptor : -1), 0);
      close(descriptor);
      close(pair.owner);
      return pair.asker;
    };
    CUdeviceptr address = 0;
    EXPECT_NE(try_open(handle, &address), CUDA_SUCCESS) << i;
    EXPECT_EQ(descriptors(), open_before) << i;
    EXPECT_EQ(used() - before, 4 * kMiB) << i;
  }
  g_neighbour.reach = [](const wire::IpcMemory&) { return -1; };
  CUdeviceptr address = 0;
  EXPECT_EQ(try_open(handle, &address), CUDA_ERROR_INVALID_VALUE) << "nobody is found";
  EXPECT_OK(own::cuMemFree_v2(memory));
}

TEST_F(IpcMemory, WhenTheDriverFailsNothingIsLeft) {
  const CUdeviceptr memory = allocate(300 * kMiB);
  const CUipcMemHandle handle = share(memory);
  const size_t open_before = descriptors();
  const uint64_t used_before = used();
  const std::pair<FunctionId, void*> failing[] = {
#define FAILING(name) \
  {FunctionId::name,  \
   reinterpret_cast<void*>(&Refusing<std::remove_pointer_t<Signature<FunctionId::name>*>>::call)}
      FAILING(cuMemImportFromShareableHandle),
      FAILING(cuMemAddressReserve),
      FAILING(cuMemMap),
      FAILING(cuMemSetAccess),
      FAILING(cuMemRetainAllocationHandle),
      FAILING(cuMemExportToShareableHandle),
#undef FAILING
  };
  for (const auto& [id, function] : failing) {
    const Instead instead(id, function);
    CUdeviceptr address = 0;
    EXPECT_NE(try_open(handle, &address), CUDA_SUCCESS);
    EXPECT_EQ(descriptors(), open_before);
    EXPECT_EQ(used(), used_before);
  }
  EXPECT_OK(own::cuIpcCloseMemHandle(open(handle)));
  EXPECT_OK(own::cuMemFree_v2(memory));
}

TEST_F(IpcMemory, ManyThreadsOpenAndClose) {
  const CUdeviceptr memory = allocate(3 * kMiB);
  const CUipcMemHandle handle = share(memory);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_OK(real<FunctionId::cuCtxSetCurrent>(context));
      for (int round = 0; round < 50; ++round) {
        EXPECT_OK(own::cuIpcCloseMemHandle(open(handle)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_OK(own::cuMemFree_v2(memory));
}

}  // namespace
}  // namespace nvshare::interposer
