#include "softgpu/runtime/memory_ops.h"

#include <sys/mman.h>

#include <algorithm>

namespace nvshare::softgpu {
namespace {

constexpr std::uint64_t kSmallLimit = std::uint64_t{1} << 20;

// Charges the card; when it is full, what idle pools hold of it is given up first.
bool charge(Call& call, int device, std::uint64_t bytes) {
  Runtime& rt = call.rt;
  if (rt.fault_due(rt.config.fail_allocation, rt.allocations)) return false;
  if (charge_memory(*rt.segment, device, bytes)) return true;
  rt.pump(call.lock);
  for (auto& [handle, pool] : rt.pools.all()) trim_pool(rt, *pool, 0);
  return charge_memory(*rt.segment, device, bytes);
}

std::optional<Piece> take_pages(Call& call, int device, std::uint64_t bytes) {
  if (!charge(call, device, bytes)) return std::nullopt;
  auto piece = call.rt.pages.take(bytes);
  if (!piece) release_memory(*call.rt.segment, device, bytes);
  return piece;
}

void give_back_pages(Runtime& rt, int device, const Piece& piece) {
  rt.pages.give_back(piece);
  release_memory(*rt.segment, device, piece.bytes);
}

}  // namespace

CUresult allocate_device(Call& call, int device, std::uint64_t bytes, Allocation& out) {
  Runtime& rt = call.rt;
  out.bytes = bytes;
  out.device = device;
  out.id = rt.new_id();
  out.context = call.ctx;
  if (bytes > rt.device_config(device).memory) return CUDA_ERROR_OUT_OF_MEMORY;
  SmallBlocks& blocks = rt.small_blocks[static_cast<std::size_t>(device)];
  out.small = bytes <= kSmallLimit;
  if (out.small) {
    auto address = blocks.place(bytes);
    if (address && rt.fault_due(rt.config.fail_allocation, rt.allocations)) {
      if (auto empty = blocks.free(*address, bytes)) give_back_pages(rt, device, *empty);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!address) {
      const auto block = take_pages(call, device, kBlock);
      if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
      blocks.add_block(*block);
      address = blocks.place(bytes);
    }
    out.base = *address;
    out.piece = *blocks.block_of(*address);
  } else {
    const auto piece = take_pages(call, device, round_up(bytes, kBlock));
    if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
    out.base = piece->address;
    out.piece = *piece;
  }
  rt.addresses.allocations[out.base] = out;
  return CUDA_SUCCESS;
}

void free_allocation(Runtime& rt, std::uint64_t base) {
  const auto found = rt.addresses.allocations.find(base);
  if (found == rt.addresses.allocations.end()) return;
  const Allocation allocation = found->second;
  rt.addresses.allocations.erase(found);
  switch (allocation.kind) {
    case MemoryKind::kDevice:
      if (!allocation.small) {
        give_back_pages(rt, allocation.device, allocation.piece);
      } else if (auto empty = rt.small_blocks[static_cast<std::size_t>(allocation.device)].free(
                     base, allocation.bytes)) {
        give_back_pages(rt, allocation.device, *empty);
      }
      break;
    case MemoryKind::kManaged:
      rt.residence.leave(*rt.segment, allocation, allocation.base, allocation.bytes);
      [[fallthrough]];
    case MemoryKind::kHostPinned:
    case MemoryKind::kImported:
      ::munmap(reinterpret_cast<void*>(allocation.piece.address), allocation.piece.bytes);
      break;
    case MemoryKind::kPool:
    case MemoryKind::kHostRegistered:
      break;
  }
}

std::shared_ptr<Pool> new_pool(Runtime& rt, int device) {
  auto pool = std::make_shared<Pool>();
  pool->handle = reinterpret_cast<CUmemoryPool>(rt.new_handle());
  pool->device = device;
  pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool->props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  rt.pools.add(reinterpret_cast<std::uint64_t>(pool->handle), pool);
  return pool;
}

CUresult allocate_from_pool(Call& call, const std::shared_ptr<Pool>& pool, std::uint64_t bytes,
                            std::uint64_t& address) {
  Runtime& rt = call.rt;
  if (pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (pool->props.maxSize != 0 &&
      bytes > pool->props.maxSize - std::min(pool->used, pool->props.maxSize)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (bytes > rt.device_config(pool->device).memory) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t size = round_up(bytes, kBlock);
  auto idle = pool->idle.lower_bound(size);
  // A piece that is much too large is left for someone who needs it.
  Piece piece;
  if (idle != pool->idle.end() && idle->first <= 2 * size) {
    if (rt.fault_due(rt.config.fail_allocation, rt.allocations)) return CUDA_ERROR_OUT_OF_MEMORY;
    piece = idle->second;
    pool->idle.erase(idle);
  } else {
    auto fresh = take_pages(call, pool->device, size);
    if (!fresh) {
      // Memory whose freeing is still on its way counts too.
      rt.wait_all(call.lock, nullptr);
      trim_pools(rt);
      trim_pool(rt, *pool, 0);
      fresh = take_pages(call, pool->device, size);
    }
    if (!fresh) return CUDA_ERROR_OUT_OF_MEMORY;
    piece = *fresh;
    pool->reserved += size;
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  }
  Allocation allocation;
  allocation.base = piece.address;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kPool;
  allocation.device = pool->device;
  allocation.context = call.ctx;
  allocation.pool = pool;
  allocation.id = rt.new_id();
  allocation.piece = piece;
  rt.addresses.allocations[piece.address] = allocation;
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
  address = piece.address;
  return CUDA_SUCCESS;
}

void return_to_pool(Runtime& rt, std::uint64_t address) {
  const auto found = rt.addresses.allocations.find(address);
  if (found == rt.addresses.allocations.end()) return;
  const Allocation allocation = found->second;
  rt.addresses.allocations.erase(found);
  auto pool = allocation.pool.lock();
  if (pool && pool->imported) {
    ::munmap(reinterpret_cast<void*>(allocation.piece.address), allocation.piece.bytes);
  } else if (pool) {
    pool->used -= std::min(pool->used, allocation.bytes);
    pool->idle.emplace(allocation.piece.bytes, allocation.piece);
    // A pool that was destroyed lives on only for what was taken from it.
    if (!rt.pools.find(pool->handle)) trim_pool(rt, *pool, 0);
  } else {
    give_back_pages(rt, allocation.device, allocation.piece);
  }
}

void trim_pool(Runtime& rt, Pool& pool, std::uint64_t keep) {
  while (!pool.idle.empty() && pool.reserved > keep) {
    const auto largest = std::prev(pool.idle.end());
    pool.reserved -= std::min(pool.reserved, largest->first);
    give_back_pages(rt, pool.device, largest->second);
    pool.idle.erase(largest);
  }
}

void trim_pools(Runtime& rt) {
  for (auto& [handle, pool] : rt.pools.all()) {
    if (!pool->idle.empty()) trim_pool(rt, *pool, pool->threshold);
  }
}

CUresult open_context(Call& call, int device, unsigned flags, std::shared_ptr<Context>& out) {
  Runtime& rt = call.rt;
  if (rt.lost(device)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  // After a fault the process gets no new context on the device.
  for (const auto& [handle, other] : rt.contexts.all()) {
    if (other->device == device && other->error != CUDA_SUCCESS) return other->error;
  }
  const auto own = static_cast<std::uint64_t>(rt.config.context_memory.count);
  if (own > 0 && !charge_memory(*rt.segment, device, own)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto context = std::make_shared<Context>();
  context->handle = reinterpret_cast<CUcontext>(rt.new_handle());
  context->device = device;
  context->flags = flags;
  context->id = rt.new_id();
  context->memory = own;
  context->legacy = std::make_shared<Stream>();
  context->legacy->handle = stream_legacy();
  context->legacy->context = context;
  context->legacy->legacy = true;
  context->legacy->id = rt.new_id();
  rt.contexts.add(reinterpret_cast<std::uint64_t>(context->handle), context);
  {
    Segment::Lock card_lock(*rt.segment);
    ++rt.segment->self().usage[rt.segment->on_card(device)].has_context;
  }
  auto& pool = rt.default_pool[static_cast<std::size_t>(device)];
  if (!pool) {
    pool = new_pool(rt, device);
    pool->standard = true;
    rt.current_pool[static_cast<std::size_t>(device)] = pool;
  }
  out = context;
  return CUDA_SUCCESS;
}

CUresult load_code(Call& call, Module& module) {
  const auto own = static_cast<std::uint64_t>(call.rt.config.module_memory.count);
  const auto context = module.context.lock();
  if (own == 0 || module.memory != 0 || !context) return CUDA_SUCCESS;
  if (!charge_memory(*call.rt.segment, context->device, own)) return CUDA_ERROR_OUT_OF_MEMORY;
  module.memory = own;
  return CUDA_SUCCESS;
}

void unload_module(Call& call, Module& module) {
  Runtime& rt = call.rt;
  if (const auto context = module.context.lock(); context && module.memory > 0) {
    release_memory(*rt.segment, context->device, module.memory);
  }
  for (const auto& [name, address] : module.globals) free_allocation(rt, address);
  for (const auto& function : module.in_order) rt.functions.remove(function->handle);
  rt.modules.remove(module.handle);
}

void close_context(Call& call, const std::shared_ptr<Context>& context) {
  Runtime& rt = call.rt;
  rt.end_work(call.lock, context.get());
  rt.wait_for_effects(call.lock);
  context->dead = true;
  for (const auto& stream : context->streams) rt.streams.remove(stream->handle);
  context->streams.clear();
  context->per_thread.clear();
  std::vector<std::shared_ptr<Module>> modules;
  for (auto& [handle, module] : rt.modules.all()) {
    if (module->context.lock() == context) modules.push_back(module);
  }
  for (const auto& module : modules) unload_module(call, *module);
  for (auto& [handle, library] : rt.libraries.all()) library->modules.erase(context->handle);
  std::vector<std::uint64_t> mine;
  for (auto& [base, allocation] : rt.addresses.allocations) {
    if (allocation.context.lock() != context || allocation.graph) continue;
    if (allocation.kind == MemoryKind::kPool) continue;
    mine.push_back(base);
  }
  for (const std::uint64_t base : mine) free_allocation(rt, base);
  std::erase_if(rt.arrays.all(),
                [&](const auto& one) { return one.second->context.lock() == context; });
  std::erase_if(rt.events.all(),
                [&](const auto& one) { return one.second->context.lock() == context; });
  if (context->memory > 0) release_memory(*rt.segment, context->device, context->memory);
  Segment::Lock card_lock(*rt.segment);
  std::uint32_t& count = rt.segment->self().usage[rt.segment->on_card(context->device)].has_context;
  if (count > 0) --count;
}

}  // namespace nvshare::softgpu
