#pragma once

#include <stddef.h>

#include "wire/messages.h"

// Packets over Unix sockets: for both ends, without the C++ library. Errors are negative errno.
namespace nvshare::wire {

inline constexpr const char* kProgramSocket = "scheduler.sock";  // in the run directory
inline constexpr const char* kControlSocket = "control.sock";
inline constexpr const char* kApiSocket = "api.sock";            // HTTP
inline constexpr const char* kSchedulerLock = "scheduler.lock";  // held as long as one lives
inline constexpr const char* kRunDirectoryVariable = "NVSHARE_RUN_DIR";
inline constexpr const char* kSystemRunDirectory = "/run/nvshare";

// A connected descriptor (close-on-exec, blocking). With a timeout (seconds) connecting, sending
// and receiving give up after it, with -EAGAIN.
int connect_to(const char* path, int timeout = 0);
// A listening descriptor (close-on-exec, non-blocking). A socket file that nobody listens on
// is replaced, and so is a link to one or to nowhere; -EADDRINUSE when somebody does.
int listen_at(const char* path, unsigned mode);

// Sends one message, with a descriptor when `fd` is not negative. Never raises SIGPIPE and, with
// `wait` false, never blocks: -EAGAIN when the other end does not read.
int send(int socket, const Header* message, bool wait, int fd = -1);

// Receives one packet of at most kMaxMessage bytes into `buffer` (aligned for any message). A
// descriptor that came with it is put into *fd (the caller's to close; -1 when none), and any more
// are closed; with `fd` null the kernel keeps them all to itself. Returns its length, 0 when the
// other end is gone; a packet that is too long is -EMSGSIZE.
int receive(int socket, void* buffer, bool wait, int* fd = nullptr);

}  // namespace nvshare::wire
