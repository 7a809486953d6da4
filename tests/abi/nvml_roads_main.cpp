#include <errno.h>

#include <cstdlib>

#include "abi/probe.h"
#include "nvml/table.h"

// nvml_roads MODE [FILE...]: a program that comes to NVML's functions in one of many ways, and
// checks that what it gets is ours where we have a body, and the library's everywhere else. The
// process has a limit of its own (NVSHARE_GPU_MEMORY_LIMIT=1Mi), which shows that our body was the
// one that answered. It is not linked with NVML; nvml_roads_linked, the same source, is.
namespace nvshare::abi {

using namespace nvml;

namespace {

constexpr unsigned long long kLimit = 1 << 20;

constexpr const char* kOwn[] = {
#define NVSHARE_OWN_NVML(symbol) #symbol,
#include "interposer/catch/own_nvml.def"
};

bool is_own(const char* symbol) {
  for (const char* own : kOwn) {
    if (std::strcmp(own, symbol) == 0) return true;
  }
  return false;
}

template <typename Function>
Function find_in(void* handle, const char* symbol) {
  return reinterpret_cast<Function>(dlsym(handle, symbol));
}

void* open(const char* file, int mode = RTLD_NOW) {
  void* handle = dlopen(file, mode);
  if (handle == nullptr) {
    std::printf("wrong: %s\n", dlerror());
    std::exit(1);
  }
  return handle;
}

nvmlDevice_t first_device(void* library) {
  nvmlDevice_t device{};
  check(find_in<Signature<FunctionId::nvmlInit_v2>*>(library, "nvmlInit_v2")() == NVML_SUCCESS,
        "nvmlInit_v2");
  const auto find = find_in<Signature<FunctionId::nvmlDeviceGetHandleByIndex_v2>*>(
      library, "nvmlDeviceGetHandleByIndex_v2");
  check(find(0, &device) == NVML_SUCCESS, "no device");
  return device;
}

void check_memory(Signature<FunctionId::nvmlDeviceGetMemoryInfo>* function, nvmlDevice_t device) {
  nvmlMemory_t memory{};
  const auto result = function(device, &memory);
  check(
      result == NVML_SUCCESS && memory.total == kLimit && memory.used == 0 && memory.free == kLimit,
      "result %u, total %llu", static_cast<unsigned>(result), memory.total);
}

int by_handle(const char* file) {
  void* library = open(file);
  for (const Function& row : kFunctions) {
    void* found = dlsym(library, row.symbol);
    check(found != nullptr && is_ours(found) == is_own(row.symbol), "dlsym %s", row.symbol);
  }
  check(dlsym(library, "nvmlNoSuchThing") == nullptr, "nvmlNoSuchThing");
  const nvmlDevice_t device = first_device(library);
  using V1 = Signature<FunctionId::nvmlDeviceGetMemoryInfo>*;
  using V2 = Signature<FunctionId::nvmlDeviceGetMemoryInfo_v2>*;
  check_memory(find_in<V1>(library, "nvmlDeviceGetMemoryInfo"), device);
  const auto second = find_in<V2>(library, "nvmlDeviceGetMemoryInfo_v2");
  nvmlMemory_v2_t memory{};
  check(second(device, &memory) == NVML_ERROR_FUNCTION_NOT_FOUND, "a structure of no version");
  memory.version = struct_version<nvmlMemory_v2_t>(2);
  memory.reserved = 77;
  check(second(device, &memory) == NVML_SUCCESS && memory.total == kLimit && memory.used == 0 &&
            memory.free == kLimit && memory.reserved == 0,
        "the second version");
  // As the library itself answers.
  check(find_in<V1>(library, "nvmlDeviceGetMemoryInfo")(device, nullptr) ==
            NVML_ERROR_INVALID_ARGUMENT,
        "no place for the answer");
  // One that is in use stays, whatever the program does.
  dlclose(library);
  check(dlopen(file, RTLD_NOW | RTLD_NOLOAD) != nullptr, "is gone");
  return finish();
}

int by_version(const char* recording) {
  void* library = open(recording);
  for (const char* symbol : kOwn) {
    check(is_ours(dlvsym(library, symbol, "RECORDED_1")), "dlvsym %s", symbol);
    check(dlvsym(library, symbol, "OTHER_1") == nullptr, "dlvsym %s of no version", symbol);
  }
  check(!is_ours(dlvsym(library, "nvmlDeviceGetUUID", "RECORDED_1")), "dlvsym nvmlDeviceGetUUID");
  // A card that has less than the limit. errno and dlerror() are the program's.
  dlerror();
  errno = 77;
  nvmlMemory_v2_t memory{};
  memory.version = struct_version<nvmlMemory_v2_t>(2);
  const auto ask = find_in<Signature<FunctionId::nvmlDeviceGetMemoryInfo_v2>*>(
      library, "nvmlDeviceGetMemoryInfo_v2");
  check(ask(nullptr, &memory) == NVML_SUCCESS && memory.total == 800'000 && memory.used == 0 &&
            memory.free == 800'000 && memory.reserved == 0,
        "total %llu, used %llu", memory.total, memory.used);
  check(errno == 77, "a call changed errno");
  check(dlerror() == nullptr, "an error without a failure");
  return finish();
}

// RTLD_DEFAULT and RTLD_NEXT, from here and from a library, after NVML has become global.
int by_scope(const char* relay) {
  check(dlsym(RTLD_DEFAULT, kOwn[0]) == nullptr, "%s before there is NVML", kOwn[0]);
  void* program = open(nullptr);
  check(dlsym(program, kOwn[0]) == nullptr, "%s in the program", kOwn[0]);
  void* library = open(relay, RTLD_NOW | RTLD_GLOBAL);
  const auto ask = find_in<void* (*)(void*, const char*)>(library, "relay_dlsym");
  for (const char* symbol : kOwn) {
    check(is_ours(dlsym(RTLD_DEFAULT, symbol)), "default %s", symbol);
    check(is_ours(dlsym(RTLD_NEXT, symbol)), "next %s", symbol);
    check(is_ours(dlsym(program, symbol)), "in the program: %s", symbol);
    check(is_ours(dlsym(library, symbol)), "in the library: %s", symbol);
    check(is_ours(ask(RTLD_NEXT, symbol)), "the library's next %s", symbol);
  }
  const auto linked =
      find_in<Signature<FunctionId::nvmlDeviceGetMemoryInfo>*>(library, "relay_memory_info");
  check_memory(linked, first_device(library));
  return finish();
}

// A library that looks at its own libraries before any preloaded one.
int by_deep_library(const char* relay) {
  void* library = open(relay, RTLD_LAZY | RTLD_DEEPBIND);
  for (void* const* one = find_in<void* const* (*)()>(library, "relay_linked")(); *one; ++one) {
    check(is_ours(*one), "linked with a function of NVML's own");
  }
  const auto linked =
      find_in<Signature<FunctionId::nvmlDeviceGetMemoryInfo>*>(library, "relay_memory_info");
  check_memory(linked, first_device(library));
  return finish();
}

// Of two that are only looked at, the last is meant; one that was called is kept.
int by_two_libraries(const char* recording) {
  using Memory = Signature<FunctionId::nvmlDeviceGetMemoryInfo>*;
  void* first = open(recording);
  void* second = open(NVSHARE_SOFTGPU_NVML);
  check(is_ours(dlsym(first, kOwn[0])), "the first one");
  const auto memory_info = find_in<Memory>(second, "nvmlDeviceGetMemoryInfo");
  check_memory(memory_info, first_device(second));
  const auto theirs = find_in<Memory>(first, "nvmlDeviceGetMemoryInfo");
  check(!is_ours(reinterpret_cast<void*>(theirs)), "the first one, when the second is in use");
  nvmlMemory_t memory{};
  check(theirs(nullptr, &memory) == NVML_SUCCESS && memory.total == 800'000, "the first one");
  check_memory(memory_info, first_device(second));
  return finish();
}

// Says what a program sees of NVML, to be compared with what it sees without us.
int what_is_there() {
  void* symbol = dlsym(RTLD_DEFAULT, kOwn[0]);
  const char* error = dlerror();
  std::printf("%s, %s\n", symbol == nullptr ? "not there" : "there",
              error != nullptr && std::strstr(error, "undefined symbol") != nullptr ? "and why"
                                                                                    : "no error");
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  error = dlerror();
  std::printf("NVML %s: %s\n", library == nullptr ? "is not there" : "is there",
              error == nullptr ? "no error" : error);
  return 0;
}

#ifdef NVSHARE_ABI_LINKED
namespace linked {
#define NVSHARE_OWN_NVML(symbol) extern "C" Signature<FunctionId::symbol> symbol;
#include "interposer/catch/own_nvml.def"
}  // namespace linked

int by_linking() {
#define NVSHARE_OWN_NVML(symbol) \
  check(is_ours(reinterpret_cast<void*>(&linked::symbol)), "linked with %s", #symbol);
#include "interposer/catch/own_nvml.def"
  check_memory(linked::nvmlDeviceGetMemoryInfo, first_device(RTLD_DEFAULT));
  return finish();
}
#endif

struct Mode {
  const char* name;
  int (*run)(const char* file);
};
constexpr Mode kModes[] = {
#ifdef NVSHARE_ABI_LINKED
    {"linking", [](const char*) { return by_linking(); }},
#endif
    {"handle", by_handle},
    {"version", by_version},
    {"scope", by_scope},
    {"deep", by_deep_library},
    {"two_libraries", by_two_libraries},
    {"what_is_there", [](const char*) { return what_is_there(); }},
};

}  // namespace
}  // namespace nvshare::abi

int main(int count, char** arguments) {
  for (const auto& mode : nvshare::abi::kModes) {
    if (count < 2 || std::strcmp(arguments[1], mode.name) != 0) continue;
    return mode.run(count > 2 ? arguments[2] : nullptr);
  }
  std::printf("nvml_roads MODE [FILE]: no such mode\n");
  return 2;
}
