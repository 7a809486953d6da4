// What can be asked about a pointer: device, host, managed, mapped, foreign, freed, null.

#include <cstdlib>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

// The attributes that have the same answer on every card, as one line each.
void describe(const Run& run, const char* what, CUdeviceptr address) {
  run.heading(what);
  unsigned number = 99;
  CALL(cuPointerGetAttribute, &number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  run.value("memory type", number);
  number = 99;
  CALL(cuPointerGetAttribute, &number, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
  run.value("managed", number & 0xff);
  number = 99;
  CALL(cuPointerGetAttribute, &number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  run.value("device", static_cast<int>(number));
  CUdeviceptr pointer = 1;
  CALL(cuPointerGetAttribute, &pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
  run.value("device pointer is the address", pointer == address);
  pointer = 1;
  CALL(cuPointerGetAttribute, &pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address);
  run.value("host pointer is the address", pointer == address);
  pointer = 1;
  CALL(cuPointerGetAttribute, &pointer, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address);
  run.value("range starts at the address", pointer == address);
  size_t bytes = 99;
  CALL(cuPointerGetAttribute, &bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
  run.value("range", bytes);
  CUcontext context = nullptr;
  CALL(cuPointerGetAttribute, &context, CU_POINTER_ATTRIBUTE_CONTEXT, address);
  run.value("has a context", context != nullptr);
  number = 99;
  CALL(cuPointerGetAttribute, &number, CU_POINTER_ATTRIBUTE_MAPPED, address);
  run.value("mapped", number & 0xff);
  number = 99;
  CALL(cuPointerGetAttribute, &number, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address);
  run.value("IPC capable", number & 0xff);
  uint64_t handles = 99;
  CALL(cuPointerGetAttribute, &handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address);
  run.value("handle types", handles);
  uint64_t flags = 99;
  CALL(cuPointerGetAttribute, &flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address);
  run.value("access flags", flags);
  CUmemoryPool pool = nullptr;
  CALL(cuPointerGetAttribute, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address);
  run.value("has a pool", pool != nullptr);
  uint64_t id = 0;
  CALL(cuPointerGetAttribute, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
}

CUdeviceptr mapped(const Run& run) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  SETUP(cuMemAddressReserve, &address, 4 * kMiB, 0, 0, 0);
  SETUP(cuMemCreate, &handle, 2 * kMiB, &properties, 0);
  SETUP(cuMemMap, address, 2 * kMiB, 0, handle, 0);
  SETUP(cuMemSetAccess, address, 2 * kMiB, &access, 1);
  return address;
}

void several_at_once(Run& run, CUdeviceptr device, CUdeviceptr foreign) {
  unsigned type = 99;
  CUdeviceptr pointer = 1;
  int ordinal = 99;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &pointer, &ordinal};
  CALL(cuPointerGetAttributes, 3, attributes, values, device);
  run.value("type", type);
  run.value("device pointer is the address", pointer == device);
  run.value("device", ordinal);
  type = 99;
  pointer = 1;
  ordinal = 99;
  CALL(cuPointerGetAttributes, 3, attributes, values, foreign);
  run.value("type", type);
  run.value("device pointer", pointer == 0         ? "null"
                              : pointer == 1       ? "untouched"
                              : pointer == foreign ? "the address"
                                                   : "another");
  run.value("device", ordinal);
  CALL(cuPointerGetAttributes, 3, attributes, values, 0);
  CALL(cuPointerGetAttributes, 0, attributes, values, device);
  CALL(cuPointerGetAttributes, 3, nullptr, values, device);
  CALL(cuPointerGetAttributes, 3, attributes, nullptr, device);
  CALL(cuPointerGetAttribute, nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device);
  CALL(cuPointerGetAttribute, &type, static_cast<CUpointer_attribute>(999), device);
  const int yes = 1;
  CALL(cuPointerSetAttribute, &yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device);
  CALL(cuPointerSetAttribute, &yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, foreign);
  CALL(cuPointerSetAttribute, &yes, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device);
}

}  // namespace

void pointers(Run& run) {
  use_card(run);
  const CUdeviceptr device = device_memory(run, 3 * kMiB);
  const CUdeviceptr freed = device_memory(run, 4 * kMiB);
  CUdeviceptr managed = 0;
  CUdeviceptr from_pool = 0;
  void* host = nullptr;
  void* foreign = std::malloc(kMiB);
  SETUP(cuMemAllocManaged, &managed, kMiB, CU_MEM_ATTACH_GLOBAL);
  SETUP(cuMemHostAlloc, &host, kMiB, 0);
  SETUP(cuMemAllocAsync, &from_pool, kMiB, nullptr);
  SETUP(cuCtxSynchronize);
  const CUdeviceptr virtual_range = mapped(run);
  // Last, so that nothing is given its address again.
  SETUP(cuMemFree_v2, freed);
  describe(run, "device memory", device);
  describe(run, "inside of device memory", device + kMiB);
  describe(run, "pinned host memory", reinterpret_cast<CUdeviceptr>(host));
  describe(run, "managed memory", managed);
  describe(run, "memory of a pool", from_pool);
  describe(run, "mapped memory", virtual_range);
  describe(run, "reserved addresses", virtual_range + 2 * kMiB);
  describe(run, "host memory that the driver does not know",
           reinterpret_cast<CUdeviceptr>(foreign));
  describe(run, "null", 0);
  describe(run, "freed memory", freed);
  run.heading("several at once");
  several_at_once(run, device, reinterpret_cast<CUdeviceptr>(foreign));
  std::free(foreign);
}

}  // namespace nvshare::conformance
