#pragma once

namespace nvshare::interposer {

// Called once the process has something that a child must not have: a connection, a thread.
void handle_forks();

// In the child of a fork of a process that had used the GPU. The driver does not work there, nor do
// we: everything is passed on as it is.
bool in_forked_child();

void forget_links_after_fork();

}  // namespace nvshare::interposer
