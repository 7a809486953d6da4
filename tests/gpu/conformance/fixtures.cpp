#include "fixtures.h"

#include <algorithm>

namespace nvshare::conformance {

using namespace cuda;

Card use_card(const Run& run) {
  Card card;
  SETUP(cuInit, 0);
  SETUP(cuDeviceGet, &card.device, 0);
  SETUP(cuDevicePrimaryCtxRetain, &card.context, card.device);
  SETUP(cuCtxSetCurrent, card.context);
  return card;
}

Kernels load_kernels(const Run& run) {
  Kernels kernels;
  SETUP(cuModuleLoadData, &kernels.module, kKernels);
  SETUP(cuModuleGetFunction, &kernels.noop, kernels.module, "noop");
  SETUP(cuModuleGetFunction, &kernels.fill32, kernels.module, "fill32");
  SETUP(cuModuleGetFunction, &kernels.add32, kernels.module, "add32");
  SETUP(cuModuleGetFunction, &kernels.scale32, kernels.module, "scale32");
  SETUP(cuModuleGetFunction, &kernels.copy, kernels.module, "copy");
  SETUP(cuModuleGetFunction, &kernels.checksum, kernels.module, "checksum");
  SETUP(cuModuleGetFunction, &kernels.hash, kernels.module, "hash");
  SETUP(cuModuleGetFunction, &kernels.spin, kernels.module, "spin");
  return kernels;
}

CUdeviceptr device_memory(const Run& run, size_t bytes) {
  CUdeviceptr address = 0;
  SETUP(cuMemAlloc_v2, &address, bytes);
  return address;
}

CUdeviceptr pinned_memory_on_device(const Run& run, size_t bytes, void** host) {
  CUdeviceptr address = 0;
  SETUP(cuMemHostAlloc, host, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
  SETUP(cuMemHostGetDevicePointer_v2, &address, *host, 0);
  return address;
}

CUstream new_stream(const Run& run, unsigned flags) {
  CUstream stream = nullptr;
  SETUP(cuStreamCreate, &stream, flags);
  return stream;
}

CUevent new_event(const Run& run, unsigned flags) {
  CUevent event = nullptr;
  SETUP(cuEventCreate, &event, flags);
  return event;
}

size_t free_memory(const Run& run) {
  size_t available = 0;
  size_t total = 0;
  SETUP(cuMemGetInfo_v2, &available, &total);
  return available;
}

void fill(const Run& run, CUdeviceptr address, uint32_t value, size_t count) {
  SETUP(cuMemsetD32_v2, address, value, count);
  SETUP(cuCtxSynchronize);
}

std::vector<uint32_t> words_at(const Run& run, CUdeviceptr address, size_t count) {
  std::vector<uint32_t> words(count, 0xdeadbeef);
  SETUP(cuMemcpyDtoH_v2, words.data(), address, count * sizeof(uint32_t));
  return words;
}

bool all_words(const Run& run, CUdeviceptr address, uint32_t value, size_t count) {
  const std::vector<uint32_t> words = words_at(run, address, count);
  return std::all_of(words.begin(), words.end(), [=](uint32_t word) { return word == value; });
}

void launch_fill(const Run& run, const Kernels& kernels, CUstream stream, CUdeviceptr dst,
                 uint32_t value, uint64_t count) {
  FillParams params(dst, value, count);
  SETUP(cuLaunchKernel, kernels.fill32, 4, 1, 1, 128, 1, 1, 0, stream, params.pointers, nullptr);
}

void launch_spin(const Run& run, const Kernels& kernels, CUstream stream, unsigned milliseconds) {
  uint64_t nanoseconds = uint64_t{milliseconds} * 1'000'000;
  void* params[] = {&nanoseconds};
  SETUP(cuLaunchKernel, kernels.spin, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
}

}  // namespace nvshare::conformance
