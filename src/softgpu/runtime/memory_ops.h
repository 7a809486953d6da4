#pragma once

#include "softgpu/runtime/call.h"

// Taking and giving back device memory, with the card's account kept.
namespace nvshare::softgpu {

// Plain device memory. Fails with out of memory only after what others hold needlessly is gone.
CUresult allocate_device(Call& call, int device, std::uint64_t bytes, Allocation& out);
// Gives back whatever cuMemFree takes; the caller has waited for work that may use it.
void free_allocation(Runtime& rt, std::uint64_t base);

// Stream-ordered memory.
CUresult allocate_from_pool(Call& call, const std::shared_ptr<Pool>& pool, std::uint64_t bytes,
                            std::uint64_t& address);
void return_to_pool(Runtime& rt, std::uint64_t address);
void trim_pool(Runtime& rt, Pool& pool, std::uint64_t keep);
// Brings every pool down to its threshold, as happens whenever the host waits for the device.
void trim_pools(Runtime& rt);
std::shared_ptr<Pool> new_pool(Runtime& rt, int device);

// A context's own memory and its default stream.
CUresult open_context(Call& call, int device, unsigned flags, std::shared_ptr<Context>& out);
// Ends all that belongs to the context.
void close_context(Call& call, const std::shared_ptr<Context>& context);
// A module's code is loaded when the first of its kernels is used: out of memory, when there is
// none for it. Once it is there this does nothing.
CUresult load_code(Call& call, Module& module);
void unload_module(Call& call, Module& module);

}  // namespace nvshare::softgpu
