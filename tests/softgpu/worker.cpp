#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "softgpu/driver.h"
#include "softgpu/fixture.h"

// A program for tests of several processes: does one thing with the card, says "ready" when it has
// begun and waits for a line on its standard input before it goes on.
namespace nvshare::softgpu {
namespace {

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("%s: %u\n", what, static_cast<unsigned>(result));
  std::exit(1);
}

struct Gpu {
  CUcontext context{};
  CUmodule module{};
  Gpu() {
    check(cuInit(0), "cuInit");
    check(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    check(cuModuleLoadData(&module, kModule), "cuModuleLoadData");
  }
  template <typename... Values>
  CUresult launch(const char* name, Values... values) {
    CUfunction function{};
    check(cuModuleGetFunction(&function, module, name), name);
    void* params[] = {&values..., nullptr};
    return cuLaunchKernel(function, 1, 1, 1, 1024, 1, 1, 0, nullptr, params, nullptr);
  }
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string wait_for_line() {
  char line[64];
  if (std::fgets(line, sizeof line, stdin) == nullptr) std::exit(2);
  return line;
}

void sleep_until(void* time) {
  const long at = *static_cast<long*>(time);
  const timespec when{at / 1'000'000'000, at % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, nullptr) == EINTR) {
  }
}

// Queues kernels of `kernel` nanoseconds that begin at the time it is told, and says how long they
// took by the card's own times.
int busy(unsigned long kernel, int kernels) {
  Gpu gpu;
  CUevent start{};
  CUevent end{};
  check(cuEventCreate(&start, 0), "cuEventCreate");
  check(cuEventCreate(&end, 0), "cuEventCreate");
  say("ready");
  long begin = std::stol(wait_for_line());
  check(cuLaunchHostFunc(nullptr, sleep_until, &begin), "cuLaunchHostFunc");
  check(cuEventRecord(start, nullptr), "cuEventRecord");
  for (int i = 0; i < kernels; ++i) check(gpu.launch("spin", kernel), "spin");
  check(cuEventRecord(end, nullptr), "cuEventRecord");
  check(cuEventSynchronize(end), "cuEventSynchronize");
  float elapsed = 0;
  check(cuEventElapsedTime(&elapsed, start, end), "cuEventElapsedTime");
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double cpu = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
                     static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
  char line[64];
  std::snprintf(line, sizeof line, "%.3f %.1f", static_cast<double>(elapsed), cpu);
  say(line);
  return 0;
}

// Takes memory in pieces until there is none, and says how much it got.
int fill_memory(std::size_t piece) {
  Gpu gpu;
  say("ready");
  wait_for_line();
  std::size_t taken = 0;
  CUdeviceptr address = 0;
  while (cuMemAlloc_v2(&address, piece) == CUDA_SUCCESS) taken += piece;
  say(std::to_string(taken));
  wait_for_line();
  return 0;
}

// Holds everything a process can hold, with work that never ends, until it is killed.
int hold() {
  setenv("NVSHARE_SOFTGPU_HANG_KERNEL", "1", 1);
  Gpu gpu;
  CUdeviceptr address = 0;
  check(cuMemAlloc_v2(&address, std::size_t{256} << 20), "cuMemAlloc");
  check(cuMemAllocManaged(&address, 1 << 20, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle{};
  check(cuMemCreate(&handle, std::size_t{64} << 20, &prop, 0), "cuMemCreate");
  check(gpu.launch("spin", 1000ul), "spin");
  say("ready");
  wait_for_line();
  return 0;
}

int sticky() {
  Gpu gpu;
  CUdeviceptr nowhere = 0x1000;
  check(gpu.launch("fill32", nowhere, 1u, 1ul), "fill32");
  if (cuCtxSynchronize() != CUDA_ERROR_ILLEGAL_ADDRESS) return 1;
  CUdeviceptr address = 0;
  if (cuMemAlloc_v2(&address, 4) != CUDA_ERROR_ILLEGAL_ADDRESS) return 2;
  if (cuStreamQuery(nullptr) != CUDA_ERROR_ILLEGAL_ADDRESS) return 3;
  if (cuCtxDestroy_v2(gpu.context) != CUDA_SUCCESS) return 4;
  CUcontext again{};
  if (cuCtxCreate_v2(&again, 0, 0) != CUDA_ERROR_ILLEGAL_ADDRESS) return 5;
  return 0;
}

// What each fault, set by the environment, makes of a little work.
int work() {
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) {
    say("init " + std::to_string(result));
    return 0;
  }
  Gpu gpu;
  CUdeviceptr address = 0;
  std::string line = "alloc";
  for (int i = 0; i < 3; ++i) line += " " + std::to_string(cuMemAlloc_v2(&address, 4096));
  say(line);
  line = "copy";
  unsigned word = 7;
  for (int i = 0; i < 3; ++i) {
    line += " " + std::to_string(cuMemcpyHtoD_v2(address, &word, 4));
  }
  say(line);
  line = "launch " + std::to_string(gpu.launch("spin", 1000ul));
  line += " " + std::to_string(cuCtxSynchronize());
  say(line);
  return 0;
}

// Says how much is free, in MiB: with nothing of the module used, and after the first use, the
// second, the module's end, and the end of a context with a module that was used in a graph.
int load_modules() {
  Gpu gpu;
  std::string line = "free";
  const auto look = [&](CUresult result) {
    std::size_t free = 0;
    std::size_t total = 0;
    check(result, "load_modules");
    check(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    line += " " + std::to_string(free >> 20);
  };
  look(CUDA_SUCCESS);
  look(gpu.launch("spin", 1000ul));
  look(gpu.launch("noop"));
  look(cuModuleUnload(gpu.module));
  CUcontext first = gpu.context;
  check(cuCtxCreate_v2(&gpu.context, 0, 0), "cuCtxCreate");
  check(cuModuleLoadData(&gpu.module, kModule), "cuModuleLoadData");
  CUDA_KERNEL_NODE_PARAMS node{};
  node.gridDimX = node.gridDimY = node.gridDimZ = 1;
  node.blockDimX = node.blockDimY = node.blockDimZ = 1;
  check(cuModuleGetFunction(&node.func, gpu.module, "noop"), "noop");
  CUgraph graph{};
  CUgraphNode made{};
  check(cuGraphCreate(&graph, 0), "cuGraphCreate");
  look(cuGraphAddKernelNode_v2(&made, graph, nullptr, 0, &node));
  check(cuCtxDestroy_v2(gpu.context), "cuCtxDestroy");
  look(cuCtxSetCurrent(first));
  say(line);
  return 0;
}

// Says the bus of each device that it sees, takes 64 MiB of the last one and spins there; waits.
int see() {
  const CUresult started = cuInit(0);
  if (started != CUDA_SUCCESS) {
    say("init " + std::to_string(started));
    return 0;
  }
  int count = 0;
  check(cuDeviceGetCount(&count), "cuDeviceGetCount");
  std::string line = "sees";
  for (int device = 0; device < count; ++device) {
    char bus[32] = {};
    check(cuDeviceGetPCIBusId(bus, sizeof bus, device), "cuDeviceGetPCIBusId");
    line += " " + std::string(bus);
  }
  Gpu gpu;
  check(cuCtxCreate_v2(&gpu.context, 0, count - 1), "cuCtxCreate");
  check(cuModuleLoadData(&gpu.module, kModule), "cuModuleLoadData");
  CUdeviceptr address = 0;
  check(cuMemAlloc_v2(&address, std::size_t{64} << 20), "cuMemAlloc");
  check(gpu.launch("fill32", address, 7u, 1024ul), "fill32");
  check(cuCtxSynchronize(), "cuCtxSynchronize");
  say(line);
  wait_for_line();
  return 0;
}

// Says how many MiB are free on each device.
int free_everywhere() {
  check(cuInit(0), "cuInit");
  int count = 0;
  check(cuDeviceGetCount(&count), "cuDeviceGetCount");
  std::string line = "free";
  for (int device = 0; device < count; ++device) {
    CUcontext context{};
    std::size_t free = 0;
    std::size_t total = 0;
    check(cuCtxCreate_v2(&context, 0, device), "cuCtxCreate");
    check(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    line += " " + std::to_string(free >> 20);
  }
  say(line);
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const std::string& what = arguments.at(0);
  if (what == "busy") {
    return busy(std::stoul(arguments.at(1)), std::stoi(arguments.at(2)));
  }
  if (what == "fill") return fill_memory(std::stoul(arguments.at(1)));
  if (what == "hold") return hold();
  if (what == "sticky") return sticky();
  if (what == "work") return work();
  if (what == "modules") return load_modules();
  if (what == "see") return see();
  if (what == "free") return free_everywhere();
  return 64;
}

}  // namespace
}  // namespace nvshare::softgpu

int main(int count, char** arguments) {
  return nvshare::softgpu::run({arguments + 1, arguments + count});
}
