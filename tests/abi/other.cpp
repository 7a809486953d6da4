#include <dlfcn.h>

// Another library that is preloaded: it puts itself before functions, and finds the next ones with
// RTLD_NEXT.
namespace {

int calls = 0;

template <typename Function>
Function next(const char* symbol) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol));
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int other_calls() {
  return calls;
}

EXPORT void* other_next(const char* symbol) {
  return dlsym(RTLD_NEXT, symbol);
}

EXPORT int cuDriverGetVersion(int* version) {
  ++calls;
  const auto function = next<int (*)(int*)>("cuDriverGetVersion");
  return function == nullptr ? -1 : function(version);
}

EXPORT int getppid() {
  ++calls;
  return next<int (*)()>("getppid")();
}
