#pragma once

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "cuda/table.h"

// For the small programs that the tests start: what they find is checked on the spot, and one line
// says what is wrong.
namespace nvshare::abi {

inline int failures = 0;
inline int checks = 0;

__attribute__((format(printf, 2, 3))) inline void check(bool right, const char* format, ...) {
  ++checks;
  if (right) return;
  ++failures;
  std::printf("wrong: ");
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
}

// Whether this address lies in a library of this name.
inline bool lies_in(const void* address, const char* library) {
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* slash = std::strrchr(info.dli_fname, '/');
  return std::strcmp(slash == nullptr ? info.dli_fname : slash + 1, library) == 0;
}

inline bool is_ours(const void* address) {
  return lies_in(address, "libnvshare.so");
}

inline int finish() {
  std::printf("%d checks, %d wrong\n", checks, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace nvshare::abi
