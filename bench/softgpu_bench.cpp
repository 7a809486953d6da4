#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "softgpu/driver.h"

// What calls of the software GPU cost the calling thread, alone and with others on the same card:
// a launch that does nothing, and taking and giving back 2 MiB. Prints nanoseconds (medians) and
// how many times as much it is as for one process.
namespace {

using namespace nvshare::cuda;
using Clock = std::chrono::steady_clock;

constexpr const char* kModule = "//@softgpu kernel noop = noop()\n";
constexpr int kBatch = 400;  // fits the queue: no launch waits
constexpr int kBatches = 60;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: error %u\n", what, static_cast<unsigned>(result));
  std::exit(1);
}

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One of the processes: says "ready", waits for a byte, measures, prints two numbers.
int child() {
  CUcontext context{};
  CUmodule module{};
  CUfunction noop{};
  check(cuInit(0), "cuInit");
  check(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
  check(cuModuleLoadData(&module, kModule), "cuModuleLoadData");
  check(cuModuleGetFunction(&noop, module, "noop"), "cuModuleGetFunction");
  std::printf("ready\n");
  std::fflush(stdout);
  char go = 0;
  if (::read(0, &go, 1) != 1) return 1;
  std::vector<double> launches;
  std::vector<double> allocations;
  for (int batch = 0; batch < kBatches; ++batch) {
    auto start = Clock::now();
    for (int i = 0; i < kBatch; ++i) {
      check(cuLaunchKernel(noop, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), "launch");
    }
    launches.push_back(nanoseconds_since(start) / kBatch);
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    start = Clock::now();
    for (int i = 0; i < kBatch / 10; ++i) {
      CUdeviceptr address = 0;
      check(cuMemAlloc_v2(&address, 2 << 20), "cuMemAlloc");
      check(cuMemFree_v2(address), "cuMemFree");
    }
    allocations.push_back(nanoseconds_since(start) / (kBatch / 10));
  }
  std::printf("%f %f\n", median(launches), median(allocations));
  return 0;
}

struct Started {
  pid_t pid;
  int to;
  std::FILE* from;
};

Started start(const char* program) {
  int to[2];
  int from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) std::exit(1);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(to[0], 0);
    ::dup2(from[1], 1);
    ::execl(program, program, "--child", nullptr);
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  return {pid, to[1], ::fdopen(from[0], "r")};
}

struct Cost {
  double launch = 0;
  double allocation = 0;
};

Cost measure(const char* program, int processes) {
  std::vector<Started> all;
  for (int i = 0; i < processes; ++i) all.push_back(start(program));
  char line[128];
  for (const Started& one : all) {
    if (std::fgets(line, sizeof line, one.from) == nullptr) std::exit(1);
  }
  for (const Started& one : all) (void)!::write(one.to, "g", 1);
  Cost cost;
  for (const Started& one : all) {
    double launch = 0;
    double allocation = 0;
    if (std::fscanf(one.from, "%lf %lf", &launch, &allocation) != 2) std::exit(1);
    cost.launch += launch / processes;
    cost.allocation += allocation / processes;
    ::waitpid(one.pid, nullptr, 0);
    std::fclose(one.from);
    ::close(one.to);
  }
  return cost;
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::string(arguments[1]) == "--child") return child();
  ::setenv("NVSHARE_SOFTGPU_CARD", ("bench-" + std::to_string(::getpid())).c_str(), 1);
  ::setenv("NVSHARE_SOFTGPU_KERNEL_TIME", "0ns", 1);
  std::printf("processes  launch [ns]   ratio  alloc+free [ns]   ratio\n");
  Cost first;
  for (const int processes : {1, 2, 4, 8}) {
    const Cost cost = measure("/proc/self/exe", processes);
    if (processes == 1) first = cost;
    std::printf("%9d  %11.0f  %6.2f  %15.0f  %6.2f\n", processes, cost.launch,
                cost.launch / first.launch, cost.allocation, cost.allocation / first.allocation);
    std::fflush(stdout);
  }
  return 0;
}
