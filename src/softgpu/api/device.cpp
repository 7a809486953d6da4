#include <algorithm>
#include <cstdio>
#include <cstring>

#include "softgpu/api/api.h"
#include "softgpu/api/device_attributes.h"
#include "softgpu/runtime/memory_ops.h"

// Devices and their primary contexts.
namespace nvshare::softgpu {
namespace {

constexpr unsigned kKnownFlags = CU_CTX_FLAGS_MASK;

bool good_flags(unsigned flags) {
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return (flags & ~kKnownFlags) == 0 &&
         (schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4);
}

}  // namespace

SOFTGPU_API(cuDeviceGet)(CUdevice* device, int ordinal) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(ordinal));
  *device = ordinal;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetCount)(int* count) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = call.rt.device_count();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetName)(char* name, int len, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  std::snprintf(name, static_cast<std::size_t>(len), "%s", call.rt.device_config(device).name);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetUuid_v2)(CUuuid* uuid, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  std::memcpy(uuid->bytes, call.rt.device_config(device).uuid, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceTotalMem_v2)(size_t* bytes, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  *bytes = call.rt.device_config(device).memory;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceTotalMem)(unsigned* bytes, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  // As much of it as 32 bits can say.
  *bytes = static_cast<unsigned>(
      std::min<std::uint64_t>(call.rt.device_config(device).memory, UINT32_MAX));
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetAttribute)(int* value, CUdevice_attribute attrib, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  const auto found = device_attribute(attrib, device);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  *value = *found;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetProperties)(CUdevprop* prop, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  const auto value = [&](CUdevice_attribute attribute) {
    return device_attribute(attribute, device).value_or(0);
  };
  *prop = {value(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
           {1024, 1024, 64},
           {2147483647, 65535, 65535},
           value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
           value(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
           value(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
           value(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
           value(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
           value(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
           value(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT)};
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceComputeCapability)(int* major, int* minor, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  *major = 9;
  *minor = 0;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetPCIBusId)(char* pci_bus_id, int len, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (pci_bus_id == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  char text[32];
  const int length =
      std::snprintf(text, sizeof text, "0000:%02X:00.0", call.rt.device_config(device).pci_bus);
  if (len <= length) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(pci_bus_id, text, static_cast<std::size_t>(length) + 1);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetByPCIBusId)(CUdevice* device, const char* pci_bus_id) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (device == nullptr || pci_bus_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  unsigned function = 0;
  const bool whole = std::sscanf(pci_bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;
  if (!whole) {
    domain = 0;
    if (std::sscanf(pci_bus_id, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < call.rt.device_count(); ++i) {
    if (domain == 0 && slot == 0 && bus == call.rt.device_config(i).pci_bus) {
      *device = i;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

SOFTGPU_API(cuDeviceGetExecAffinitySupport)
(int* value, CUexecAffinityType type, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  (void)type;
  SOFTGPU_TRY(call.device(device));
  *value = 0;  // only under the vendor's multi-process service
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetTexture1DLinearMaxWidth)
(size_t* max_width_in_elements, CUarray_format format, unsigned num_channels, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (max_width_in_elements == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  (void)format;
  if (num_channels != 1 && num_channels != 2 && num_channels != 4) return CUDA_ERROR_INVALID_VALUE;
  *max_width_in_elements = 268435456;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceCanAccessPeer)(int* can_access_peer, CUdevice device, CUdevice peer_dev) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (can_access_peer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  SOFTGPU_TRY(call.device(peer_dev));
  *can_access_peer = device != peer_dev ? 1 : 0;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetP2PAttribute)
(int* value, CUdevice_P2PAttribute attrib, CUdevice src, CUdevice dst) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(src));
  SOFTGPU_TRY(call.device(dst));
  if (src == dst) return CUDA_ERROR_INVALID_DEVICE;
  switch (attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API(cuDevicePrimaryCtxRetain)(CUcontext* ctx, CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  const auto index = static_cast<std::size_t>(device);
  auto& primary = call.rt.primary[index];
  if (!primary || primary->dead) {
    const auto before = primary;
    std::shared_ptr<Context> made;
    SOFTGPU_TRY(open_context(call, device, call.rt.primary_flags[index], made));
    if (before) {
      // The device's primary context has one handle for all its lives.
      call.rt.contexts.remove(made->handle);
      call.rt.contexts.remove(before->handle);
      made->handle = before->handle;
      call.rt.contexts.add(reinterpret_cast<std::uint64_t>(made->handle), made);
    }
    primary = made;
    primary->primary = true;
    primary->api_version = 3010;
  }
  ++call.rt.primary_references[index];
  *ctx = primary->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDevicePrimaryCtxRelease_v2)(CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  const auto index = static_cast<std::size_t>(device);
  auto& primary = call.rt.primary[index];
  if (!primary || call.rt.primary_references[index] == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--call.rt.primary_references[index] == 0 && !primary->dead) close_context(call, primary);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDevicePrimaryCtxReset_v2)(CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  const auto index = static_cast<std::size_t>(device);
  auto& primary = call.rt.primary[index];
  if (primary && !primary->dead) close_context(call, primary);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDevicePrimaryCtxSetFlags_v2)(CUdevice device, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  if (!good_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  const auto index = static_cast<std::size_t>(device);
  call.rt.primary_flags[index] = flags;
  if (call.rt.primary[index]) call.rt.primary[index]->flags = flags;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned* flags, int* active) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto index = static_cast<std::size_t>(device);
  *flags = call.rt.primary_flags[index];
  *active = call.rt.primary[index] && !call.rt.primary[index]->dead ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
