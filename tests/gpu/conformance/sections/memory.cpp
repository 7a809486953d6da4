// Plain device memory: allocating, freeing, address ranges, how much there is.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void allocating(Run& run) {
  CUdeviceptr address = 0;
  CUdeviceptr small = 0;
  size_t available = 0;
  size_t total = 0;
  const size_t too_much = size_t{1} << 50;
  const size_t whole_address_space = ~size_t{0};
  CALL(cuMemAlloc_v2, &address, kMiB);
  run.value("aligned to 512", address % 512 == 0);
  CALL(cuMemAlloc_v2, &small, 1);
  run.value("aligned to 512", small % 512 == 0);
  CALL(cuMemFree_v2, small);
  CALL(cuMemAlloc_v2, &small, 0);
  CALL(cuMemAlloc_v2, nullptr, kMiB);
  CALL(cuMemAlloc_v2, &small, too_much);
  CALL(cuMemAlloc_v2, &small, whole_address_space);
  CALL(cuMemFree_v2, 0);
  CALL(cuMemFree_v2, address + 256);
  CALL(cuMemFree_v2, 0x1000);
  CALL(cuMemFree_v2, address);
  CALL(cuMemFree_v2, address);
  CALL(cuMemGetInfo_v2, &available, &total);
  run.value("free is not above total", available <= total);
  CALL(cuMemGetInfo_v2, nullptr, &total);
  CALL(cuMemGetInfo_v2, &available, nullptr);
  size_t of_device = 0;
  SETUP(cuDeviceTotalMem_v2, &of_device, 0);
  run.value("total is that of the device", of_device == total);
}

void how_much(Run& run) {
  CUdeviceptr address = 0;
  CUdeviceptr second = 0;
  // The first large allocation may bring more with it than itself.
  SETUP(cuMemAlloc_v2, &address, 64 * kMiB);
  SETUP(cuMemFree_v2, address);
  const size_t before = free_memory(run);
  CALL(cuMemAlloc_v2, &address, 64 * kMiB);
  const size_t during = free_memory(run);
  run.value("free fell by at least the size", before >= during + 64 * kMiB);
  run.value("free fell by exactly the size", before == during + 64 * kMiB);
  CALL(cuMemAlloc_v2, &second, 3 * kMiB);
  run.value("free fell by at least the size", during >= free_memory(run) + 3 * kMiB);
  CALL(cuMemFree_v2, second);
  CALL(cuMemFree_v2, address);
  run.value("free is back", free_memory(run) >= before);
}

void pitched(Run& run) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CALL(cuMemAllocPitch_v2, &address, &pitch, 100, 10, 4);
  run.value("pitch", pitch);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 4096, 10, 16);
  run.value("pitch", pitch);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 513, 3, 8);
  run.value("pitch", pitch);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 100, 10, 1);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 100, 10, 3);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 0, 10, 4);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 100, 0, 4);
  CALL(cuMemAllocPitch_v2, &address, nullptr, 100, 10, 4);
  CALL(cuMemAllocPitch_v2, nullptr, &pitch, 100, 10, 4);
  CALL(cuMemAllocPitch_v2, &address, &pitch, size_t{1} << 40, 10, 4);
  CALL(cuMemAllocPitch_v2, &address, &pitch, 100, size_t{1} << 60, 4);
}

void ranges(Run& run) {
  CUdeviceptr address = 0;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  SETUP(cuMemAlloc_v2, &address, 3 * kMiB);
  CALL(cuMemGetAddressRange_v2, &base, &bytes, address);
  run.value("base is the address", base == address);
  run.value("bytes", bytes);
  CALL(cuMemGetAddressRange_v2, &base, &bytes, address + 3 * kMiB - 1);
  run.value("base is the address", base == address);
  CALL(cuMemGetAddressRange_v2, nullptr, &bytes, address + 5);
  CALL(cuMemGetAddressRange_v2, &base, nullptr, address + 5);
  CALL(cuMemGetAddressRange_v2, nullptr, nullptr, address);
  CALL(cuMemGetAddressRange_v2, &base, &bytes, 0);
  CALL(cuMemGetAddressRange_v2, &base, &bytes, 0x1000);
  CALL(cuMemFree_v2, address);
  CALL(cuMemGetAddressRange_v2, &base, &bytes, address);
  SETUP(cuMemAlloc_v2, &address, 100);
  CALL(cuMemGetAddressRange_v2, &base, &bytes, address);
  run.value("bytes of an allocation of 100", bytes);
}

