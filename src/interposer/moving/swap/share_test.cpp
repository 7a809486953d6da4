#include "interposer/moving/swap/share.h"

#include <unistd.h>

#include <atomic>
#include <thread>

#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/swap_machine.h"

namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t kSecret = 4711;

class Share : public SwapMachine {
 protected:
  SwapPinned share(CUdeviceptr address, uint64_t secret = kSecret) {
    last_share = {};
    return swap_share(address, secret, &last_share);
  }

  // The whole allocation, mapped a second time from its descriptors, as another process does it.
  std::vector<unsigned char> read_exported(CUdeviceptr base) {
    std::vector<unsigned char> bytes;
    SwapPiece piece;
    for (uint32_t index = 0; index == 0 || index < piece.count; ++index) {
      piece = swap_export(base, kSecret, index);
      EXPECT_GE(piece.descriptor, 0);
      if (piece.descriptor < 0) return bytes;
      append(bytes, piece);
      close(piece.descriptor);
    }
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<long>(piece.offset));
    bytes.resize(piece.length);
    return bytes;
  }

  SwapShare last_share;

 private:
  static void append(std::vector<unsigned char>& bytes, const SwapPiece& piece) {
    CUmemGenericAllocationHandle handle = 0;
    void* number = reinterpret_cast<void*>(static_cast<intptr_t>(piece.descriptor));
    ASSERT_OK(real<FunctionId::cuMemImportFromShareableHandle>(
        &handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr address = 0;
    ASSERT_OK(real<FunctionId::cuMemAddressReserve>(&address, piece.bytes, 0, 0, 0));
    ASSERT_OK(real<FunctionId::cuMemMap>(address, piece.bytes, 0, handle, 0));
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_OK(real<FunctionId::cuMemSetAccess>(address, piece.bytes, &access, 1));
    const size_t before = bytes.size();
    bytes.resize(before + piece.bytes);
    ASSERT_OK(real<FunctionId::cuMemcpyDtoH_v2>(&bytes[before], address, piece.bytes));
    ASSERT_OK(real<FunctionId::cuMemUnmap>(address, piece.bytes));
    ASSERT_OK(real<FunctionId::cuMemRelease>(handle));
    ASSERT_OK(real<FunctionId::cuMemAddressFree>(address, piece.bytes));
  }
};

TEST_F(Share, WhatIsExportedIsTheAllocation) {
  for (const uint64_t bytes : {uint64_t{1000}, kMiB + 1, 300 * kMiB}) {
    allocate(700, 1);  // so that a small one is not the first of its chunk
    const CUdeviceptr address = allocate(bytes, bytes);
    ASSERT_EQ(share(address).what, SwapPinned::kPinned);
    EXPECT_EQ(last_share.base, address);
    EXPECT_EQ(last_share.bytes, bytes);
    EXPECT_EQ(read_exported(address), pattern(bytes, bytes)) << bytes;
  }
}

TEST_F(Share, SharedMemoryStaysOnTheCardAndTheRestMoves) {
  const CUdeviceptr shared = allocate(300 * kMiB, 1);
  allocate(20 * kMiB, 2);
  const SwapPinned pinned = share(shared);
  EXPECT_EQ(pinned.bytes, 300 * kMiB);
  EXPECT_EQ(pinned.gate, &gate);
  EXPECT_EQ(share(shared + 4096).bytes, 0u) << "pinned once";
  EXPECT_EQ(last_share.base, shared);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 20 * kMiB);
  EXPECT_TRUE(swap_range_of(shared).resident);
  EXPECT_TRUE(in_all());
  check_contents();
  check_sums();
}

TEST_F(Share, FreedSharedMemoryIsToldAsPinned) {
  const CUdeviceptr shared = allocate(3 * kMiB, 1);
  const CUdeviceptr other = allocate(3 * kMiB, 2);
  ASSERT_EQ(share(shared).what, SwapPinned::kPinned);
  known.erase(shared);
  known.erase(other);
  EXPECT_EQ(swap_free(shared).pinned, 3 * kMiB);
  EXPECT_EQ(swap_free(other).pinned, 0u);
  told_resident = 0;
}

