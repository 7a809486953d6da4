#pragma once

// The roads by which programs come to functions, beside linking and cuGetProcAddress: dlsym, dlvsym
// and, for what it does to those two, dlopen. roads.cpp exports them.
namespace nvshare::interposer::catching {

enum class Road { Sym, Vsym, Open };

const char* road_name(Road road);
void* our_road(Road road);
// The C library's own; null where it is not loaded (libdl of glibc before 2.34).
void* real_road(Road road);

}  // namespace nvshare::interposer::catching
