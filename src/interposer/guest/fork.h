#pragma once

#include "interposer/guest/ground.h"

namespace nvshare::interposer::guest {

// Called once the process has something that a child must not have as it is: a connection, a
// thread, a lock that a thread may hold.
void handle_forks();

// In the child of a fork of a process that had used the GPU. The driver does not work there, nor do
// we: everything is passed on as it is.
bool in_forked_child();

}  // namespace nvshare::interposer::guest
