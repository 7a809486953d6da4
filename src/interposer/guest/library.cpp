#include "interposer/guest/library.h"

#include <dlfcn.h>
#include <string.h>

#include "interposer/catch/roads.h"
#include "interposer/guest/sys.h"

namespace nvshare::interposer::guest {

bool is_library(const Object& object, const char* soname) {
  if (object.soname != nullptr && strcmp(object.soname, soname) == 0) return true;
  const char* slash = strrchr(object.path, '/');
  const char* file = slash == nullptr ? object.path : slash + 1;
  // Without the last number: files have longer ones.
  const auto length = static_cast<size_t>(strrchr(soname, '.') - soname);
  return strncmp(file, soname, length) == 0;
}

bool find_loaded(const char* soname, Object& object) {
  return visit_objects([&](const Object& one) {
    if (!is_library(one, soname)) return false;
    object = one;
    return true;
  });
}

void* open_quietly(const char* path, int mode) {
  const KeepErrno keep;
  const auto open = reinterpret_cast<decltype(&dlopen)>(catching::real_road(catching::Road::Open));
  if (open == nullptr) return nullptr;
  void* handle = open(path, mode);
  const auto error = reinterpret_cast<decltype(&dlerror)>(libc_function("dlerror"));
  if (handle == nullptr && error != nullptr) error();
  return handle;
}

void keep_loaded(const Object& object) {
  open_quietly(object.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace nvshare::interposer::guest
