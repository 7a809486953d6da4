// Every way to start a kernel, with checked results; wrong ways.

#include <atomic>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr unsigned kWords = 1000;

void right_ways(Run& run, const Kernels& kernels) {
  const CUdeviceptr address = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  const CUfunction fill32 = kernels.fill32;
  FillParams p1(address, 1, kWords);
  FillParams p2(address, 2, kWords);
  FillParams p3(address, 3, kWords);
  CALL(cuLaunchKernel, fill32, 2, 1, 1, 96, 1, 1, 0, stream, p1.pointers, nullptr);
  SETUP(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, address, 1, kWords));
  CALL(cuLaunchKernel, fill32, 1, 1, 1, 1, 1, 1, 0, nullptr, p2.pointers, nullptr);
  run.value("filled", all_words(run, address, 2, kWords));
  CALL(cuLaunchKernel_ptsz, fill32, 1, 1, 1, 1, 1, 1, 0, nullptr, p3.pointers, nullptr);
  SETUP(cuStreamSynchronize, stream_per_thread());
  run.value("filled", all_words(run, address, 3, kWords));
  CALL(cuLaunchKernel, fill32, 1, 1, 1, 1, 1, 1, 0, stream_per_thread(), p1.pointers, nullptr);
  SETUP(cuStreamSynchronize, stream_per_thread());
  run.value("filled", all_words(run, address, 1, kWords));
  CALL(cuLaunchKernel, fill32, 1, 1, 1, 1, 1, 1, 0, stream_legacy(), p2.pointers, nullptr);
  run.value("filled", all_words(run, address, 2, kWords));
  CALL(cuLaunchCooperativeKernel, fill32, 2, 1, 1, 32, 1, 1, 0, stream, p3.pointers);
  SETUP(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, address, 3, kWords));

  struct {
    CUdeviceptr dst;
    uint32_t value;
    uint32_t padding;
    uint64_t count;
  } buffer = {address, 4, 0, kWords};
  size_t bytes = sizeof buffer;
  void* extra[] = {launch_param_buffer_pointer(), &buffer, launch_param_buffer_size(), &bytes,
                   launch_param_end()};
  CALL(cuLaunchKernel, fill32, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra);
  SETUP(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, address, 4, kWords));
  CALL(cuLaunchKernel, fill32, 1, 1, 1, 32, 1, 1, 0, stream, p1.pointers, extra);
  CALL(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  CALL(cuLaunchKernel, kernels.noop, 1, 1, 1, 1, 1, 1, 0, stream, p1.pointers, nullptr);
  CALL(cuStreamSynchronize, stream);
}

void with_a_configuration(Run& run, const Kernels& kernels) {
  const CUdeviceptr address = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  FillParams p5(address, 5, kWords);
  FillParams p6(address, 6, kWords);
  CUlaunchConfig config = {};
  config.gridDimX = 2;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 64;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  CALL(cuLaunchKernelEx, &config, kernels.fill32, p5.pointers, nullptr);
  SETUP(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, address, 5, kWords));
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attributes[0].value.cooperative = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[1].value.priority = 0;
  config.attrs = attributes;
  config.numAttrs = 2;
  CALL_WHERE("cooperative, with a priority", cuLaunchKernelEx, &config, kernels.fill32, p6.pointers,
             nullptr);
  SETUP(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, address, 6, kWords));
  attributes[0] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim = {2, 1, 1};
  config.numAttrs = 1;
  CALL_WHERE("clusters of 2", cuLaunchKernelEx, &config, kernels.fill32, p5.pointers, nullptr);
  SETUP(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, address, 5, kWords));
  attributes[0].value.clusterDim = {3, 1, 1};
  CALL_WHERE("clusters of 3", cuLaunchKernelEx, &config, kernels.fill32, p5.pointers, nullptr);
  attributes[0].id = static_cast<CUlaunchAttributeID>(200);
  CALL_WHERE("an unknown attribute", cuLaunchKernelEx, &config, kernels.fill32, p5.pointers,
             nullptr);
  config.attrs = nullptr;
  CALL_WHERE("attrs = nullptr", cuLaunchKernelEx, &config, kernels.fill32, p5.pointers, nullptr);
  config.numAttrs = 0;
  config.gridDimX = 0;
  CALL_WHERE("gridDimX = 0", cuLaunchKernelEx, &config, kernels.fill32, p5.pointers, nullptr);
  CALL(cuLaunchKernelEx, nullptr, kernels.fill32, p5.pointers, nullptr);
  CALL(cuStreamSynchronize, stream);
}

void the_old_way(Run& run, const Kernels& kernels) {
  const CUdeviceptr address = device_memory(run, kMiB);
  CUdeviceptr dst = address;
  uint64_t count = kWords;
  CALL(cuFuncSetBlockShape, kernels.fill32, 32, 1, 1);
  CALL(cuFuncSetSharedSize, kernels.fill32, 0);
  CALL(cuParamSetv, kernels.fill32, 0, &dst, sizeof dst);
  CALL(cuParamSeti, kernels.fill32, 8, 8);
  CALL(cuParamSetv, kernels.fill32, 16, &count, sizeof count);
  CALL(cuParamSetSize, kernels.fill32, 24);
  CALL(cuLaunchGrid, kernels.fill32, 2, 1);
  SETUP(cuCtxSynchronize);
  run.value("filled", all_words(run, address, 8, kWords));
  CALL(cuParamSeti, kernels.fill32, 8, 9);
  CALL(cuLaunchGridAsync, kernels.fill32, 2, 1, nullptr);
  SETUP(cuCtxSynchronize);
  run.value("filled", all_words(run, address, 9, kWords));
  CALL(cuParamSeti, kernels.fill32, 8, 10);
  CALL(cuLaunch, kernels.fill32);
  SETUP(cuCtxSynchronize);
  run.value("filled", all_words(run, address, 10, kWords));
}

