// What the library adds to a launch: empty launches through it and straight to the driver, in turns
// in one process, so that whatever else the machine does happens to both.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "interposer/elf.h"
#include "programs/driver.h"
#include "programs/job_kernels.h"

namespace nvshare::programs {
namespace {

constexpr int kBatch = 500;
constexpr int kBatches = 40;  // of each: 20,000 launches

using Launch = Signature<FunctionId::cuLaunchKernel>*;

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

int run() {
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
  check(driver.call<FunctionId::cuModuleLoadData>(&module, kJobKernels), "cuModuleLoadData");
  check(driver.call<FunctionId::cuModuleGetFunction>(&kernel, module, "noop"), "the kernel");
  check(driver.call<FunctionId::cuStreamCreate>(&stream, 0U), "cuStreamCreate");

  const auto through = reinterpret_cast<Launch>(driver.address(FunctionId::cuLaunchKernel));
  interposer::Object library{};
  if (!interposer::find_object_named("libcuda.so.1", library)) return 1;
  const auto straight = reinterpret_cast<Launch>(library.function("cuLaunchKernel"));
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

}  // namespace
}  // namespace nvshare::programs

int main() {
  return nvshare::programs::run();
}
