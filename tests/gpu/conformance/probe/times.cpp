// What calls cost in time. For orientation: medians of a few tries on whatever else is going on.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The median time of the call, in microseconds.
template <typename Call>
void timed(const Run& run, const char* what, int times, Call call) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const Clock::time_point start = Clock::now();
    call();
    all.push_back(microseconds_since(start));
  }
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  run.value((std::string(what) + ", us").c_str(), all[static_cast<std::size_t>(times) / 2]);
}

void starting(Run& run) {
  Clock::time_point start = Clock::now();
  SETUP(cuInit, 0);
  run.value("cuInit, us", microseconds_since(start));
  CUcontext context = nullptr;
  start = Clock::now();
  SETUP(cuDevicePrimaryCtxRetain, &context, 0);
  run.value("cuDevicePrimaryCtxRetain, us", microseconds_since(start));
  SETUP(cuCtxSetCurrent, context);
  start = Clock::now();
  SETUP(cuStreamSynchronize, nullptr);
  run.value("first cuStreamSynchronize, us", microseconds_since(start));
}

void small_calls(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  const CUevent event = new_event(run);
  const CUdeviceptr address = device_memory(run, kMiB);
  CUdeviceptr made = 0;
  uint32_t word = 0;
  const auto launch = [&] {
    SETUP(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  };
  timed(run, "launch", 200, launch);
  SETUP(cuStreamSynchronize, stream);
  timed(run, "launch and wait", 200, [&] {
    launch();
    SETUP(cuStreamSynchronize, stream);
  });
  timed(run, "wait for an idle stream", 200, [&] { SETUP(cuStreamSynchronize, stream); });
  timed(run, "cuStreamQuery", 200, [&] { SETUP(cuStreamQuery, stream); });
  timed(run, "cuEventRecord", 200, [&] { SETUP(cuEventRecord, event, stream); });
  timed(run, "cuMemAlloc and cuMemFree of 2 MiB", 50, [&] {
    SETUP(cuMemAlloc_v2, &made, 2 * kMiB);
    SETUP(cuMemFree_v2, made);
  });
  timed(run, "cuMemAllocAsync and cuMemFreeAsync of 2 MiB", 200, [&] {
    SETUP(cuMemAllocAsync, &made, 2 * kMiB, stream);
    SETUP(cuMemFreeAsync, made, stream);
  });
  timed(run, "cuMemcpyDtoH of 4 bytes", 200,
        [&] { SETUP(cuMemcpyDtoH_v2, &word, address, sizeof word); });
  timed(run, "cuMemcpyHtoD of 4 bytes", 200,
        [&] { SETUP(cuMemcpyHtoD_v2, address, &word, sizeof word); });
  timed(run, "cuModuleLoadData", 5, [&] { load_kernels(run); });
}

void copies_of_64_mib(Run& run) {
  constexpr size_t bytes = 64 * kMiB;
  const CUdeviceptr a = device_memory(run, bytes);
  const CUdeviceptr b = device_memory(run, bytes);
  void* pinned = nullptr;
  SETUP(cuMemHostAlloc, &pinned, bytes, 0);
  void* pageable = std::malloc(bytes);
  std::memset(pageable, 1, bytes);
  timed(run, "64 MiB to the device, pinned", 5, [&] { SETUP(cuMemcpyHtoD_v2, a, pinned, bytes); });
  timed(run, "64 MiB from the device, pinned", 5,
        [&] { SETUP(cuMemcpyDtoH_v2, pinned, a, bytes); });
  timed(run, "64 MiB to the device, pageable", 5,
        [&] { SETUP(cuMemcpyHtoD_v2, a, pageable, bytes); });
  timed(run, "64 MiB from the device, pageable", 5,
        [&] { SETUP(cuMemcpyDtoH_v2, pageable, a, bytes); });
  timed(run, "64 MiB on the device", 5, [&] {
    SETUP(cuMemcpyDtoD_v2, a, b, bytes);
    SETUP(cuCtxSynchronize);
  });
  timed(run, "call of cuMemcpyDtoD alone", 5, [&] { SETUP(cuMemcpyDtoD_v2, a, b, bytes); });
  timed(run, "call of cuMemcpyHtoDAsync alone, pinned", 5,
        [&] { SETUP(cuMemcpyHtoDAsync_v2, a, pinned, bytes, nullptr); });
  timed(run, "call of cuMemcpyHtoDAsync alone, pageable", 5,
        [&] { SETUP(cuMemcpyHtoDAsync_v2, a, pageable, bytes, nullptr); });
  SETUP(cuCtxSynchronize);
  timed(run, "call of cuMemsetD8 alone", 5, [&] { SETUP(cuMemsetD8_v2, a, 0, bytes); });
  SETUP(cuCtxSynchronize);
  std::free(pageable);
}

void spinning(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  const CUevent start = new_event(run);
  const CUevent end = new_event(run);
  for (const unsigned milliseconds : {1u, 10u, 100u}) {
    float measured = 0;
    SETUP(cuEventRecord, start, stream);
    launch_spin(run, kernels, stream, milliseconds);
    SETUP(cuEventRecord, end, stream);
    SETUP(cuEventSynchronize, end);
    SETUP(cuEventElapsedTime_v2, &measured, start, end);
    run.value(("spin of " + std::to_string(milliseconds) + " ms takes, ms").c_str(),
              static_cast<double>(measured));
  }
  // Two non-blocking streams: do kernels of one process run side by side?
  const CUstream other = new_stream(run);
  const Clock::time_point begin = Clock::now();
  launch_spin(run, kernels, stream, 50);
  launch_spin(run, kernels, other, 50);
  SETUP(cuCtxSynchronize);
  run.value("two spins of 50 ms on two streams take, us", microseconds_since(begin));
}

}  // namespace

void probe_times(Run& run) {
  starting(run);
  const Kernels kernels = load_kernels(run);
  small_calls(run, kernels);
  copies_of_64_mib(run);
  spinning(run, kernels);
}

}  // namespace nvshare::conformance
