#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "run.h"

// What several sections need. Everything here prints only what fails.
namespace nvshare::conformance {

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;

// Device 0 with its primary context, current to this thread.
struct Card {
  cuda::CUdevice device = -1;
  cuda::CUcontext context = nullptr;
};
Card use_card(const Run& run);

cuda::CUdeviceptr device_memory(const Run& run, size_t bytes);
cuda::CUdeviceptr pinned_memory_on_device(const Run& run, size_t bytes, void** host);
cuda::CUstream new_stream(const Run& run, unsigned flags = cuda::CU_STREAM_NON_BLOCKING);
cuda::CUevent new_event(const Run& run, unsigned flags = cuda::CU_EVENT_DEFAULT);
size_t free_memory(const Run& run);

// Fills with cuMemsetD32 and waits.
void fill(const Run& run, cuda::CUdeviceptr address, uint32_t value, size_t count);

// The first `count` words at the address.
std::vector<uint32_t> words_at(const Run& run, cuda::CUdeviceptr address, size_t count);

// Whether `count` words at the address all have this value.
bool all_words(const Run& run, cuda::CUdeviceptr address, uint32_t value, size_t count);

// Parameters of fill32, in the form that kernelParams wants.
struct FillParams {
  cuda::CUdeviceptr dst;
  uint32_t value;
  uint64_t count;
  void* pointers[3] = {&dst, &value, &count};

  FillParams(cuda::CUdeviceptr address, uint32_t word, uint64_t words)
      : dst(address), value(word), count(words) {}
  FillParams(const FillParams&) = delete;
  FillParams& operator=(const FillParams&) = delete;
};

// Starts fill32 over `count` words.
void launch_fill(const Run& run, const Kernels& kernels, cuda::CUstream stream,
                 cuda::CUdeviceptr dst, uint32_t value, uint64_t count);

// Starts spin for so many milliseconds.
void launch_spin(const Run& run, const Kernels& kernels, cuda::CUstream stream,
                 unsigned milliseconds);

}  // namespace nvshare::conformance
