#pragma once

#include "wire/messages.h"

namespace nvshare::interposer::memory {

// For the link's thread: somebody at the other end of the socket, which is taken, has asked for the
// memory. Answered by a thread of its own: neither exporting nor sending holds up the link.
void ipc_answer(int socket, const wire::IpcMemory& memory);

void forget_answers_after_fork();

}  // namespace nvshare::interposer::memory
