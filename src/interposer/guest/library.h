#pragma once

#include "interposer/guest/elf.h"

// The libraries that we stand in front of, as they are loaded.
namespace nvshare::interposer::guest {

// Whether this is the library of that soname ("libcuda.so.1"), whatever its file is called, or a
// file of that name, whatever its soname is.
bool is_library(const Object& object, const char* soname);

// The first one that is loaded.
bool find_loaded(const char* soname, Object& object);

// dlopen without the message that it leaves when it fails, which is none of the host's business.
void* open_quietly(const char* path, int mode);

// A program may close its library again, but we go on calling it.
void keep_loaded(const Object& object);

}  // namespace nvshare::interposer::guest
