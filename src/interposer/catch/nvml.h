#pragma once

#include "interposer/guest/elf.h"
#include "nvml/table.h"

// NVML (libnvidia-ml.so.1), as the interposer calls it and stands in front of it. Programs get ours
// only for what own_nvml.def lists; all else they call in the library itself.
namespace nvshare::interposer::catching {

// Exported, in the place of the library's.
#define NVSHARE_OWN_NVML(symbol)                                                              \
  extern "C" __attribute__((visibility("default"))) nvml::Signature<nvml::FunctionId::symbol> \
      symbol;
#include "interposer/catch/own_nvml.def"

// Ours for this symbol; null when there is none.
void* nvml_hook(const char* symbol);

// Whether this is NVML: libnvidia-ml.so.1, whatever its file is called.
bool is_nvml(const Object& object);

// The library whose functions we call is this one from now on. False when another one is in use.
bool use_nvml(const Object& object);

// The library's functions, by FunctionId; null for those that it does not have. Filled by
// nvml_is_there().
extern void* g_nvml[nvml::kFunctionCount];

// Whether there is one to call; to be asked first. From then on it stays that one.
bool nvml_is_there();

// real_nvml<nvml::FunctionId::nvmlDeviceGetUUID>(...) calls the library's.
template <nvml::FunctionId id, typename... Arguments>
inline nvml::nvmlReturn_t real_nvml(Arguments... arguments) {
  using Pointer = nvml::Signature<id>*;
  void* const function = g_nvml[static_cast<unsigned>(id)];
  if (function == nullptr) return nvml::NVML_ERROR_FUNCTION_NOT_FOUND;
  return reinterpret_cast<Pointer>(function)(arguments...);
}

}  // namespace nvshare::interposer::catching
