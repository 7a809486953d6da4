#pragma once

#include "wire/messages.h"

// The scheduler's socket, as everything in the interposer reaches it.
namespace nvshare::interposer::link {

// Where the scheduler listens; false when the path is too long.
bool socket_path(char (&path)[108]);

// A connection, or negative errno. Sending and receiving on it, as connecting, give up after a
// second, with -EAGAIN.
int connect_to_scheduler();

// The answer to the first message of a connection, with the descriptor that came along in *fd (the
// caller's to close; -1 when none) unless `fd` is null. Null when there is none: then *error is
// EAGAIN when none came in time, and something else when the connection was closed. `buffer` is
// aligned for any message.
const wire::Header* first_answer(int socket, char (&buffer)[wire::kMaxMessage], int* fd = nullptr,
                                 int* error = nullptr);

}  // namespace nvshare::interposer::link
