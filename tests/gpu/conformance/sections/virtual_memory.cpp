// Virtual memory management: addresses, handles, maps, access.

#include <unistd.h>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr size_t kChunk = 2 * kMiB;
constexpr CUmemGenericAllocationHandle kNoHandle = 0;

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 0;
  return properties;
}

CUmemAccessDesc read_write() {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 0;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

CUmemGenericAllocationHandle new_handle(const Run& run, size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = on_device();
  SETUP(cuMemCreate, &handle, bytes, &properties, 0);
  return handle;
}

CUdeviceptr new_range(const Run& run, size_t bytes) {
  CUdeviceptr address = 0;
  SETUP(cuMemAddressReserve, &address, bytes, 0, 0, 0);
  return address;
}

void granularity(Run& run) {
  size_t minimum = 0;
  size_t recommended = 0;
  CUmemAllocationProp properties = on_device();
  CALL(cuMemGetAllocationGranularity, &minimum, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  run.value("minimum", minimum);
  CALL(cuMemGetAllocationGranularity, &recommended, &properties,
       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  run.value("recommended", recommended);
  CALL(cuMemGetAllocationGranularity, nullptr, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  CALL(cuMemGetAllocationGranularity, &minimum, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  properties.location.id = 99;
  CALL_WHERE("location.id = 99", cuMemGetAllocationGranularity, &minimum, &properties,
             CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  properties = on_device();
  properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  CALL_WHERE("type = CU_MEM_ALLOCATION_TYPE_INVALID", cuMemGetAllocationGranularity, &minimum,
             &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

void reserving(Run& run) {
  CUdeviceptr address = 0;
  CUdeviceptr second = 0;
  CALL(cuMemAddressReserve, &address, kChunk, 0, 0, 0);
  run.value("aligned to 2 MiB", address % kChunk == 0);
  CALL(cuMemAddressReserve, &second, kChunk, 0, address, 0);
  run.value("moved away from what is taken", second != address);
  CALL(cuMemAddressFree, second, kChunk);
  CALL(cuMemAddressReserve, &second, kChunk, 64 * kMiB, 0, 0);
  run.value("aligned to 64 MiB", second % (64 * kMiB) == 0);
  CALL(cuMemAddressFree, second, kChunk);
  CALL(cuMemAddressReserve, &second, kChunk, 3 * kMiB, 0, 0);
  CALL(cuMemAddressReserve, &second, kChunk, 4096, 0, 0);
  CALL(cuMemAddressReserve, &second, 4096, 0, 0, 0);
  CALL(cuMemAddressReserve, &second, kChunk + 1, 0, 0, 0);
  CALL(cuMemAddressReserve, &second, 0, 0, 0, 0);
  CALL(cuMemAddressReserve, &second, kChunk, 0, 0, 1);
  CALL(cuMemAddressReserve, nullptr, kChunk, 0, 0, 0);
  CALL(cuMemAddressReserve, &second, size_t{1} << 60, 0, 0, 0);
  CALL(cuMemAddressFree, address, kChunk / 2);
  CALL(cuMemAddressFree, address + kChunk, kChunk);
  CALL(cuMemAddressFree, 0, kChunk);
  CALL(cuMemAddressFree, address, kChunk);
  CALL(cuMemAddressFree, address, kChunk);
  CALL(cuMemAddressReserve, &second, kChunk, 0, address, 0);
  run.value("given where it was asked for", second == address);
  CALL(cuMemAddressFree, second, kChunk);
}

void creating(Run& run) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = on_device();
  CUmemAllocationProp got = {};
  CALL(cuMemCreate, &handle, kChunk, &properties, 0);
  CALL(cuMemGetAllocationPropertiesFromHandle, &got, handle);
  run.value("type", static_cast<int>(got.type));
  run.value("location", static_cast<int>(got.location.type));
  CALL(cuMemGetAllocationPropertiesFromHandle, nullptr, handle);
  const size_t before = free_memory(run);
  CALL(cuMemRelease, handle);
  run.value("free rose by at least the size", free_memory(run) >= before + kChunk);
  CALL(cuMemRelease, handle);
  CALL(cuMemRelease, kNoHandle);
  CALL(cuMemRelease, CUmemGenericAllocationHandle{12345});
  CALL(cuMemCreate, &handle, kChunk + 4096, &properties, 0);
  CALL(cuMemCreate, &handle, kMiB, &properties, 0);
  CALL(cuMemCreate, &handle, 0, &properties, 0);
  CALL(cuMemCreate, &handle, kChunk, &properties, 1);
  CALL(cuMemCreate, &handle, kChunk, nullptr, 0);
  CALL(cuMemCreate, nullptr, kChunk, &properties, 0);
  CALL(cuMemCreate, &handle, size_t{1} << 50, &properties, 0);
  properties.location.id = 99;
  CALL_WHERE("location.id = 99", cuMemCreate, &handle, kChunk, &properties, 0);
  properties = on_device();
  properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  CALL_WHERE("type = CU_MEM_ALLOCATION_TYPE_INVALID", cuMemCreate, &handle, kChunk, &properties, 0);
  properties = on_device();
  properties.location.type = CU_MEM_LOCATION_TYPE_INVALID;
  CALL_WHERE("location.type = CU_MEM_LOCATION_TYPE_INVALID", cuMemCreate, &handle, kChunk,
             &properties, 0);
}

void mapping(Run& run) {
  const CUdeviceptr address = new_range(run, 4 * kChunk);
  const CUmemGenericAllocationHandle one = new_handle(run, kChunk);
  const CUmemGenericAllocationHandle two = new_handle(run, 2 * kChunk);
  const CUmemAccessDesc access = read_write();
  uint32_t word = 0;
  CALL(cuMemMap, address, kChunk, 0, one, 0);
  CALL(cuMemSetAccess, address, kChunk, &access, 1);
  CALL(cuMemsetD32_v2, address, 7, 16);
  run.value("filled", all_words(run, address, 7, 16));
  // Not over the end of the range: whether that works depends on what happens to lie behind it.
  run.heading("wrong maps");
  CALL(cuMemMap, address, kChunk, 0, two, 0);
  CALL(cuMemMap, address + kChunk, 2 * kChunk, 0, one, 0);
  CALL(cuMemMap, address + kChunk, kChunk, kChunk, two, 0);
  CALL(cuMemMap, address + kChunk, kMiB, 0, one, 0);
  CALL(cuMemMap, address + kChunk + 4096, kChunk, 0, one, 0);
  CALL(cuMemMap, address + kChunk, 0, 0, one, 0);
  CALL(cuMemMap, address + kChunk, kChunk, 0, one, 1);
  CALL(cuMemMap, 0, kChunk, 0, one, 0);
  CALL(cuMemMap, address + kChunk, kChunk, 0, kNoHandle, 0);
  run.heading("the same memory at two addresses");
  CALL(cuMemMap, address + kChunk, kChunk, 0, one, 0);
  CALL(cuMemSetAccess, address + kChunk, kChunk, &access, 1);
  run.value("the same bytes", all_words(run, address + kChunk, 7, 16));
  CALL(cuMemMap, address + 2 * kChunk, 2 * kChunk, 0, two, 0);
  CALL(cuMemSetAccess, address, 4 * kChunk, &access, 1);
  CALL(cuMemsetD32_v2, address, 8, 4 * kChunk / 4);
  CALL(cuMemcpyDtoH_v2, &word, address + 4 * kChunk - 4, 4);
  run.value("one fill across three maps", word);
  run.heading("unmapping");
  CALL(cuMemAddressFree, address, 4 * kChunk);
  CALL(cuMemUnmap, address + 2 * kChunk, kChunk);
  CALL(cuMemUnmap, address + kChunk / 2, kChunk);
  CALL(cuMemUnmap, address, 2 * kChunk);
  CALL(cuMemUnmap, address, kChunk);
  CALL(cuMemRelease, two);
  CALL(cuMemcpyDtoH_v2, &word, address + 2 * kChunk, 4);
  run.value("word of a released handle that is still mapped", word);
  CALL(cuMemUnmap, address + 2 * kChunk, 2 * kChunk);
  CALL(cuMemRelease, one);
  CALL(cuMemAddressFree, address, 4 * kChunk);
  CALL(cuMemUnmap, address, kChunk);
}

void access_rights(Run& run) {
  const CUdeviceptr address = new_range(run, 2 * kChunk);
  const CUmemGenericAllocationHandle handle = new_handle(run, kChunk);
  CUmemAccessDesc access = read_write();
  CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  unsigned long long flags = 99;
  SETUP(cuMemMap, address, kChunk, 0, handle, 0);
  CALL(cuMemGetAccess, &flags, &device, address);
  run.value("flags", flags);
  CALL(cuMemSetAccess, address, kChunk, &access, 1);
  CALL(cuMemGetAccess, &flags, &device, address);
  run.value("flags", flags);
  CALL(cuMemSetAccess, address, 2 * kChunk, &access, 1);
  CALL(cuMemSetAccess, address + kChunk, kChunk, &access, 1);
  CALL(cuMemSetAccess, address, kChunk / 2, &access, 1);
  CALL(cuMemSetAccess, address, kChunk, nullptr, 1);
  CALL(cuMemSetAccess, address, kChunk, &access, 0);
  access.location.id = 99;
  CALL_WHERE("location.id = 99", cuMemSetAccess, address, kChunk, &access, 1);
  access = read_write();
  access.flags = static_cast<CUmemAccess_flags>(7);
  CALL_WHERE("flags = 7", cuMemSetAccess, address, kChunk, &access, 1);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  CALL_WHERE("flags = CU_MEM_ACCESS_FLAGS_PROT_READ", cuMemSetAccess, address, kChunk, &access, 1);
  CALL(cuMemGetAccess, &flags, &device, address);
  run.value("flags", flags);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CALL_WHERE("flags = CU_MEM_ACCESS_FLAGS_PROT_NONE", cuMemSetAccess, address, kChunk, &access, 1);
  CALL(cuMemGetAccess, &flags, &device, address);
  run.value("flags", flags);
  CALL(cuMemGetAccess, &flags, &device, address + kChunk);
  CALL(cuMemGetAccess, nullptr, &device, address);
  CUmemGenericAllocationHandle same = 0;
  void* inside = reinterpret_cast<void*>(address + 4096);
  void* beside = reinterpret_cast<void*>(address + kChunk);
  CALL(cuMemRetainAllocationHandle, &same, inside);
  run.value("is the handle", same == handle);
  CALL(cuMemRetainAllocationHandle, &same, beside);
  CALL(cuMemRelease, handle);
  CALL(cuMemRelease, same);
  CALL(cuMemRelease, handle);
  CALL(cuMemFree_v2, address);
  CALL(cuMemUnmap, address, kChunk);
  CALL(cuMemAddressFree, address, 2 * kChunk);
}

void sharing(Run& run) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle imported = 0;
  CUmemAllocationProp properties = on_device();
  int fd = -1;
  CALL(cuMemExportToShareableHandle, &fd, new_handle(run, kChunk),
       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CALL_WHERE("requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", cuMemCreate,
             &handle, kChunk, &properties, 0);
  CALL(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  run.value("is a descriptor", fd >= 0);
  CALL(cuMemExportToShareableHandle, nullptr, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  CALL(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_NONE, 0);
  CALL(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_WIN32, 0);
  CALL(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
  void* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  CALL(cuMemImportFromShareableHandle, &imported, os_handle,
       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  run.value("another handle", imported != handle);
  void* no_descriptor = reinterpret_cast<void*>(intptr_t{-1});
  void* wrong_descriptor = reinterpret_cast<void*>(intptr_t{STDERR_FILENO});
  CALL(cuMemImportFromShareableHandle, &handle, no_descriptor,
       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CALL(cuMemImportFromShareableHandle, &handle, wrong_descriptor,
       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CALL(cuMemRelease, imported);
  CALL(cuMemRelease, handle);
}

}  // namespace

void virtual_memory(Run& run) {
  use_card(run);
  granularity(run);
  run.heading("addresses");
  reserving(run);
  run.heading("handles");
  creating(run);
  run.heading("maps");
  mapping(run);
  run.heading("access");
  access_rights(run);
  run.heading("sharing");
  sharing(run);
}

}  // namespace nvshare::conformance
