#include <errno.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "abi/pattern.h"
#include "abi/probe.h"

// roads MODE [FILE...]: a program that comes to the driver's functions in one of many ways, and
// checks that what it gets is ours and leads to the driver. It is not linked with the driver;
// roads_linked, the same source, is.
namespace nvshare::abi {

using namespace cuda;

namespace {

constexpr uint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

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

bool is_twin(const Function& row) {
  return row.flavour == Flavour::Ptds || row.flavour == Flavour::Ptsz;
}

// Calls through what was found arrive in the software GPU behind this handle.
void check_arrival(void* driver, Signature<FunctionId::cuDriverGetVersion>* function) {
  const auto count = find_in<unsigned long (*)(const char*)>(driver, "softgpuCallCount");
  check(count != nullptr && !is_ours(reinterpret_cast<void*>(count)), "no software GPU");
  if (count == nullptr) return;
  const unsigned long before = count("cuDriverGetVersion");
  int version = 0;
  const CUresult result = function(&version);
  check(result == CUDA_SUCCESS && version > 0, "cuDriverGetVersion: %d", static_cast<int>(result));
  const unsigned long calls = count("cuDriverGetVersion") - before;
  check(calls == 1, "%lu calls arrived, not 1", calls);
}

void check_handle(void* handle) {
  for (const Function& row : kFunctions) {
    check(is_ours(dlsym(handle, row.symbol)), "dlsym %s", row.symbol);
  }
}

int by_handle(const char* file) {
  void* driver = open(file);
  check_handle(driver);
  using Version = Signature<FunctionId::cuDriverGetVersion>*;
  check_arrival(driver, find_in<Version>(driver, "cuDriverGetVersion"));
  check(find_in<void*>(driver, "softgpuCallCount") != nullptr,
        "softgpuCallCount is not the table's");
  check(dlsym(driver, "cuNoSuchThing") == nullptr, "cuNoSuchThing");
  return finish();
}

int by_version(const char* recording) {
  void* driver = open(recording);
  for (const Function& row : kFunctions) {
    check(is_ours(dlvsym(driver, row.symbol, "RECORDED_1")), "dlvsym %s", row.symbol);
    check(dlvsym(driver, row.symbol, "OTHER_1") == nullptr, "dlvsym %s of no version", row.symbol);
  }
  return finish();
}

int by_proc_address() {
  void* driver = open("libcuda.so.1");
  const auto first = find_in<Signature<FunctionId::cuGetProcAddress>*>(driver, "cuGetProcAddress");
  const auto second =
      find_in<Signature<FunctionId::cuGetProcAddress_v2>*>(driver, "cuGetProcAddress_v2");
  for (const Function& row : kFunctions) {
    void* const expected = dlsym(driver, row.symbol);
    const uint64_t flags = is_twin(row) ? kPerThread : 0;
    void* found = nullptr;
    check(first(row.name, &found, row.since, flags) == CUDA_SUCCESS && found == expected,
          "cuGetProcAddress %s", row.symbol);
    found = nullptr;
    auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    check(second(row.name, &found, row.since, flags, &status) == CUDA_SUCCESS &&
              found == expected && status == CU_GET_PROC_ADDRESS_SUCCESS,
          "cuGetProcAddress_v2 %s", row.symbol);
    // At every later version, what the driver says is ours, too.
    for (const int version : {11030, 12000, 13000, -1}) {
      check(second(row.name, &found, version, flags, &status) == CUDA_SUCCESS &&
                (found == nullptr) == (status != CU_GET_PROC_ADDRESS_SUCCESS) &&
                (found == nullptr || is_ours(found)),
            "%s at %d", row.name, version);
    }
  }
  void* found = driver;
  auto status = CU_GET_PROC_ADDRESS_SUCCESS;
  check(second("cuNoSuchThing", &found, 12000, 0, &status) == CUDA_SUCCESS && found == nullptr &&
            status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        "cuNoSuchThing");
  check(first("cuNoSuchThing", &found, 12000, 0) == CUDA_ERROR_NOT_FOUND, "cuNoSuchThing");
  return finish();
}

// A driver that is newer than the table, and hands out what it does not export.
int by_newer_driver(const char* recording) {
  void* driver = open(recording);
  const auto ask =
      find_in<Signature<FunctionId::cuGetProcAddress_v2>*>(driver, "cuGetProcAddress_v2");
  const auto answer = [ask](const char* name, int version) {
    void* found = nullptr;
    ask(name, &found, version, 0, nullptr);
    return found;
  };
  const char* file = "libcuda.so.1";
  check(answer("cuMemAlloc", 13000) == dlsym(driver, "cuMemAlloc_v2"), "cuMemAlloc at 13000");
  check(lies_in(answer("cuMemAlloc", 99000), file), "a newer cuMemAlloc is not ours");
  check(answer("cuInit", 12000) == dlsym(driver, "cuInit"), "cuInit that is not exported");
  check(answer("cuInit", 99000) == dlsym(driver, "cuInit"), "cuInit, the same at 99000");
  check(lies_in(answer("cuFromTheFuture", 99000), file), "an unknown function is not ours");
  check(lies_in(dlsym(driver, "cuFromTheFuture"), file), "an unknown symbol is not ours");
  return finish();
}

template <FunctionId id, typename... Arguments, std::size_t... place>
void check_call(void* found, CUresult (*)(Arguments...), std::index_sequence<place...>) {
  constexpr auto row = static_cast<unsigned>(id);
  const auto call = [found](Arguments... arguments) {
    const unsigned sent = digest(row, arguments...);
    const auto got =
        static_cast<unsigned>(reinterpret_cast<CUresult (*)(Arguments...)>(found)(arguments...));
    check(got == sent, "%s does not arrive as it was called", function(id).symbol);
  };
  call(pattern<Arguments>(row, place)...);
}

template <FunctionId id, typename... Arguments>
void check_call(void* found, CUresult (*type)(Arguments...)) {
  check_call<id>(found, type, std::index_sequence_for<Arguments...>());
}

// Every function that has no body of its own, with arguments that show whether they arrived.
int with_arguments(const char* recording) {
  void* driver = open(recording);
  bool own[kFunctionCount] = {};
#define NVSHARE_OWN_BODY(symbol) own[static_cast<unsigned>(FunctionId::symbol)] = true;
#include "interposer/catch/own_bodies.def"
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments)  \
  if (!own[static_cast<unsigned>(FunctionId::symbol)]) {                                  \
    check_call<FunctionId::symbol>(dlsym(driver, #symbol),                                \
                                   static_cast<Signature<FunctionId::symbol>*>(nullptr)); \
  }
#include "cuda/functions.def"
  return finish();
}

// RTLD_DEFAULT and RTLD_NEXT, from here and from a library, after the driver has become global.
int by_scope(const char* relay) {
  check(dlsym(RTLD_DEFAULT, "cuInit") == nullptr, "cuInit before there is a driver");
  void* library = open(relay, RTLD_NOW | RTLD_GLOBAL);
  const auto ask = find_in<void* (*)(void*, const char*)>(library, "relay_dlsym");
  const auto ask_version =
      find_in<void* (*)(void*, const char*, const char*)>(library, "relay_dlvsym");
  void* program = open(nullptr);
  for (const Function& row : kFunctions) {
    check(is_ours(dlsym(RTLD_DEFAULT, row.symbol)), "default %s", row.symbol);
    check(is_ours(dlsym(RTLD_NEXT, row.symbol)), "next %s", row.symbol);
    check(is_ours(dlsym(program, row.symbol)), "in the program: %s", row.symbol);
    check(is_ours(dlsym(library, row.symbol)), "in the library: %s", row.symbol);
    check(is_ours(ask(RTLD_DEFAULT, row.symbol)), "the library's default %s", row.symbol);
    check(is_ours(ask(RTLD_NEXT, row.symbol)), "the library's next %s", row.symbol);
  }
  // Where the library itself is asked about, the C library must see who asks.
  check(dlsym(RTLD_DEFAULT, "relay_dlsym") == reinterpret_cast<void*>(ask), "relay_dlsym");
  check(ask(RTLD_NEXT, "relay_dlsym") == nullptr, "nothing comes after the library itself");
  check(lies_in(dlsym(RTLD_DEFAULT, "getppid"), "libc.so.6"), "getppid");
  check(is_ours(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5")) ||
            is_ours(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17")),
        "the next dlsym");
  check(ask_version(RTLD_NEXT, "cuInit", "OTHER_1") == nullptr, "cuInit of no version");
  return finish();
}

// Past us to the C library's own dlsym, and back.
int by_c_library() {
  void* libc = open("libc.so.6");
  for (const char* road : {"dlsym", "dlvsym", "dlopen"}) {
    void* found = dlsym(libc, road);
    // Before glibc 2.34 they are in a library of their own.
    if (found == nullptr) found = dlsym(open("libdl.so.2"), road);
    check(is_ours(found), "the C library's %s", road);
  }
  return finish();
}

// A driver that is only looked at, and closed again, is forgotten; one in use is kept.
int by_two_drivers(const char* recording) {
  using Version = Signature<FunctionId::cuDriverGetVersion>*;
  void* first = open(recording);
  const auto version = find_in<Version>(first, "cuDriverGetVersion");
  int number = 0;
  int* to = &number;
  const unsigned expected = digest(static_cast<unsigned>(FunctionId::cuDriverGetVersion), to);
  check(static_cast<unsigned>(version(to)) == expected, "the first driver");
  dlclose(first);
  check(dlopen(recording, RTLD_NOW | RTLD_NOLOAD) == nullptr, "the first driver stays loaded");
  void* second = open("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  check(find_in<Version>(second, "cuDriverGetVersion") == version, "the second driver");
  check_arrival(second, version);
  const auto init = find_in<Signature<FunctionId::cuInit>*>(second, "cuInit");
  check(init(0) == CUDA_SUCCESS, "cuInit");
  first = open(recording);
  check(!is_ours(dlsym(first, "cuDriverGetVersion")),
        "the first driver, when the second is in use");
  check_arrival(second, version);
  return finish();
}

// Two at once, both only looked at: the one that was asked last is meant.
int by_either_driver(const char* recording) {
  using Version = Signature<FunctionId::cuDriverGetVersion>*;
  void* first = open(recording);
  void* second = open(NVSHARE_SOFTGPU_LIBRARY);
  int number = 0;
  int* to = &number;
  const unsigned expected = digest(static_cast<unsigned>(FunctionId::cuDriverGetVersion), to);
  for (int round = 0; round < 2; ++round) {
    const auto version = find_in<Version>(first, "cuDriverGetVersion");
    check(is_ours(reinterpret_cast<void*>(version)), "the first driver");
    check(static_cast<unsigned>(version(to)) == expected, "the first driver");
    check_arrival(second, find_in<Version>(second, "cuDriverGetVersion"));
  }
  return finish();
}

// A library that looks at its own libraries before any preloaded one.
int by_deep_library(const char* relay) {
  for (const int mode : {RTLD_LAZY, RTLD_NOW}) {
    void* library = open(relay, mode | RTLD_DEEPBIND);
    const auto all = find_in<void* const* (*)()>(library, "relay_linked")();
    for (const Function& row : kFunctions) {
      check(is_ours(all[static_cast<unsigned>(row.id)]), "linked with %s", row.symbol);
    }
    const auto ask = find_in<void* (*)(void*, const char*)>(library, "relay_dlsym");
    check(is_ours(ask(library, "cuInit")), "found cuInit");
    check(find_in<int (*)()>(library, "relay_driver_version")() > 0, "called");
  }
  return finish();
}

// Another library that puts itself before functions.
int with_other() {
  const auto calls = find_in<int (*)()>(RTLD_DEFAULT, "other_calls");
  const auto next = find_in<void* (*)(const char*)>(RTLD_DEFAULT, "other_next");
  check(calls != nullptr && next != nullptr, "the other library is there");
  if (calls == nullptr || next == nullptr) return finish();
  check(getppid() > 1 && calls() == 1, "getppid");
  check(next("cuInit") == nullptr, "the next cuInit before there is a driver");
  void* driver = open("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  for (const Function& row : kFunctions) {
    check(is_ours(next(row.symbol)), "the other library's next %s", row.symbol);
  }
  const auto theirs =
      find_in<Signature<FunctionId::cuDriverGetVersion>*>(open(nullptr), "cuDriverGetVersion");
  check_arrival(driver, theirs);
  return finish();
}

// Says what a program sees of a driver, to be compared with what it sees without us.
int what_is_there() {
  void* symbol = dlsym(RTLD_DEFAULT, "cuInit");
  const char* error = dlerror();
  std::printf("cuInit %s, %s\n", symbol == nullptr ? "is not there" : "is there",
              error != nullptr && std::strstr(error, "undefined symbol: cuInit") != nullptr
                  ? "and why"
                  : "no error");
  symbol = dlsym(dlopen(nullptr, RTLD_NOW), "cuInit");
  std::printf("in the program: %s\n", symbol == nullptr ? "not there" : "there");
  dlerror();
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  error = dlerror();
  std::printf("driver %s: %s\n", driver == nullptr ? "is not there" : "is there",
              error == nullptr ? "no error" : error);
  return 0;
}

// errno and dlerror() are as they would be without us.
int manners() {
  void* driver = open("libcuda.so.1");
  errno = 77;
  check(is_ours(dlsym(driver, "cuInit")), "cuInit");
  check(errno == 77, "dlsym changed errno");
  int version = 0;
  find_in<Signature<FunctionId::cuDriverGetVersion>*>(driver, "cuDriverGetVersion")(&version);
  check(errno == 77, "a call changed errno");
  check(dlerror() == nullptr, "an error without a failure");
  check(dlsym(driver, "cuNoSuchThing") == nullptr, "cuNoSuchThing");
  const char* error = dlerror();
  check(error != nullptr && std::strstr(error, "cuNoSuchThing") != nullptr, "no error");
  check(dlerror() == nullptr, "the error twice");
  check(dlsym(RTLD_DEFAULT, "cuNoSuchThing") == nullptr && dlerror() != nullptr, "no error");
  return finish();
}

#ifdef NVSHARE_ABI_LINKED
namespace linked {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  extern "C" CUresult symbol parameters;
#include "cuda/functions.def"
}  // namespace linked

int by_linking() {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments)           \
  check(is_ours(                                                                                   \
            reinterpret_cast<void*>(static_cast<Signature<FunctionId::symbol>*>(linked::symbol))), \
        "linked with %s", #symbol);
#include "cuda/functions.def"
  check_arrival(open("libcuda.so.1"), linked::cuDriverGetVersion);
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
    {"proc_address", [](const char*) { return by_proc_address(); }},
    {"newer_driver", by_newer_driver},
    {"arguments", with_arguments},
    {"scope", by_scope},
    {"c_library", [](const char*) { return by_c_library(); }},
    {"two_drivers", by_two_drivers},
    {"either_driver", by_either_driver},
    {"deep", by_deep_library},
    {"other", [](const char*) { return with_other(); }},
    {"what_is_there", [](const char*) { return what_is_there(); }},
    {"manners", [](const char*) { return manners(); }},
};

}  // namespace
}  // namespace nvshare::abi

int main(int count, char** arguments) {
  for (const auto& mode : nvshare::abi::kModes) {
    if (count < 2 || std::strcmp(arguments[1], mode.name) != 0) continue;
    return mode.run(count > 2 ? arguments[2] : nullptr);
  }
  std::printf("roads MODE [FILE]: no such mode\n");
  return 2;
}
