#include "interposer/bodies.h"
#include "interposer/memory_count.h"

// Contexts end, and the memory that was allocated in them with them. Memory of pools, of graphs and
// of the virtual memory API belongs to the device and outlives them.
namespace nvshare::interposer {
namespace {

constexpr uint32_t kPlainTag = 0;

uint64_t number_of(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
}

uint64_t locked_owner_of(CUcontext context) {
  const Lock lock(g_books.mutex);
  return owner_of(context);
}

void note(Table<CUdevice>& table, const void* handle, CUdevice device) {
  const Lock lock(g_books.mutex);
  CUdevice before = 0;
  if (table.hold()) table.put(number_of(handle), kPlainTag, device, before);
}

void end_owner(uint64_t owner, Serial before) {
  uncount_owner(owner, before);
  // Should the driver have dropped the device's pools too.
  uncount_unknown(Lifetime::kPool);
}

template <FunctionId kFunction>
CUresult destroy_context(CUcontext context) {
  const Serial before = mark();
  const uint64_t owner = locked_owner_of(context);
  const CUresult result = real<kFunction>(context);
  if (result == CUDA_SUCCESS) {
    {
      const Lock lock(g_books.mutex);
      g_books.attachments.remove(number_of(context), kPlainTag);
    }
    end_owner(owner, before);
  }
  return result;
}

// Whether this was the last of the context's attachments.
bool detach(CUcontext context) {
  const Lock lock(g_books.mutex);
  uint64_t* count = g_books.attachments.find(number_of(context), kPlainTag);
  if (count == nullptr) return true;
  *count -= 1;
  if (*count == 0) g_books.attachments.remove(number_of(context), kPlainTag);
  return false;
}

void end_primary_if_inactive(CUdevice device, Serial before) {
  unsigned flags = 0;
  int active = 1;
  const CUresult result =
      real<FunctionId::cuDevicePrimaryCtxGetState>(device, &flags, &active);
  if (result == CUDA_SUCCESS && active == 0) end_owner(owner_of_primary(device), before);
}

template <FunctionId kFunction>
CUresult release_primary(CUdevice device) {
  const Serial before = mark();
  const CUresult result = real<kFunction>(device);
  if (result == CUDA_SUCCESS) end_primary_if_inactive(device, before);
  return result;
}

template <FunctionId kFunction>
CUresult reset_primary(CUdevice device) {
  const Serial before = mark();
  const CUresult result = real<kFunction>(device);
  if (result == CUDA_SUCCESS) end_owner(owner_of_primary(device), before);
  return result;
}

}  // namespace

namespace own {

CUresult cuCtxDestroy(CUcontext ctx) {
  return destroy_context<FunctionId::cuCtxDestroy>(ctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return destroy_context<FunctionId::cuCtxDestroy_v2>(ctx);
}

CUresult cuCtxAttach(CUcontext* ctx, unsigned flags) {
  const CUresult result = real<FunctionId::cuCtxAttach>(ctx, flags);
  if (result != CUDA_SUCCESS) return result;
  const Lock lock(g_books.mutex);
  uint64_t* count = g_books.attachments.find(number_of(*ctx), kPlainTag);
  uint64_t before = 0;
  if (count != nullptr) {
    *count += 1;
  } else if (g_books.attachments.hold()) {
    g_books.attachments.put(number_of(*ctx), kPlainTag, 1, before);
  }
  return result;
}

CUresult cuCtxDetach(CUcontext ctx) {
  const Serial before = mark();
  const uint64_t owner = locked_owner_of(ctx);
  const CUresult result = real<FunctionId::cuCtxDetach>(ctx);
  if (result == CUDA_SUCCESS && detach(ctx)) end_owner(owner, before);
  return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice device) {
  const CUresult result = real<FunctionId::cuDevicePrimaryCtxRetain>(ctx, device);
  if (result == CUDA_SUCCESS) note(g_books.of_primary, *ctx, device);
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release_primary<FunctionId::cuDevicePrimaryCtxRelease>(device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release_primary<FunctionId::cuDevicePrimaryCtxRelease_v2>(device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return reset_primary<FunctionId::cuDevicePrimaryCtxReset>(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset_primary<FunctionId::cuDevicePrimaryCtxReset_v2>(device);
}

// A green context holds its device's primary context, and memory allocated in it is that one's.

CUresult cuGreenCtxCreate(CUgreenCtx* ctx, CUdevResourceDesc desc, CUdevice device,
                          unsigned flags) {
  const CUresult result = real<FunctionId::cuGreenCtxCreate>(ctx, desc, device, flags);
  if (result == CUDA_SUCCESS) note(g_books.greens, *ctx, device);
  return result;
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx ctx) {
  const CUresult result = real<FunctionId::cuCtxFromGreenCtx>(context, ctx);
  if (result != CUDA_SUCCESS) return result;
  CUdevice device = -1;
  {
    const Lock lock(g_books.mutex);
    if (const CUdevice* found = g_books.greens.find(number_of(ctx), kPlainTag)) device = *found;
  }
  if (device >= 0) note(g_books.of_primary, *context, device);
  return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx ctx) {
  CUdevice device = -1;
  {
    const Lock lock(g_books.mutex);
    if (const CUdevice* found = g_books.greens.find(number_of(ctx), kPlainTag)) device = *found;
  }
  const Serial before = mark();
  const CUresult result = real<FunctionId::cuGreenCtxDestroy>(ctx);
  if (result == CUDA_SUCCESS && device >= 0) end_primary_if_inactive(device, before);
  return result;
}

}  // namespace own
}  // namespace nvshare::interposer
