// A program of the CUDA runtime API, built with the runtime linked statically and as a library:
// streams, events, asynchronous and managed memory, a graph, a cooperative launch.
#include <cooperative_groups.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                \
  do {                                                                             \
    const cudaError_t error = (call);                                              \
    if (error != cudaSuccess) {                                                    \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));          \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

constexpr int kCount = 1 << 20;
constexpr int kThreads = 256;
constexpr int kBlocks = kCount / kThreads;

__global__ void begin(float* x) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = static_cast<float>(i % 1009) / 1009.0f;
}

__global__ void step(float* y, const float* x, float a) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = a * x[i] + 0.5f * y[i];
}

// One sum for each block, always in the same order.
__global__ void sums(float* out, const float* x) {
  __shared__ float part[kThreads];
  part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__global__ void together(float* x, int count) {
  const auto grid = cooperative_groups::this_grid();
  for (int round = 0; round < 4; ++round) {
    for (int i = static_cast<int>(grid.thread_rank()); i < count;
         i += static_cast<int>(grid.size())) {
      x[i] = x[i] * 1.0001f + static_cast<float>(round);
    }
    grid.sync();
  }
}

std::uint64_t hash(std::uint64_t state, const std::vector<float>& values) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(float); ++i) {
    state = (state ^ bytes[i]) * 0x100000001b3ull;
  }
  return state;
}

int main() {
  const std::size_t bytes = kCount * sizeof(float);
  cudaStream_t streams[2];
  cudaEvent_t done;
  for (cudaStream_t& stream : streams) {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  float* x = nullptr;
  float* y = nullptr;
  float* shared = nullptr;
  float* partial = nullptr;
  CHECK(cudaMalloc(&x, bytes));
  CHECK(cudaMallocAsync(&y, bytes, streams[0]));
  CHECK(cudaMallocManaged(&shared, bytes));
  CHECK(cudaMalloc(&partial, kBlocks * sizeof(float)));
  CHECK(cudaMemsetAsync(y, 0, bytes, streams[0]));
  begin<<<kBlocks, kThreads, 0, streams[1]>>>(x);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(done, streams[1]));
  CHECK(cudaStreamWaitEvent(streams[0], done, 0));

  for (int i = 0; i < 3000; ++i) {
    step<<<kBlocks, kThreads, 0, streams[0]>>>(y, x, 0.001f * static_cast<float>(i % 17));
  }
  CHECK(cudaGetLastError());

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 20; ++i) step<<<kBlocks, kThreads, 0, streams[0]>>>(y, x, 0.01f);
  CHECK(cudaStreamEndCapture(streams[0], &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 200; ++i) CHECK(cudaGraphLaunch(executable, streams[0]));

  int count = kCount;
  int resident = 0;
  int processors = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, together, kThreads, 0));
  CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  void* parameters[] = {&y, &count};
  CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(together),
                                    dim3(static_cast<unsigned>(resident * processors)),
                                    dim3(kThreads), parameters, 0, streams[0]));
  CHECK(cudaMemcpyAsync(shared, y, bytes, cudaMemcpyDefault, streams[0]));
  CHECK(cudaStreamSynchronize(streams[0]));
  sums<<<kBlocks, kThreads>>>(partial, shared);
  CHECK(cudaDeviceSynchronize());

  std::vector<float> all(kCount);
  std::vector<float> parts(kBlocks);
  CHECK(cudaMemcpy(all.data(), y, bytes, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(parts.data(), partial, kBlocks * sizeof(float), cudaMemcpyDeviceToHost));
  int version = 0;
  CHECK(cudaRuntimeGetVersion(&version));
  const std::uint64_t digest = hash(hash(0xcbf29ce484222325ull, all), parts);
  std::printf("RESULT {\"digest\": \"%016llx\", \"versions\": {\"cudart\": \"%d\"}}\n",
              static_cast<unsigned long long>(digest), version);
  CHECK(cudaFreeAsync(y, streams[0]));
  CHECK(cudaFree(x));
  CHECK(cudaFree(shared));
  CHECK(cudaFree(partial));
  CHECK(cudaDeviceSynchronize());
  return 0;
}