void what_kernels_do(Run& run, const Kernels& kernels) {
  CUdeviceptr a = device_memory(run, kMiB);
  CUdeviceptr b = device_memory(run, kMiB);
  uint64_t words = kWords;
  uint64_t bytes = kWords * 4;
  uint32_t number = 31;
  uint32_t factor = 3;
  uint64_t result = 0;
  fill(run, a, 11, kWords);
  fill(run, b, 0, kWords);
  void* add[] = {&a, &number, &words};
  CALL(cuLaunchKernel, kernels.add32, 4, 1, 1, 64, 1, 1, 0, nullptr, add, nullptr);
  run.value("added", all_words(run, a, 42, kWords));
  void* scale[] = {&a, &factor, &words};
  CALL(cuLaunchKernel, kernels.scale32, 4, 1, 1, 64, 1, 1, 0, nullptr, scale, nullptr);
  run.value("scaled", all_words(run, a, 126, kWords));
  void* copy[] = {&b, &a, &bytes};
  CALL(cuLaunchKernel, kernels.copy, 4, 1, 1, 64, 1, 1, 0, nullptr, copy, nullptr);
  run.value("copied", all_words(run, b, 126, kWords));
  void* out_of_a[] = {&b, &a, &bytes};
  CALL(cuLaunchKernel, kernels.checksum, 4, 1, 1, 64, 1, 1, 0, nullptr, out_of_a, nullptr);
  SETUP(cuMemcpyDtoH_v2, &result, b, sizeof result);
  run.value("sum", result);
  CALL(cuLaunchKernel, kernels.hash, 4, 1, 1, 64, 1, 1, 0, nullptr, out_of_a, nullptr);
  SETUP(cuMemcpyDtoH_v2, &result, b, sizeof result);
  run.value("hash", result);
}

void wrong_ways(Run& run, const Kernels& kernels) {
  const CUdeviceptr address = device_memory(run, kMiB);
  const CUstream s = nullptr;
  const CUfunction f = kernels.fill32;
  FillParams params(address, 1, kWords);
  void** p = params.pointers;
  void* unfinished[] = {launch_param_buffer_pointer(), &params.dst, launch_param_end()};
  void* unknown[] = {reinterpret_cast<void*>(uintptr_t{77}), &params.dst, launch_param_end()};
  CALL(cuLaunchKernel, f, 0, 1, 1, 1, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 0, 1, 1, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 0, 1, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 0, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1025, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1025, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 65, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 512, 4, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 65536, 1, 1, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 65536, 1, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 0x80000000u, 1, 1, 1, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 48 * 1024, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 48 * 1024 + 1, s, p, nullptr);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 100000000, s, p, nullptr);
  CALL(cuLaunchKernel, nullptr, 1, 1, 1, 1, 1, 1, 0, s, p, nullptr);
  CALL(cuLaunchCooperativeKernel, f, 1000000, 1, 1, 1024, 1, 1, 0, s, p);
  CALL(cuLaunchCooperativeKernel, nullptr, 1, 1, 1, 1, 1, 1, 0, s, p);
  CALL(cuCtxSynchronize);
  // Last: should one of these start after all, with what happens to lie there, the context is lost.
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, nullptr, unknown);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, nullptr, unfinished);
  CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr);
  CALL(cuCtxSynchronize);
}

void host_function(void* flag) {
  ++*static_cast<std::atomic<int>*>(flag);
}

void host_functions(Run& run) {
  const CUstream stream = new_stream(run);
  std::atomic<int> called{0};
  CALL(cuLaunchHostFunc, stream, host_function, &called);
  CALL(cuStreamSynchronize, stream);
  run.value("called", called.load());
  CALL(cuLaunchHostFunc, nullptr, host_function, &called);
  CALL(cuStreamSynchronize, nullptr);
  run.value("called", called.load());
  CALL(cuLaunchHostFunc_ptsz, nullptr, host_function, &called);
  CALL(cuStreamSynchronize_ptsz, nullptr);
  run.value("called", called.load());
  CALL(cuLaunchHostFunc, stream, nullptr, &called);
  CALL(cuStreamSynchronize, stream);
}

}  // namespace

void launches(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  right_ways(run, kernels);
  run.heading("cuLaunchKernelEx");
  with_a_configuration(run, kernels);
  run.heading("what kernels do");
  what_kernels_do(run, kernels);
  run.heading("host functions");
  host_functions(run);
  run.heading("the old way");
  the_old_way(run, kernels);
  run.heading("wrong ways");
  wrong_ways(run, kernels);
}

}  // namespace nvshare::conformance
