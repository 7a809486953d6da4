// alloc-cost [COUNT [SIZE]]: what an allocation and its free take together, so many times one after
// the other. Run with and without the library, in turns, it tells what the library adds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "base/units.h"
#include "programs/driver.h"

namespace nvshare::programs {
namespace {

constexpr int kBatches = 20;

[[noreturn]] void fail(const std::string& what, int code) {
  fmt::print(stderr, "alloc-cost: {}\n", what);
  std::exit(code);
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = result_name(result);
  fail(fmt::format("{}: {}", what, name == nullptr ? "unknown error" : name), 1);
}

// Microseconds for each pair.
double batch(const Driver& driver, std::int64_t count, std::size_t size) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < count; ++i) {
    CUdeviceptr address = 0;
    check(driver.call<FunctionId::cuMemAlloc_v2>(&address, size), "cuMemAlloc");
    check(driver.call<FunctionId::cuMemFree_v2>(address), "cuMemFree");
  }
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - begin).count() /
         static_cast<double>(count);
}

int run(const std::vector<std::string>& words) {
  const auto count = parse_integer(words.empty() ? "2000" : words[0], kBatches, 1'000'000'000);
  const auto size = parse_bytes(words.size() < 2 ? "2Mi" : words[1]);
  if (words.size() > 2 || !count || !size || size->count == 0) {
    fail(fmt::format("usage: alloc-cost [COUNT [SIZE]], COUNT at least {}", kBatches), 2);
  }
  Driver driver;
  if (const std::string error = driver.open(false); !error.empty()) fail(error, 1);
  CUcontext context{};
  check(driver.call<FunctionId::cuInit>(0U), "cuInit");
  check(driver.call<FunctionId::cuDevicePrimaryCtxRetain>(&context, 0), "cuDevicePrimaryCtxRetain");
  check(driver.call<FunctionId::cuCtxSetCurrent>(context), "cuCtxSetCurrent");

  const auto bytes = static_cast<std::size_t>(size->count);
  std::vector<double> times;
  batch(driver, *count / kBatches, bytes);  // warm
  for (int i = 0; i < kBatches; ++i) times.push_back(batch(driver, *count / kBatches, bytes));
  std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
  fmt::print("allocations={} size={} pair_us={:.3f}\n", *count, bytes, times[kBatches / 2]);
  return 0;
}

}  // namespace
}  // namespace nvshare::programs

int main(int count, char** words) {
  return nvshare::programs::run({words + 1, words + count});
}
