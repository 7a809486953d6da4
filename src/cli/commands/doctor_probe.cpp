#include <dlfcn.h>
#include <unistd.h>

#include <ostream>

#include "cli/commands/commands.h"
#include "cli/commands/doctor.h"
#include "cuda/types.h"

// What the doctor starts under the preload: a program that uses the GPU as any other does, says how
// that went, and waits to be looked at.
namespace nvshare::cli {
namespace {

using namespace cuda;

constexpr unsigned kGoneAfter = 30;  // seconds, whatever happens
constexpr std::size_t kSomeMemory = 1 << 20;

std::string library_version() {
  const auto* version =
      static_cast<const char* const*>(::dlsym(RTLD_DEFAULT, "nvshare_library_version"));
  return version != nullptr && *version != nullptr ? *version : "";
}

// Calls functions of the driver by name until one fails.
class Calls {
 public:
  Calls(void* driver, Probe& probe) : driver_(driver), probe_(probe) {}

  template <typename... Arguments>
  Calls& call(const char* name, Arguments... arguments) {
    if (!probe_.failed.empty()) return *this;
    const auto function = reinterpret_cast<CUresult (*)(Arguments...)>(::dlsym(driver_, name));
    const CUresult result = function != nullptr ? function(arguments...) : CUDA_ERROR_NOT_FOUND;
    if (result != CUDA_SUCCESS) {
      probe_.failed = name;
      probe_.error = static_cast<int>(result);
    }
    return *this;
  }

 private:
  void* driver_;
  Probe& probe_;
};

Probe use_the_gpu() {
  Probe probe;
  probe.library_version = library_version();
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) {
    probe.failed = "dlopen";
    return probe;
  }
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  Calls calls(driver, probe);
  calls.call("cuDriverGetVersion", &probe.driver_version)
      .call("cuInit", 0U)
      .call("cuDeviceGetCount", &probe.devices)
      .call("cuDevicePrimaryCtxRetain", &context, CUdevice{0})
      .call("cuCtxSetCurrent", context)
      .call("cuMemAlloc_v2", &memory, kSomeMemory)
      .call("cuMemFree_v2", memory);
  return probe;
}

int run(const Arguments&, Streams streams) {
  ::alarm(kGoneAfter);
  const Probe probe = use_the_gpu();
  streams.out << write_probe(probe) << std::endl;
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return probe.failed.empty() ? kGood : kFailed;
}

}  // namespace

Command doctor_probe_command() {
  CommandSpec spec;
  spec.name = "doctor-probe";
  spec.summary = "Use the GPU for a moment, for nvshare doctor";
  spec.hidden = true;
  return {spec, run};
}

}  // namespace nvshare::cli
