#pragma once

#include "interposer/guest/ground.h"

namespace nvshare::interposer::guest {

// dlopen with RTLD_DEEPBIND, for a file whose finding does not depend on who asks. Such a library
// takes its functions from its own libraries before any preloaded one, and so past us: what it has
// of the driver's, of NVML's and of dlsym is led back to us. (The flag itself is the program's wish
// and stays.)
void* open_deep(const char* file, int mode);

// Whether the C library finds the same file whoever asks for it.
bool is_found_alike(const char* file, const void* caller);

}  // namespace nvshare::interposer::guest
