#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "softgpu/api/api.h"

// Every symbol of the table, exported: counts the call, traces it when asked to, and hands it to
// its body.
namespace nvshare::softgpu {
namespace {

std::atomic<std::uint64_t> call_counts[kFunctionCount];
// So many calls to come find no memory.
std::atomic<int> without_memory[kFunctionCount];

// Older symbols whose body is that of a later version with the same signature.
struct SameAs {
  std::string_view symbol;
  std::string_view body;
};
constexpr SameAs kSameAs[] = {
    {"cuCtxDestroy", "cuCtxDestroy_v2"},
    {"cuCtxPushCurrent", "cuCtxPushCurrent_v2"},
    {"cuCtxPopCurrent", "cuCtxPopCurrent_v2"},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2"},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"},
    {"cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2"},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"},
    {"cuStreamDestroy", "cuStreamDestroy_v2"},
    {"cuEventDestroy", "cuEventDestroy_v2"},
    {"cuEventElapsedTime", "cuEventElapsedTime_v2"},
    {"cuLinkCreate", "cuLinkCreate_v2"},
    {"cuLinkAddData", "cuLinkAddData_v2"},
    {"cuLinkAddFile", "cuLinkAddFile_v2"},
    {"cuMemHostRegister", "cuMemHostRegister_v2"},
    {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"},
};

void* const kBodies[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  reinterpret_cast<void*>(&impl_##symbol),
#include "cuda/functions.def"
};

void* body_of_symbol(std::string_view symbol) {
  for (const SameAs& same : kSameAs) {
    if (same.symbol == symbol) symbol = same.body;
  }
  const nvshare::cuda::Function* row = find_symbol(std::string(symbol).c_str());
  return row == nullptr ? nullptr : kBodies[static_cast<unsigned>(row->id)];
}

void* resolve(FunctionId id) {
  const auto index = static_cast<unsigned>(id);
  if (kBodies[index] != nullptr) return kBodies[index];
  std::string_view symbol = kFunctions[index].symbol;
  const Flavour flavour = kFunctions[index].flavour;
  if (flavour == Flavour::Ptds || flavour == Flavour::Ptsz) {
    symbol.remove_suffix(std::strlen("_ptsz"));
  }
  return body_of_symbol(symbol);
}

struct Bodies {
  void* of[kFunctionCount];
  Bodies() {
    for (unsigned i = 0; i < kFunctionCount; ++i) of[i] = resolve(static_cast<FunctionId>(i));
  }
};

const Bodies& bodies() {
  static const Bodies all;
  return all;
}

int trace_file() {
  static const int file = [] {
    // Read here, for calls come before cuInit, which says what is wrong with the settings.
    const auto config =
        load_config([](const std::string& name) { return std::getenv(name.c_str()); });
    if (!config || config->trace.empty()) return -1;
    return ::open(config->trace.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }();
  return file;
}

// One call: counted when it begins, traced when it ends. One line is one write, so lines of
// several threads and processes do not mix.
class Entry {
 public:
  explicit Entry(FunctionId id) : id_(id), before_(this_thread().per_thread_default) {
    call_counts[static_cast<unsigned>(id)].fetch_add(1, std::memory_order_relaxed);
    const Flavour flavour = function(id).flavour;
    this_thread().per_thread_default = flavour == Flavour::Ptds || flavour == Flavour::Ptsz;
    if (trace_file() >= 0) begun_ = monotonic_now();
  }
  ~Entry() { this_thread().per_thread_default = before_; }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  CUresult done(CUresult result) const {
    if (trace_file() < 0) return result;
    char line[256];
    const int length = std::snprintf(
        line, sizeof line, "%d %llu %lld %lld %s %u\n", static_cast<int>(getpid()),
        static_cast<unsigned long long>(this_thread().id), static_cast<long long>(begun_),
        static_cast<long long>(monotonic_now() - begun_), function(id_).symbol,
        static_cast<unsigned>(result));
    (void)!::write(trace_file(), line, static_cast<std::size_t>(length));
    return result;
  }

 private:
  FunctionId id_;
  bool before_;
  Nanos begun_ = 0;
};

bool finds_no_memory(FunctionId id) {
  std::atomic<int>& left = without_memory[static_cast<unsigned>(id)];
  int before = left.load(std::memory_order_relaxed);
  while (before > 0 && !left.compare_exchange_weak(before, before - 1)) {
  }
  return before > 0;
}

template <FunctionId kId, typename... Arguments>
CUresult forward(Arguments... arguments) {
  const Entry entry(kId);
  if (finds_no_memory(kId)) return entry.done(CUDA_ERROR_OUT_OF_MEMORY);
  auto* body = reinterpret_cast<Signature<kId>*>(bodies().of[static_cast<unsigned>(kId)]);
  return entry.done(body == nullptr ? CUDA_ERROR_NOT_SUPPORTED : body(arguments...));
}

}  // namespace

void* implementation_of(FunctionId id) {
  return bodies().of[static_cast<unsigned>(id)];
}

std::uint64_t calls_of(FunctionId id) {
  return call_counts[static_cast<unsigned>(id)].load(std::memory_order_relaxed);
}

#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments)  \
  extern "C" __attribute__((visibility("default"))) CUresult symbol parameters {          \
    return [](auto... given) { return forward<FunctionId::symbol>(given...); } arguments; \
  }
#include "cuda/functions.def"

void* exported(FunctionId id) {
  static void* const all[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  reinterpret_cast<void*>(static_cast<Signature<FunctionId::symbol>*>(symbol)),
#include "cuda/functions.def"
  };
  return all[static_cast<unsigned>(id)];
}

}  // namespace nvshare::softgpu

// The test interface: the only exported names that no driver has.
using namespace nvshare::softgpu;

extern "C" __attribute__((visibility("default"))) std::uint64_t softgpuCallCount(
    const char* symbol) {
  const nvshare::cuda::Function* row = find_symbol(symbol);
  return row == nullptr ? 0 : calls_of(row->id);
}

extern "C" __attribute__((visibility("default"))) int softgpuIsImplemented(const char* symbol) {
  const nvshare::cuda::Function* row = find_symbol(symbol);
  return row != nullptr && implementation_of(row->id) != nullptr ? 1 : 0;
}

extern "C" __attribute__((visibility("default"))) void softgpuFailCalls(const char* symbol,
                                                                        int calls) {
  const nvshare::cuda::Function* row = find_symbol(symbol);
  if (row != nullptr) without_memory[static_cast<unsigned>(row->id)] = calls;
}
