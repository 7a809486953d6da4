#include <map>
#include <vector>

#include "machine.h"

// Every road by which memory comes and goes, one by one: a row of the table without a road here
// fails.
namespace nvshare::interposer {
namespace {

struct Road {
  FunctionId take_id;
  FunctionId give_id;
  uint64_t bytes;
  std::function<CUresult(uint64_t&)> take;
  std::function<CUresult(uint64_t)> give;
};

CUarray array(uint64_t number) {
  return reinterpret_cast<CUarray>(number);
}

template <typename Handle>
CUresult with_handle(uint64_t& number, Handle handle, CUresult result) {
  number = reinterpret_cast<uint64_t>(handle);
  return result;
}

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

CUmemoryPool default_pool() {
  CUmemoryPool pool{};
  EXPECT_OK(own::cuDeviceGetDefaultMemPool(&pool, 0));
  return pool;
}

// Odd sizes, so that nothing that rounds can pass for what counts.
constexpr uint64_t kOdd = 3 * kMiB + 77;

void add_linear(std::vector<Road>& roads) {
  const auto free_new = [](uint64_t number) { return own::cuMemFree_v2(number); };
  const auto free_old = [](uint64_t number) {
    return own::cuMemFree(static_cast<CUdeviceptr_v1>(number));
  };
  roads.push_back({FunctionId::cuMemAlloc_v2, FunctionId::cuMemFree_v2, kOdd,
                   [](uint64_t& number) {
                     CUdeviceptr address = 0;
                     const CUresult result = own::cuMemAlloc_v2(&address, kOdd);
                     number = address;
                     return result;
                   },
                   free_new});
  roads.push_back({FunctionId::cuMemAllocManaged, FunctionId::cuMemFree_v2, kOdd,
                   [](uint64_t& number) {
                     CUdeviceptr address = 0;
                     const CUresult result =
                         own::cuMemAllocManaged(&address, kOdd, CU_MEM_ATTACH_GLOBAL);
                     number = address;
                     return result;
                   },
                   free_new});
  roads.push_back({FunctionId::cuMemAllocPitch_v2, FunctionId::cuMemFree_v2, 1024 * 3,
                   [](uint64_t& number) {
                     CUdeviceptr address = 0;
                     size_t pitch = 0;
                     const CUresult result = own::cuMemAllocPitch_v2(&address, &pitch, 513, 3, 8);
                     number = address;
                     return result;
                   },
                   free_new});
  roads.push_back({FunctionId::cuMemAlloc, FunctionId::cuMemFree, 12345,
                   [](uint64_t& number) {
                     CUdeviceptr_v1 address = 0;
                     const CUresult result = own::cuMemAlloc(&address, 12345);
                     number = address;
                     return result;
                   },
                   free_old});
  roads.push_back({FunctionId::cuMemAllocPitch, FunctionId::cuMemFree, 512 * 7,
                   [](uint64_t& number) {
                     CUdeviceptr_v1 address = 0;
                     unsigned pitch = 0;
                     const CUresult result = own::cuMemAllocPitch(&address, &pitch, 100, 7, 4);
                     number = address;
                     return result;
                   },
                   free_old});
}

void add_streams(std::vector<Road>& roads) {
  const auto free_async = [](uint64_t number) { return own::cuMemFreeAsync(number, nullptr); };
  const auto free_ptsz = [](uint64_t number) { return own::cuMemFreeAsync_ptsz(number, nullptr); };
  roads.push_back({FunctionId::cuMemAllocAsync, FunctionId::cuMemFreeAsync, kOdd,
                   [](uint64_t& number) {
                     CUdeviceptr address = 0;
                     const CUresult result = own::cuMemAllocAsync(&address, kOdd, nullptr);
                     number = address;
                     return result;
                   },
                   free_async});
  roads.push_back({FunctionId::cuMemAllocAsync_ptsz, FunctionId::cuMemFreeAsync_ptsz, kOdd,
                   [](uint64_t& number) {
                     CUdeviceptr address = 0;
                     const CUresult result = own::cuMemAllocAsync_ptsz(&address, kOdd, nullptr);
                     number = address;
                     return result;
                   },
                   free_ptsz});
  roads.push_back({FunctionId::cuMemAllocFromPoolAsync, FunctionId::cuMemFreeAsync, kOdd,
                   [](uint64_t& number) {
                     CUdeviceptr address = 0;
                     const CUresult result =
                         own::cuMemAllocFromPoolAsync(&address, kOdd, default_pool(), nullptr);
                     number = address;
                     return result;
                   },
                   free_async});
  roads.push_back({FunctionId::cuMemAllocFromPoolAsync_ptsz, FunctionId::cuMemFreeAsync_ptsz, kOdd,
                   [](uint64_t& number) {
                     CUdeviceptr address = 0;
                     const CUresult result =
                         own::cuMemAllocFromPoolAsync_ptsz(&address, kOdd, default_pool(), nullptr);
                     number = address;
                     return result;
                   },
                   free_ptsz});
}

void add_arrays(std::vector<Road>& roads) {
  const auto destroy = [](uint64_t number) { return own::cuArrayDestroy(array(number)); };
  roads.push_back({FunctionId::cuArrayCreate_v2, FunctionId::cuArrayDestroy, 100 * 50 * 2 * 4,
                   [](uint64_t& number) {
                     CUarray made{};
                     const CUDA_ARRAY_DESCRIPTOR shape{100, 50, CU_AD_FORMAT_FLOAT, 2};
                     const CUresult result = own::cuArrayCreate_v2(&made, &shape);
                     return with_handle(number, made, result);
                   },
                   destroy});
  roads.push_back({FunctionId::cuArray3DCreate_v2, FunctionId::cuArrayDestroy, 9 * 8 * 7 * 2,
                   [](uint64_t& number) {
                     CUarray made{};
                     const CUDA_ARRAY3D_DESCRIPTOR shape{9, 8, 7, CU_AD_FORMAT_HALF, 1, 0};
                     const CUresult result = own::cuArray3DCreate_v2(&made, &shape);
                     return with_handle(number, made, result);
                   },
                   destroy});
  roads.push_back({FunctionId::cuArrayCreate, FunctionId::cuArrayDestroy, 33 * 5 * 4,
                   [](uint64_t& number) {
                     CUarray made{};
                     const CUDA_ARRAY_DESCRIPTOR_v1 shape{33, 5, CU_AD_FORMAT_SIGNED_INT8, 4};
                     const CUresult result = own::cuArrayCreate(&made, &shape);
                     return with_handle(number, made, result);
                   },
                   destroy});
  roads.push_back({FunctionId::cuArray3DCreate, FunctionId::cuArrayDestroy, 16 * 4 * 2,
                   [](uint64_t& number) {
                     CUarray made{};
                     const CUDA_ARRAY3D_DESCRIPTOR_v1 shape{16, 4, 2, CU_AD_FORMAT_UNSIGNED_INT8,
                                                            1,  0};
                     const CUresult result = own::cuArray3DCreate(&made, &shape);
                     return with_handle(number, made, result);
                   },
                   destroy});
  roads.push_back({FunctionId::cuMipmappedArrayCreate, FunctionId::cuMipmappedArrayDestroy,
                   (64 * 32 + 32 * 16 + 16 * 8) * 4,
                   [](uint64_t& number) {
                     CUmipmappedArray made{};
                     const CUDA_ARRAY3D_DESCRIPTOR shape{64, 32, 0, CU_AD_FORMAT_FLOAT, 1, 0};
                     const CUresult result = own::cuMipmappedArrayCreate(&made, &shape, 3);
                     return with_handle(number, made, result);
                   },
                   [](uint64_t number) {
                     return own::cuMipmappedArrayDestroy(
                         reinterpret_cast<CUmipmappedArray>(number));
                   }});
}

std::vector<Road> all_roads() {
  std::vector<Road> roads;
  add_linear(roads);
  add_streams(roads);
  add_arrays(roads);
  roads.push_back({FunctionId::cuMemCreate, FunctionId::cuMemRelease, 4 * kMiB,
                   [](uint64_t& number) {
                     CUmemGenericAllocationHandle handle = 0;
                     const CUmemAllocationProp where = on_device(0);
                     const CUresult result = own::cuMemCreate(&handle, 4 * kMiB, &where, 0);
                     number = handle;
                     return result;
                   },
                   [](uint64_t number) { return own::cuMemRelease(number); }});
  return roads;
}

class MemoryRoads : public Machine {};

TEST_F(MemoryRoads, EveryRowOfTheTableHasOne) {
  std::map<FunctionId, int> seen;
  for (const Road& road : all_roads()) {
    ++seen[road.take_id];
    ++seen[road.give_id];
  }
  for (const Function& row : kFunctions) {
    const bool takes = row.kind == Kind::Alloc || row.kind == Kind::AllocAsync;
    const bool gives = row.kind == Kind::Free || row.kind == Kind::FreeAsync;
    EXPECT_EQ(seen.count(row.id) != 0, takes || gives) << row.symbol;
  }
}

TEST_F(MemoryRoads, CountExactlyWhatTheyTake) {
  for (const Road& road : all_roads()) {
    SCOPED_TRACE(function(road.take_id).symbol);
    uint64_t one = 0;
    uint64_t two = 0;
    ASSERT_OK(road.take(one));
    EXPECT_EQ(allocated(), road.bytes);
    ASSERT_OK(road.take(two));
    EXPECT_EQ(allocated(), 2 * road.bytes);
    ASSERT_OK(road.give(one));
    EXPECT_EQ(allocated(), road.bytes);
    ASSERT_OK(road.give(two));
    EXPECT_EQ(allocated(), 0u);
  }
}

TEST_F(MemoryRoads, EndAtTheLimitToTheByte) {
  for (const Road& road : all_roads()) {
    SCOPED_TRACE(function(road.take_id).symbol);
    uint64_t number = 0;
    limit(road.bytes - 1);
    const unsigned long calls = driver_calls(road.take_id);
    EXPECT_EQ(road.take(number), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(driver_calls(road.take_id), calls) << "the driver was asked";
    EXPECT_EQ(allocated(), 0u);
    limit(road.bytes);
    ASSERT_OK(road.take(number));
    EXPECT_EQ(allocated(), road.bytes);
    uint64_t more = 0;
    EXPECT_EQ(road.take(more), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(road.give(number));
    EXPECT_EQ(allocated(), 0u);
    limit(0);
  }
}

void* refusing(FunctionId id) {
  static const std::map<FunctionId, void*> all = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  {FunctionId::symbol, reinterpret_cast<void*>(&Refusing<Signature<FunctionId::symbol>>::call)},
#include "cuda/functions.def"
  };
  return all.at(id);
}

TEST_F(MemoryRoads, GiveBackWhatTheDriverRefuses) {
  for (const Road& road : all_roads()) {
    SCOPED_TRACE(function(road.take_id).symbol);
    const uint64_t before = g_accounts[0].requests;
    {
      const Instead instead(road.take_id, refusing(road.take_id));
      uint64_t number = 0;
      EXPECT_EQ(road.take(number), CUDA_ERROR_OUT_OF_MEMORY);
    }
    EXPECT_EQ(g_accounts[0].requests, before + 1);
    EXPECT_EQ(allocated(), 0u);
  }
}

TEST_F(MemoryRoads, KeepCountingWhatTheDriverDoesNotFree) {
  for (const Road& road : all_roads()) {
    SCOPED_TRACE(function(road.give_id).symbol);
    uint64_t number = 0;
    ASSERT_OK(road.take(number));
    {
      const Instead instead(road.give_id, refusing(road.give_id));
      EXPECT_EQ(road.give(number), CUDA_ERROR_OUT_OF_MEMORY);
    }
    EXPECT_EQ(allocated(), road.bytes);
    ASSERT_OK(road.give(number));
    EXPECT_EQ(allocated(), 0u);
  }
}

TEST_F(MemoryRoads, FreeingTwiceIsTheDriversErrorAndCountsOnce) {
  const CUdeviceptr kept = allocate(kMiB);
  for (const Road& road : all_roads()) {
    // The stand-in for the oldest functions, and pools that have not noticed yet, do not say so.
    if (road.give_id == FunctionId::cuMemFree || road.give_id == FunctionId::cuMemFreeAsync ||
        road.give_id == FunctionId::cuMemFreeAsync_ptsz) {
      continue;
    }
    SCOPED_TRACE(function(road.give_id).symbol);
    uint64_t number = 0;
    ASSERT_OK(road.take(number));
    ASSERT_OK(road.give(number));
    EXPECT_NE(road.give(number), CUDA_SUCCESS);
    EXPECT_EQ(allocated(), kMiB);
  }
  EXPECT_OK(own::cuMemFree_v2(kept));
}

}  // namespace
}  // namespace nvshare::interposer
