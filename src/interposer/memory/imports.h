#pragma once

#include "interposer/memory/ipc_handle.h"
#include "interposer/moving/swap/swap.h"

// Memory of other processes under nvshare that this process has opened (cuIpcOpenMemHandle). It is
// mapped at addresses of ours, and counts at its owner alone. For threads of the program, with no
// lock of ours held.
namespace nvshare::interposer::memory {

// In the current context. Memory that the context has open already gets the same address once more.
CUresult import_open(const IpcHandle& handle, CUdeviceptr* address);

// False: the address is none of these, and the driver is to be asked. The last close unmaps it.
bool import_close(CUdeviceptr address, CUresult* result);

// What an address lies in, as the driver answers for memory that it opened itself.
moving::Range import_range_of(CUdeviceptr address);

// The driver has ended a context, and what was opened in it is closed.
void imports_context_gone(CUcontext context);

void forget_imports_after_fork();

}  // namespace nvshare::interposer::memory
