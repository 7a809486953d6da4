#pragma once

#include "interposer/gate/gate.h"
#include "wire/messages.h"

// How processes that share memory find each other: through the scheduler, by a name that each owner
// has chosen at random. docs/protocol.md tells the story.
namespace nvshare::interposer::link {

// So long a process waits for the owner of memory that it opens.
inline constexpr uint64_t kIpcPatience = 2'000'000'000;

// Bytes that nobody can guess; false when the kernel gives none.
bool random_bytes(void* to, size_t bytes);

// Others find this process by the name from now on, through the gate's connection and those that
// follow it. False when they cannot: the scheduler is of before protocol 1.4, or there is no name.
bool ipc_announce(gate::Gate& gate, uint8_t (&name)[wire::kIpcNameLength]);
// Whether the name is this process's own.
bool ipc_is_own(const uint8_t (&name)[wire::kIpcNameLength]);

// A socket to the owner of the memory, which answers with an IpcPiece for each chunk; receiving
// from it gives up after kIpcPatience. -1 when no owner is found by then.
int ipc_reach(const uint8_t (&owner)[wire::kIpcNameLength], const wire::IpcMemory& memory,
              uint64_t deadline);

void forget_ipc_after_fork();

}  // namespace nvshare::interposer::link