TEST_F(Share, ASmallAllocationPinsItsChunkAndNothingJoinsIt) {
  const CUdeviceptr one = allocate(1000, 1);
  const CUdeviceptr two = allocate(2000, 2);
  EXPECT_EQ(share(two).bytes, 3000u);
  const CUdeviceptr later = allocate(500, 3);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 500u);
  known.erase(one);
  EXPECT_EQ(swap_free(one).pinned, 1000u);
  told_resident -= 1000;
  EXPECT_FALSE(swap_range_of(later).resident);
  EXPECT_TRUE(in_all());
  check_contents();
  check_sums();
}

TEST_F(Share, AllHandlesOfAnAllocationAreEqualAndThoseOfTwoAreNot) {
  const CUdeviceptr one = allocate(3 * kMiB, 1);
  const CUdeviceptr two = allocate(3 * kMiB, 2);
  share(one, 5);
  share(one, 6);
  EXPECT_EQ(last_share.secret, 5u);
  share(two, 7);
  EXPECT_EQ(last_share.secret, 7u);
  EXPECT_LT(swap_export(one, 7, 0).descriptor, 0);
}

TEST_F(Share, NothingIsExportedWithoutTheSecret) {
  const CUdeviceptr address = allocate(3 * kMiB, 1);
  EXPECT_LT(swap_export(address, 0, 0).descriptor, 0) << "it is not shared";
  ASSERT_EQ(share(address).what, SwapPinned::kPinned);
  EXPECT_LT(swap_export(address, 0, 0).descriptor, 0);
  EXPECT_LT(swap_export(address, kSecret + 1, 0).descriptor, 0);
  EXPECT_LT(swap_export(address, kSecret, 1).descriptor, 0) << "it has one chunk";
  free(address);
  EXPECT_LT(swap_export(address, kSecret, 0).descriptor, 0);
  EXPECT_EQ(share(address).what, SwapPinned::kNotOurs);
}

TEST_F(Share, MemoryThatIsAwayIsNotShared) {
  const CUdeviceptr address = allocate(300 * kMiB, 1);
  ASSERT_TRUE(out(kMiB));
  const SwapPinned pinned = share(address);
  EXPECT_EQ(pinned.what, SwapPinned::kAway);
  EXPECT_EQ(pinned.gate, &gate);
  EXPECT_EQ(last_share.secret, 0u);
  ASSERT_TRUE(in_all());
  EXPECT_EQ(share(address).what, SwapPinned::kPinned);
  EXPECT_EQ(read_exported(address), pattern(1, 300 * kMiB));
}

// A driver that refuses to make such memory: programs run on without it.
TEST_F(Share, WithoutExportableMemoryProgramsGetMemoryAllTheSame) {
  before_next(FunctionId::cuMemCreate, [] {
    refuse(FunctionId::cuMemCreate, true, CUDA_ERROR_NOT_SUPPORTED);
    before_next(FunctionId::cuMemCreate, [] { refuse(FunctionId::cuMemCreate, false); });
  });
  const CUdeviceptr address = allocate(3 * kMiB, 1);
  EXPECT_EQ(share(address).what, SwapPinned::kNever);
  EXPECT_FALSE(swap_range_of(address).shareable);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 3 * kMiB) << "it is not pinned";
  EXPECT_TRUE(in_all());
  check_contents();
}

TEST_F(Share, MemoryIsNotReleasedWhileItIsExported) {
  for (int round = 0; round < 20; ++round) {
    const CUdeviceptr address = allocate(3 * kMiB, 1);
    ASSERT_EQ(share(address).what, SwapPinned::kPinned);
    std::atomic<bool> done{false};
    std::thread exporter([&] {
      while (!done) {
        const SwapPiece piece = swap_export(address, kSecret, 0);
        if (piece.descriptor >= 0) close(piece.descriptor);
      }
    });
    free(address);
    done = true;
    exporter.join();
  }
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
