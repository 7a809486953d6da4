#pragma once

// The roads by which programs come to functions, beside linking: dlsym, dlvsym (roads.cpp, which
// exports them) and cuGetProcAddress (a body of its own there).
namespace nvshare::interposer {

enum class Road { Sym, Vsym, Open };

// The C library's own; null where it is not loaded (libdl of glibc before 2.34).
void* real_road(Road road);

}  // namespace nvshare::interposer
