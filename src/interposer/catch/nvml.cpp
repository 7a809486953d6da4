#include "interposer/catch/nvml.h"

#include <string.h>

#include <atomic>

#include "interposer/guest/library.h"
#include "interposer/guest/sys.h"

namespace nvshare::interposer::catching {

void* g_nvml[nvml::kFunctionCount];

namespace {

constexpr const char* kNvmlName = "libnvidia-ml.so.1";

// Of several that are only looked at, the one that was asked last; from the first call on the one
// that was called. Nothing is locked, as in driver.cpp: to do it twice gives the same.
std::atomic<uintptr_t> g_asked_for{0};
std::atomic<bool> g_in_use{false};

// The one that was asked for, unless it was closed since.
bool find_asked_for(Object& object) {
  const uintptr_t base = g_asked_for.load(std::memory_order_acquire);
  return base != 0 && visit_objects([&](const Object& one) {
           if (one.base != base || !is_nvml(one)) return false;
           object = one;
           return true;
         });
}

}  // namespace

void* nvml_hook(const char* symbol) {
  // Asked on every dlsym of a program: most symbols are not NVML's.
  if (symbol == nullptr || symbol[0] != 'n' || symbol[1] != 'v') return nullptr;
#define NVSHARE_OWN_NVML(name) \
  if (strcmp(symbol, #name) == 0) return reinterpret_cast<void*>(&name);
#include "interposer/catch/own_nvml.def"
  return nullptr;
}

bool is_nvml(const Object& object) {
  return is_library(object, kNvmlName);
}

bool use_nvml(const Object& object) {
  if (g_in_use.load(std::memory_order_acquire)) return g_asked_for.load() == object.base;
  g_asked_for.store(object.base, std::memory_order_release);
  return true;
}

bool nvml_is_there() {
  if (g_in_use.load(std::memory_order_acquire)) return true;
  Object object;
  if (!find_asked_for(object) && !find_loaded(kNvmlName, object)) return false;
  keep_loaded(object);
  for (const nvml::Function& row : nvml::kFunctions) {
    __atomic_store_n(&g_nvml[static_cast<unsigned>(row.id)], object.function(row.symbol),
                     __ATOMIC_RELEASE);
  }
  g_asked_for.store(object.base, std::memory_order_release);
  g_in_use.store(true, std::memory_order_release);
  log("NVML: %s", object.path);
  return true;
}

}  // namespace nvshare::interposer::catching
