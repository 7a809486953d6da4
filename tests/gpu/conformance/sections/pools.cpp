// Stream-ordered allocation and the pools it comes from.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

CUmemPoolProps pool_on_device() {
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 0;
  return properties;
}

uint64_t number(const Run& run, CUmemoryPool pool, CUmemPool_attribute attribute) {
  uint64_t value = 99;
  SETUP(cuMemPoolGetAttribute, pool, attribute, &value);
  return value;
}

void print_use(const Run& run, CUmemoryPool pool) {
  run.value("used", number(run, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
  run.value("used at most", number(run, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  run.value("reserved is at least what is used",
            number(run, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >=
                number(run, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
}

void default_pool(Run& run) {
  const CUstream stream = new_stream(run);
  CUmemoryPool pool = nullptr;
  CUmemoryPool current = nullptr;
  CUdeviceptr address = 0;
  CUdeviceptr second = 0;
  CALL(cuDeviceGetDefaultMemPool, &pool, 0);
  CALL(cuDeviceGetMemPool, &current, 0);
  run.value("the default pool is the current one", pool == current);
  CALL(cuMemAllocAsync, &address, 4 * kMiB, stream);
  CALL(cuMemsetD32Async, address, 3, 64, stream);
  print_use(run, pool);
  CALL(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, address, 3, 64));
  CALL(cuMemFreeAsync, address, stream);
  print_use(run, pool);
  CALL(cuMemAllocAsync, &second, 4 * kMiB, stream);
  run.value("the same memory again on the same stream", second == address);
  CALL(cuMemFreeAsync, second, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("nothing is kept behind a synchronisation",
            number(run, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  CALL(cuMemAllocAsync, &address, 100, nullptr);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAllocAsync_ptsz, &address, 100, nullptr);
  CALL(cuMemFreeAsync_ptsz, address, nullptr);
  SETUP(cuMemAlloc_v2, &address, 4096);
  CALL(cuMemFreeAsync, address, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAllocAsync, &address, 0, stream);
  CALL(cuMemAllocAsync, nullptr, 100, stream);
  CALL(cuMemAllocAsync, &address, size_t{1} << 50, stream);
  CALL(cuMemFreeAsync, 0, stream);
  CALL(cuMemFreeAsync, 0x1000, stream);
  CALL(cuDeviceGetDefaultMemPool, nullptr, 0);
  CALL(cuDeviceGetDefaultMemPool, &pool, 99);
}

void pool_attributes(Run& run) {
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties = pool_on_device();
  int flag = 99;
  uint64_t bytes = 0;
  SETUP(cuMemPoolCreate, &pool, &properties);
  CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
  run.value("release threshold", bytes);
  bytes = 64 * kMiB;
  CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
  CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
  run.value("release threshold", bytes);
  CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &flag);
  run.value("follows events", flag);
  CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &flag);
  run.value("opportunistic", flag);
  CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &flag);
  run.value("internal dependencies", flag);
  flag = 0;
  CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &flag);
  bytes = 5;
  CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
  CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &bytes);
  bytes = 0;
  CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &bytes);
  CALL(cuMemPoolGetAttribute, pool, static_cast<CUmemPool_attribute>(99), &bytes);
  CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, nullptr);
  CALL(cuMemPoolGetAttribute, nullptr, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &bytes);
  CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CALL(cuMemPoolGetAccess, &access, pool, &device);
  run.value("access", static_cast<int>(access));
  CUmemAccessDesc description = {device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CALL(cuMemPoolSetAccess, pool, &description, 1);
  description.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CALL_WHERE("flags = CU_MEM_ACCESS_FLAGS_PROT_NONE", cuMemPoolSetAccess, pool, &description, 1);
  CALL(cuMemPoolDestroy, pool);
}

void own_pool(Run& run) {
  const CUstream stream = new_stream(run);
  CUmemoryPool pool = nullptr;
  CUmemoryPool current = nullptr;
  CUdeviceptr address = 0;
  CUmemPoolProps properties = pool_on_device();
  CALL(cuMemPoolCreate, &pool, &properties);
  uint64_t keep = ~uint64_t{0};
  SETUP(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
  CALL(cuMemAllocFromPoolAsync, &address, 8 * kMiB, pool, stream);
  CALL(cuMemFreeAsync, address, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("kept", number(run, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 8 * kMiB);
  CALL(cuMemPoolTrimTo, pool, 0);
  run.value("kept after trimming", number(run, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  CALL(cuDeviceSetMemPool, 0, pool);
  CALL(cuDeviceGetMemPool, &current, 0);
  run.value("is the pool", current == pool);
  CALL(cuMemAllocAsync, &address, kMiB, stream);
  run.value("used", number(run, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
  CALL(cuMemPoolDestroy, pool);
  CALL(cuDeviceGetMemPool, &current, 0);
  run.value("is the destroyed pool", current == pool);
  CALL(cuMemFreeAsync, address, stream);
  CALL(cuStreamSynchronize, stream);
  properties.maxSize = 4 * kMiB;
  CALL_WHERE("maxSize = 4 * kMiB", cuMemPoolCreate, &pool, &properties);
  CALL(cuMemAllocFromPoolAsync, &address, 256 * kMiB, pool, stream);
  CALL(cuMemPoolDestroy, pool);
}

void wrong(Run& run) {
  CUmemoryPool pool = nullptr;
  CUmemoryPool default_one = nullptr;
  CUmemPoolProps properties = pool_on_device();
  CUdeviceptr address = 0;
  SETUP(cuDeviceGetDefaultMemPool, &default_one, 0);
  CALL(cuMemPoolCreate, nullptr, &properties);
  CALL(cuMemPoolCreate, &pool, nullptr);
  properties.location.id = 99;
  CALL_WHERE("location.id = 99", cuMemPoolCreate, &pool, &properties);
  properties = pool_on_device();
  properties.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  CALL_WHERE("allocType = CU_MEM_ALLOCATION_TYPE_INVALID", cuMemPoolCreate, &pool, &properties);
  properties = pool_on_device();
  properties.location.type = CU_MEM_LOCATION_TYPE_INVALID;
  CALL_WHERE("location.type = CU_MEM_LOCATION_TYPE_INVALID", cuMemPoolCreate, &pool, &properties);
  CALL(cuMemPoolDestroy, default_one);
  CALL(cuMemPoolDestroy, nullptr);
  CALL(cuMemAllocFromPoolAsync, &address, 100, nullptr, nullptr);
  CALL(cuMemPoolTrimTo, nullptr, 0);
  CALL(cuDeviceSetMemPool, 0, nullptr);
  int fd = -1;
  CALL(cuMemPoolExportToShareableHandle, &fd, default_one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
       0);
}

}  // namespace

void pools(Run& run) {
  use_card(run);
  default_pool(run);
  run.heading("attributes");
  pool_attributes(run);
  run.heading("a pool of one's own");
  own_pool(run);
  run.heading("wrong");
  wrong(run);
}

}  // namespace nvshare::conformance
