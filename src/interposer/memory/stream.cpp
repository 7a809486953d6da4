#include "interposer/catch/bodies.h"
#include "interposer/memory/count.h"
#include "interposer/memory/graph.h"
#include "interposer/memory/movable.h"
#include "interposer/memory/pool.h"

// Memory in stream order. In a stream that is being captured, an allocation is a node of a graph
// and counts with that (graph.cpp), and a free is one too.
namespace nvshare::interposer::memory {
namespace {

// The device whose pool cuMemAllocAsync takes from is the stream's.
gate::Gate* gate_of_stream(CUstream stream) {
  CUcontext current = nullptr;
  CUcontext other = nullptr;
  const bool has_own_context =
      stream != nullptr && stream != stream_legacy() && stream != stream_per_thread() &&
      real<FunctionId::cuCtxGetCurrent>(&current) == CUDA_SUCCESS &&
      real<FunctionId::cuStreamGetCtx>(stream, &other) == CUDA_SUCCESS && other != current;
  if (!has_own_context || real<FunctionId::cuCtxPushCurrent_v2>(other) != CUDA_SUCCESS) {
    return link::gate_of_current_device();
  }
  gate::Gate* gate = link::gate_of_current_device();
  real<FunctionId::cuCtxPopCurrent_v2>(&other);
  return gate;
}

template <typename Call>
CUresult allocate(gate::Gate* gate, CUdeviceptr* address, size_t bytes, Call call) {
  return link::allocate_with_scheduler(gate, [&](link::Again& again) {
    Charge charge(gate, bytes);
    if (charge.refused()) return again.refused();
    const CUresult result = call();
    if (result == CUDA_SUCCESS) charge.keep({KeyKind::kAddress, *address}, Lifetime::kPool);
    return result;
  });
}

// Whether an allocation in the stream is a node of a graph.
bool becomes_node(CUstream stream, bool per_thread) {
  if (!stream_is_capturing(stream, per_thread)) return false;
  g_graph_memory.store(true, std::memory_order_relaxed);
  return true;
}

template <FunctionId kFunction>
CUresult allocate_async(CUdeviceptr* address, size_t bytes, CUstream stream, bool per_thread) {
  const auto call = [&] { return real<kFunction>(address, bytes, stream); };
  if (address == nullptr || bytes == 0 || becomes_node(stream, per_thread)) return call();
  return allocate(gate_of_stream(stream), address, bytes, call);
}

template <FunctionId kFunction>
CUresult allocate_from_pool(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream,
                            bool per_thread) {
  const auto call = [&] { return real<kFunction>(address, bytes, pool, stream); };
  if (address == nullptr || bytes == 0 || becomes_node(stream, per_thread)) return call();
  return allocate(gate_of_pool(pool), address, bytes, call);
}

// Counted as free from the call on, as the pool may hand it out again in stream order.
template <FunctionId kFunction>
CUresult free_async(CUdeviceptr address, CUstream stream, bool per_thread) {
  const bool capturing = stream_is_capturing(stream, per_thread);
  // Memory that can move is freed at once, when the stream has come this far.
  if (!capturing && movable_range_of(address).base == address && address != 0) {
    const CUresult waited = per_thread ? real<FunctionId::cuStreamSynchronize_ptsz>(stream)
                                       : real<FunctionId::cuStreamSynchronize>(stream);
    if (waited != CUDA_SUCCESS) return waited;
    if (const moving::Freed freed = movable_free(address); freed.ours) {
      tell_freed(freed);
      return freed.result;
    }
  }
  const Serial before = mark();
  const CUresult result = real<kFunction>(address, stream);
  if (result != CUDA_SUCCESS || capturing) return result;
  uncount({KeyKind::kAddress, address}, before);
  left_freed(address);
  return result;
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<FunctionId::cuMemAllocAsync>(address, bytes, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<FunctionId::cuMemAllocAsync_ptsz>(address, bytes, stream, true);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  return allocate_from_pool<FunctionId::cuMemAllocFromPoolAsync>(address, bytes, pool, stream,
                                                                 false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  return allocate_from_pool<FunctionId::cuMemAllocFromPoolAsync_ptsz>(address, bytes, pool, stream,
                                                                      true);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async<FunctionId::cuMemFreeAsync>(address, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async<FunctionId::cuMemFreeAsync_ptsz>(address, stream, true);
}

}  // namespace nvshare::interposer::own
