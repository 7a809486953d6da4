#include <cstdio>
#include <cstring>

#include "softgpu/api/api.h"
#include "softgpu/api/error_text.h"

// cuInit, versions, error texts, resolving of functions.
namespace nvshare::softgpu {
namespace {

constexpr int kDriverVersion = 13000;

}  // namespace

SOFTGPU_API(cuInit)(unsigned flags) {
  Call call;
  if (call.rt.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return call.rt.initialise();
}

SOFTGPU_API(cuDriverGetVersion)(int* driver_version) {
  if (driver_version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driver_version = kDriverVersion;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGetErrorName)(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = result_name(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SOFTGPU_API(cuGetErrorString)(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = error_text(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SOFTGPU_API(cuGetProcAddress_v2)
(const char* symbol, void** function, int cuda_version, uint64_t flags,
 CUdriverProcAddressQueryResult* symbol_status) {
  if (symbol == nullptr || function == nullptr || flags > 3) return CUDA_ERROR_INVALID_VALUE;
  if (cuda_version > kDriverVersion) return CUDA_ERROR_INVALID_VALUE;
  // A version below zero is taken for the newest.
  const int version = cuda_version < 0 ? kDriverVersion : cuda_version;
  const Resolution resolution = find(symbol, version, flags);
  if (symbol_status != nullptr) *symbol_status = resolution.status;
  *function = resolution.function == nullptr ? nullptr : exported(resolution.function->id);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGetProcAddress)
(const char* symbol, void** function, int cuda_version, uint64_t flags) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  void* found = nullptr;
  SOFTGPU_TRY(impl_cuGetProcAddress_v2(symbol, &found, cuda_version, flags, nullptr));
  // The first form has nowhere to put the reason, and then leaves the pointer alone.
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = found;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGetExportTable)(const void** pp_export_table, const CUuuid* export_table_id) {
  if (pp_export_table == nullptr || export_table_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Private tables of the vendor's: there are none here.
  *pp_export_table = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API(cuProfilerStart)() {
  Call call;
  return call.any_context();
}

SOFTGPU_API(cuProfilerStop)() {
  Call call;
  return call.any_context();
}

}  // namespace nvshare::softgpu
