#include "interposer/memory/pool.h"

#include "interposer/catch/bodies.h"
#include "interposer/catch/current.h"
#include "interposer/gate/records.h"
#include "interposer/memory/count.h"
#include "interposer/memory/memory.h"

// The pools that memory in stream order comes from (stream.cpp): where each of them is, and
// that what it keeps does not stay on the device while others need the room.
namespace nvshare::interposer::memory {
namespace {

constexpr uint32_t kPlainTag = 0;

uint64_t number_of(CUmemoryPool pool) {
  return reinterpret_cast<uint64_t>(pool);
}

// Of the pool, or of none.
PoolRecord known_as(CUmemoryPool pool) REQUIRES(g_books.mutex) {
  const PoolRecord* found = g_books.pools.find(number_of(pool), kPlainTag);
  return found != nullptr ? *found : PoolRecord{{CU_MEM_LOCATION_TYPE_INVALID, 0}, false};
}

bool is_known(const PoolRecord& record) {
  return record.location.type != CU_MEM_LOCATION_TYPE_INVALID;
}

void note_pool(CUmemoryPool pool, CUmemLocation location, bool made) {
  const Lock lock(g_books.mutex);
  PoolRecord before{};
  const PoolRecord record{location, made || known_as(pool).made};
  if (!g_books.pools.hold()) return;
  g_books.pools.put(number_of(pool), kPlainTag, record, before);
}

// Of the pools on the device that the program has made, the one behind `last` in the order of their
// handles; null when there is none.
CUmemoryPool pool_behind(CUmemoryPool last, CUdevice device) {
  const Lock lock(g_books.mutex);
  uint64_t next = ~uint64_t{0};
  g_books.pools.for_each([&](uint64_t number, uint32_t, const PoolRecord& pool) {
    const bool there =
        pool.location.type == CU_MEM_LOCATION_TYPE_DEVICE && pool.location.id == device;
    if (pool.made && there && number > number_of(last) && number < next) next = number;
  });
  return next == ~uint64_t{0} ? nullptr : reinterpret_cast<CUmemoryPool>(next);
}

}  // namespace

gate::Gate* gate_of_pool(CUmemoryPool pool) {
  PoolRecord record{};
  {
    const Lock lock(g_books.mutex);
    record = known_as(pool);
  }
  if (!is_known(record)) return link::gate_of_current_device();
  if (record.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return nullptr;
  return link::gate_of_device(record.location.id);
}

// The driver waits for nothing here: what is in use stays, and so may what was freed in stream
// order and is not known to be done. It calls this unsafe during captures, and allows it to threads
// that are relaxed.
void memory_trim_pools(CUdevice device) {
  if (gate::g_captures.load(std::memory_order_relaxed) != 0) return;
  const catching::Relaxed relaxed;
  CUmemoryPool always_there = nullptr;
  if (real<FunctionId::cuDeviceGetDefaultMemPool>(&always_there, device) == CUDA_SUCCESS) {
    real<FunctionId::cuMemPoolTrimTo>(always_there, 0);
  }
  for (CUmemoryPool pool = nullptr;;) {
    const Lock trimming(g_books.trimming);
    pool = pool_behind(pool, device);
    if (pool == nullptr) return;
    real<FunctionId::cuMemPoolTrimTo>(pool, 0);
  }
}

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

// Pools that are handed out in any other way than these are taken to be on the current device.

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* pool_props) {
  const CUresult result = real<FunctionId::cuMemPoolCreate>(pool, pool_props);
  if (result == CUDA_SUCCESS) note_pool(*pool, pool_props->location, true);
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  // What was taken from it stays until it is freed, and stays counted.
  PoolRecord before{};
  {
    const Lock trimming(g_books.trimming);
    const Lock lock(g_books.mutex);
    before = known_as(pool);
    g_books.pools.remove(number_of(pool), kPlainTag);
  }
  const CUresult result = real<FunctionId::cuMemPoolDestroy>(pool);
  if (result != CUDA_SUCCESS && is_known(before)) note_pool(pool, before.location, before.made);
  return result;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  const CUresult result = real<FunctionId::cuDeviceGetMemPool>(pool, device);
  if (result == CUDA_SUCCESS) note_pool(*pool, {CU_MEM_LOCATION_TYPE_DEVICE, device}, false);
  return result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice device) {
  const CUresult result = real<FunctionId::cuDeviceGetDefaultMemPool>(pool_out, device);
  if (result == CUDA_SUCCESS) note_pool(*pool_out, {CU_MEM_LOCATION_TYPE_DEVICE, device}, false);
  return result;
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  const CUresult result = real<FunctionId::cuMemGetMemPool>(pool, location, type);
  if (result == CUDA_SUCCESS) note_pool(*pool, *location, false);
  return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                CUmemAllocationType type) {
  const CUresult result = real<FunctionId::cuMemGetDefaultMemPool>(pool_out, location, type);
  if (result == CUDA_SUCCESS) note_pool(*pool_out, *location, false);
  return result;
}

}  // namespace nvshare::interposer::own
