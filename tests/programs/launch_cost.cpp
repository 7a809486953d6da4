// What the library adds to a launch, or to an allocation and its free: through it and straight to
// the driver, in turns in one process, so that whatever else the machine does happens to both.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/units.h"
#include "interposer/guest/elf.h"
#include "programs/driver.h"
#include "programs/job_kernels.h"

namespace nvshare::programs {
namespace {

constexpr int kBatch = 500;
constexpr int kBatches = 40;  // of each: 20,000 launches

constexpr const char* kUsage =
    "usage: launch-cost [--allocations N [--size SIZE]]\n"
    "  Launches empty kernels, through the library and straight to the driver, and prints\n"
    "  nanoseconds for each. With --allocations: N times cuMemAlloc and cuMemFree of SIZE (2Mi)\n"
    "  instead, in microseconds for both, and their ratio.\n";

using Launch = Signature<FunctionId::cuLaunchKernel>*;
using Allocate = Signature<FunctionId::cuMemAlloc_v2>*;
using Free = Signature<FunctionId::cuMemFree_v2>*;

struct Options {
  int allocations = 0;  // 0: launches
  std::size_t size = std::size_t{2} << 20;
};

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "launch-cost: %s: %s\n", what, result_name(result));
  std::exit(1);
}

// Nanoseconds per launch of one batch.
double batch(const Driver& driver, Launch launch, CUfunction kernel, CUstream stream) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kBatch; ++i) {
    check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
  }
  const auto end = std::chrono::steady_clock::now();
  check(driver.call<FunctionId::cuStreamSynchronize>(stream), "cuStreamSynchronize");
  return std::chrono::duration<double, std::nano>(end - begin).count() / kBatch;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The functions of the driver, without the library.
template <typename Function>
Function straight_to(const char* symbol) {
  interposer::Object library{};
  if (!interposer::find_object_named("libcuda.so.1", library)) std::exit(1);
  return reinterpret_cast<Function>(library.function(symbol));
}

struct Pair {
  Allocate allocate;
  Free free;
};

// Microseconds for one allocation and its free.
double batch(const Pair& pair, int count, std::size_t size) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    CUdeviceptr address = 0;
    check(pair.allocate(&address, size), "cuMemAlloc");
    check(pair.free(address), "cuMemFree");
  }
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - begin).count() / count;
}

int allocations(const Driver& driver, const Options& options) {
  const Pair through{reinterpret_cast<Allocate>(driver.address(FunctionId::cuMemAlloc_v2)),
                     reinterpret_cast<Free>(driver.address(FunctionId::cuMemFree_v2))};
  const Pair straight{straight_to<Allocate>("cuMemAlloc_v2"), straight_to<Free>("cuMemFree_v2")};
  const int count = std::max(1, options.allocations / kBatches);
  std::vector<double> with;
  std::vector<double> without;
  for (const Pair& pair : {through, straight}) batch(pair, count, options.size);  // warm
  for (int i = 0; i < kBatches; ++i) {
    with.push_back(batch(through, count, options.size));
    without.push_back(batch(straight, count, options.size));
  }
  std::printf("allocations=%d size=%zu library=%s with_us=%.3f without_us=%.3f ratio=%.3f\n",
              count * kBatches, options.size, through.allocate == straight.allocate ? "no" : "yes",
              median(with), median(without), median(with) / median(without));
  return 0;
}

int run(const Options& options) {
  Driver driver;
  if (const std::string error = driver.open(false); !error.empty()) {
    std::fprintf(stderr, "launch-cost: %s\n", error.c_str());
    return 1;
  }
  CUcontext context{};
  CUmodule module{};
  CUfunction kernel{};
  CUstream stream{};
  check(driver.call<FunctionId::cuInit>(0U), "cuInit");
  check(driver.call<FunctionId::cuCtxCreate_v2>(&context, 0U, 0), "cuCtxCreate");
  if (options.allocations > 0) return allocations(driver, options);
  check(driver.call<FunctionId::cuModuleLoadData>(&module, kJobKernels), "cuModuleLoadData");
  check(driver.call<FunctionId::cuModuleGetFunction>(&kernel, module, "noop"), "the kernel");
  check(driver.call<FunctionId::cuStreamCreate>(&stream, 0U), "cuStreamCreate");

  const auto through = reinterpret_cast<Launch>(driver.address(FunctionId::cuLaunchKernel));
  const auto straight = straight_to<Launch>("cuLaunchKernel");
  std::vector<double> with;
  std::vector<double> without;
  for (int i = 0; i < 4; ++i) batch(driver, through, kernel, stream);  // a grant, warm caches
  for (int i = 0; i < kBatches; ++i) {
    with.push_back(batch(driver, through, kernel, stream));
    without.push_back(batch(driver, straight, kernel, stream));
  }
  std::printf("launches=%d library=%s with_ns=%.1f without_ns=%.1f percent=%.2f\n",
              kBatch * kBatches, through == straight ? "no" : "yes", median(with), median(without),
              100 * (median(with) / median(without) - 1));
  return 0;
}

// False: they make no sense.
bool parse(int count, char** words, Options& options) {
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    if (i + 1 == count) return false;
    if (name == "--allocations") {
      options.allocations = std::atoi(words[i + 1]);
      if (options.allocations <= 0) return false;
    } else if (name == "--size") {
      const auto size = parse_bytes(words[i + 1]);
      if (!size || size->count <= 0) return false;
      options.size = static_cast<std::size_t>(size->count);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace nvshare::programs

int main(int count, char** words) {
  nvshare::programs::Options options;
  if (nvshare::programs::parse(count, words, options)) return nvshare::programs::run(options);
  std::fputs(nvshare::programs::kUsage, stderr);
  return 2;
}
