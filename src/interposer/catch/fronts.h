#pragma once

#include "interposer/guest/elf.h"

// The libraries that we stand in front of: the CUDA driver and NVML.
namespace nvshare::interposer::catching {

struct Front {
  bool (*is)(const Object& object);
  // What we call is this library's from now on. False when it is another one's, which is in use.
  bool (*use)(const Object& object);
};

// A function that programs get instead of a library's.
struct Stand {
  const Front* front = nullptr;
  void* hook = nullptr;  // null: there is none
};

// What programs get for this symbol.
Stand find_stand(const char* symbol);

// Whether we stand in front of this library.
bool has_front(const Object& object);

}  // namespace nvshare::interposer::catching