// The symbols from before CUDA 3.2, which still work as far as 32 bits reach.
void old_symbols(Run& run) {
  CUdeviceptr_v1 address = 0;
  unsigned available = 0;
  unsigned total = 0;
  CALL(cuMemGetInfo, &available, &total);
  CALL(cuMemAlloc, &address, 4096);
  CALL(cuDeviceTotalMem, &total, 0);
  CALL(cuMemFree, 0);
}

}  // namespace

void memory(Run& run) {
  use_card(run);
  allocating(run);
  run.heading("how much");
  how_much(run);
  run.heading("pitched");
  pitched(run);
  run.heading("address ranges");
  ranges(run);
  run.heading("32 bits");
  old_symbols(run);
}

namespace {

void prefetch_and_advise(Run& run, CUdeviceptr address) {
  const CUstream stream = new_stream(run);
  CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  CUmemLocation nowhere = {CU_MEM_LOCATION_TYPE_DEVICE, 99};
  const CUdevice cpu = -1;
  int location = 99;
  CALL(cuMemPrefetchAsync_v2, address, kMiB, device, 0, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemRangeGetAttribute, &location, sizeof location,
       CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, kMiB);
  run.value("last prefetch", location);
  CALL(cuMemPrefetchAsync_v2, address, kMiB, host, 0, stream);
  CALL(cuMemPrefetchAsync, address, kMiB, cpu, stream);
  CALL(cuMemPrefetchAsync, address, kMiB, 0, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemPrefetchAsync_v2, address, kMiB, nowhere, 0, stream);
  CALL(cuMemPrefetchAsync_v2, address, 0, device, 0, stream);
  CALL(cuMemPrefetchAsync_v2, address, 64 * kMiB, device, 0, stream);
  CALL(cuMemPrefetchAsync_v2, device_memory(run, kMiB), kMiB, device, 0, stream);
  CALL(cuMemAdvise_v2, address, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, device);
  CALL(cuMemRangeGetAttribute, &location, sizeof location, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
       address, kMiB);
  run.value("read mostly", location);
  CALL(cuMemAdvise_v2, address, kMiB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device);
  CALL(cuMemAdvise_v2, address, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device);
  CALL(cuMemRangeGetAttribute, &location, sizeof location,
       CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, kMiB);
  run.value("preferred", location);
  CALL(cuMemAdvise, address, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, 0);
  CALL(cuMemAdvise_v2, address, kMiB, static_cast<CUmem_advise>(99), device);
  CALL(cuMemAdvise_v2, device_memory(run, kMiB), kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, device);
  CALL(cuMemRangeGetAttribute, &location, 1, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, kMiB);
}

}  // namespace

void managed(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  CUdeviceptr address = 0;
  CALL(cuMemAllocManaged, &address, kMiB, CU_MEM_ATTACH_GLOBAL);
  if (address == 0) return;
  auto* words = reinterpret_cast<volatile uint32_t*>(address);
  words[0] = 5;
  words[63] = 6;
  launch_fill(run, kernels, nullptr, address, 9, 32);
  SETUP(cuCtxSynchronize);
  run.value("the host sees what the kernel wrote", words[0] == 9 && words[31] == 9);
  run.value("and what it wrote itself", words[63] == 6);
  CALL(cuMemsetD32_v2, address, 3, 64);
  SETUP(cuCtxSynchronize);
  run.value("the host sees what was set", words[0] == 3 && words[63] == 3);
  prefetch_and_advise(run, address);
  run.value("the host still sees it", words[0] == 3 && words[63] == 3);
  CALL(cuStreamAttachMemAsync, new_stream(run), address, 0, CU_MEM_ATTACH_SINGLE);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAllocManaged, &address, kMiB, CU_MEM_ATTACH_HOST);
  CALL(cuMemFree_v2, address);
  CALL(cuMemAllocManaged, &address, kMiB, 0);
  CALL(cuMemAllocManaged, &address, kMiB, CU_MEM_ATTACH_SINGLE);
  CALL(cuMemAllocManaged, &address, 0, CU_MEM_ATTACH_GLOBAL);
  CALL(cuMemAllocManaged, nullptr, kMiB, CU_MEM_ATTACH_GLOBAL);
}

}  // namespace nvshare::conformance
