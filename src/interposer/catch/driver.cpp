#include "interposer/catch/driver.h"

#include <dlfcn.h>

#include <atomic>

#include "interposer/catch/bodies.h"
#include "interposer/guest/library.h"
#include "interposer/guest/sys.h"

namespace nvshare::interposer::catching {

namespace {

constexpr const char* kDriverName = "libcuda.so.1";

// Where the driver in g_driver lies; 0: none yet. Nothing is locked here: to resolve twice at the
// same time gives the same pointers, and a lock would be held across calls into the loader, which
// has its own and calls programs' constructors under it.
std::atomic<uintptr_t> g_driver_base{0};

// Stand in for functions of any signature: arguments are the caller's to clean up.
CUresult not_in_this_driver() {
  return CUDA_ERROR_NOT_FOUND;
}

void* missing() {
  return reinterpret_cast<void*>(not_in_this_driver);
}

void take_functions(const Object& object) {
  for (const Function& row : kFunctions) {
    void* found = object.function(row.symbol);
    __atomic_store_n(&g_driver[static_cast<unsigned>(row.id)], found == nullptr ? missing() : found,
                     __ATOMIC_RELEASE);
  }
  g_driver_base.store(object.base, std::memory_order_release);
  log("driver: %s", object.path);
}

// The driver in g_driver, unless it was closed since (and perhaps another one loaded to its place).
bool find_present_driver(Object& object) {
  const uintptr_t base = g_driver_base.load(std::memory_order_acquire);
  void* const init = g_driver[static_cast<unsigned>(FunctionId::cuInit)];
  return base != 0 && find_object(init, object) && object.base == base && is_driver(object) &&
         object.function("cuInit") == init;
}

// Whether there is a driver, looking for one.
bool resolve() {
  if (g_driver_base.load(std::memory_order_acquire) != 0) return true;
  Object object;
  if (!find_loaded(kDriverName, object)) {
    if (open_quietly(kDriverName, RTLD_LAZY | RTLD_LOCAL) == nullptr) return false;
    if (!find_loaded(kDriverName, object)) return false;
  }
  take_functions(object);
  return true;
}

// What pointers lead to at first.
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  CUresult resolve_##symbol parameters {                                                 \
    if (!resolve()) return CUDA_ERROR_NO_DEVICE;                                         \
    return real<FunctionId::symbol> arguments;                                           \
  }
#include "cuda/functions.def"

}  // namespace

void* g_driver[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  reinterpret_cast<void*>(resolve_##symbol),
#include "cuda/functions.def"
};

bool driver_has(FunctionId id) {
  return resolve() && g_driver[static_cast<unsigned>(id)] != missing();
}

bool is_driver(const Object& object) {
  return is_library(object, kDriverName);
}

bool use_driver(const Object& object) {
  Object present;
  if (find_present_driver(present)) {
    if (present.base == object.base) return true;
    // Of two drivers that are only looked at, the last one is meant; one that works is kept.
    int count = 0;
    if (real<FunctionId::cuDeviceGetCount>(&count) == CUDA_SUCCESS) return false;
  }
  take_functions(object);
  return true;
}

}  // namespace nvshare::interposer::catching

namespace nvshare::interposer::own {
using namespace catching;

CUresult cuInit(unsigned flags) {
  const CUresult result = real<FunctionId::cuInit>(flags);
  Object present;
  if (result == CUDA_SUCCESS && find_present_driver(present)) keep_loaded(present);
  return result;
}

}  // namespace nvshare::interposer::own
