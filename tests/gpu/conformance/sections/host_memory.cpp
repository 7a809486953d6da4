// Host memory that the device reaches: allocated, registered.

#include <cstdlib>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void allocated(Run& run, const Kernels& kernels) {
  void* host = nullptr;
  void* other = nullptr;
  CUdeviceptr address = 0;
  unsigned flags = 99;
  CALL(cuMemHostAlloc, &host, kMiB, 0);
  if (host == nullptr) return;
  CALL(cuMemHostGetDevicePointer_v2, &address, host, 0);
  run.value("the same address on the device", address == reinterpret_cast<CUdeviceptr>(host));
  CALL(cuMemHostGetFlags, &flags, host);
  run.value("flags", flags);
  launch_fill(run, kernels, nullptr, address, 12, 64);
  SETUP(cuCtxSynchronize);
  run.value("the kernel wrote to it", static_cast<volatile uint32_t*>(host)[63]);
  void* inside = static_cast<char*>(host) + 64;
  CALL(cuMemHostGetDevicePointer_v2, &address, inside, 0);
  run.value("inside", address == reinterpret_cast<CUdeviceptr>(inside));
  CALL(cuMemFreeHost, inside);
  CALL(cuMemFreeHost, host);
  CALL(cuMemFreeHost, host);
  CALL(cuMemFreeHost, nullptr);
  CALL(cuMemAllocHost_v2, &host, kMiB);
  CALL(cuMemHostGetFlags, &flags, host);
  run.value("flags", flags);
  CALL(cuMemFree_v2, reinterpret_cast<CUdeviceptr>(host));
  CALL(cuMemHostUnregister, host);
  CALL(cuMemFreeHost, host);
  CALL(cuMemHostAlloc, &host, kMiB,
       CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED);
  CALL(cuMemHostGetFlags, &flags, host);
  run.value("flags", flags);
  CALL(cuMemFreeHost, host);
  CALL(cuMemHostAlloc, &other, kMiB, 0x80);
  CALL(cuMemHostAlloc, &other, 0, 0);
  CALL(cuMemHostAlloc, nullptr, kMiB, 0);
  CALL(cuMemHostAlloc, &other, size_t{1} << 50, 0);
  CALL(cuMemAllocHost_v2, &other, 0);
}

void registered(Run& run) {
  void* memory = std::aligned_alloc(4096, kMiB);
  void* half = static_cast<char*>(memory) + kMiB / 2;
  void* odd = static_cast<char*>(memory) + 100;
  void* other = std::aligned_alloc(4096, kMiB);
  CUdeviceptr address = 0;
  unsigned flags = 99;
  unsigned type = 0;
  CALL(cuMemHostRegister_v2, memory, kMiB, 0);
  CALL(cuMemHostRegister_v2, memory, kMiB, 0);
  CALL(cuMemHostRegister_v2, half, 4096, 0);
  CALL(cuMemHostGetDevicePointer_v2, &address, memory, 0);
  run.value("the same address on the device", address == reinterpret_cast<CUdeviceptr>(memory));
  CALL(cuMemHostGetFlags, &flags, memory);
  run.value("flags", flags);
  CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
       reinterpret_cast<CUdeviceptr>(memory));
  run.value("type", type);
  CALL(cuMemFreeHost, memory);
  CALL(cuMemHostUnregister, half);
  CALL(cuMemHostUnregister, memory);
  CALL(cuMemHostUnregister, memory);
  CALL(cuMemHostGetDevicePointer_v2, &address, memory, 0);
  CALL(cuMemHostRegister_v2, odd, 5000, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  CALL(cuMemHostUnregister, odd);
  CALL(cuMemHostRegister_v2, memory, 0, 0);
  CALL(cuMemHostRegister_v2, nullptr, 4096, 0);
  CALL(cuMemHostRegister_v2, other, kMiB, 0x80);
  CALL(cuMemHostRegister_v2, other, kMiB, CU_MEMHOSTREGISTER_READ_ONLY);
  CALL(cuMemHostRegister, other, kMiB, 0);
  CALL(cuMemHostUnregister, other);
  CALL(cuMemHostUnregister, nullptr);
  CALL(cuMemHostGetDevicePointer_v2, &address, nullptr, 0);
  CALL(cuMemHostGetDevicePointer_v2, nullptr, memory, 0);
  CALL(cuMemHostGetFlags, &flags, other);
  CALL(cuMemHostRegister_v2, reinterpret_cast<void*>(uintptr_t{0x10000}), 4096, 0);
  std::free(memory);
  std::free(other);
}

}  // namespace

void host_memory(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  allocated(run, kernels);
  run.heading("registered");
  registered(run);
}

}  // namespace nvshare::conformance
