#include "interposer/catch/bodies.h"
#include "interposer/memory/count.h"
#include "interposer/memory/imports.h"
#include "interposer/memory/memory.h"
#include "interposer/memory/movable.h"

// Contexts end, and the memory that was allocated in them with them. Memory of pools, of graphs and
// of the virtual memory API belongs to the device and outlives them.
namespace nvshare::interposer::memory {
namespace {

constexpr uint32_t kPlainTag = 0;

uint64_t number_of(CUcontext context) {
  return reinterpret_cast<uint64_t>(context);
}

}  // namespace

uint64_t memory_mark() {
  return mark();
}

void memory_context_gone(CUcontext context, uint64_t before) {
  {
    const Lock lock(g_books.mutex);
    g_books.attachments.remove(number_of(context), kPlainTag);
  }
  uncount_context(context, before);
  for (moving::Freed freed; (freed = movable_context_gone(context)).ours;) {
    tell_freed(freed);
  }
  imports_context_gone(context);
  // Should the driver have emptied the device's pools too.
  uncount_unknown(Lifetime::kPool);
}

bool memory_last_attachment(CUcontext context) {
  const Lock lock(g_books.mutex);
  uint64_t* count = g_books.attachments.find(number_of(context), kPlainTag);
  if (count == nullptr) return true;
  *count -= 1;
  if (*count == 0) g_books.attachments.remove(number_of(context), kPlainTag);
  return false;
}

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

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

}  // namespace nvshare::interposer::own
