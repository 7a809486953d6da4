#pragma once

#include <stddef.h>
#include <stdint.h>

// Our own minimal declarations of the CUDA driver's ABI (CUDA 13.0): names, values and layouts as
// the driver has them, checked against the vendor's header where one is installed
// (vendor_check.cpp). The names of the driver are kept, so that code reads like any CUDA code;
// they live in a namespace, so that the vendor's header can be included beside them. The vendor
// has some of the constants as macros: include this header before the vendor's, never after it.
//
// Nothing here needs the C++ library: the interposer is built from these headers too.
namespace nvshare::cuda {

using CUdeviceptr = unsigned long long;
using CUdeviceptr_v1 = unsigned;  // before CUDA 3.2, when addresses and sizes had 32 bits
using CUdevice = int;
using CUtexObject = unsigned long long;
using CUsurfObject = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUgraphConditionalHandle = uint64_t;
using CUlogIterator = unsigned;

#define NVSHARE_CUDA_HANDLE(handle, tag) \
  struct tag;                            \
  using handle = tag*;
#include "cuda/handles.def"

#define NVSHARE_CUDA_ENUM_BEGIN(enumeration, type) enum enumeration : type {
#define NVSHARE_CUDA_VALUE(enumerator, value) enumerator = value,
#define NVSHARE_CUDA_ENUM_END(enumeration) \
  }                                        \
  ;
#include "cuda/enums.def"

#define NVSHARE_CUDA_FLAG(name, value) inline constexpr unsigned name = value;
#include "cuda/flags.def"

// The two streams that need no creating; their handles are small numbers (0 is the default stream,
// which is one of the two, as the symbol called says: legacy, or per thread for _ptds and _ptsz).
inline CUstream stream_legacy() {
  return reinterpret_cast<CUstream>(uintptr_t{1});
}
inline CUstream stream_per_thread() {
  return reinterpret_cast<CUstream>(uintptr_t{2});
}

// Keys of the `extra` argument of a launch, which is a list of pairs ended by the first of these.
inline void* launch_param_end() {
  return reinterpret_cast<void*>(uintptr_t{CU_LAUNCH_PARAM_END_AS_INT});
}
inline void* launch_param_buffer_pointer() {
  return reinterpret_cast<void*>(uintptr_t{CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT});
}
inline void* launch_param_buffer_size() {
  return reinterpret_cast<void*>(uintptr_t{CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT});
}

struct CUasyncNotificationInfo;

using CUhostFn = void (*)(void* user_data);
using CUstreamCallback = void (*)(CUstream stream, CUresult status, void* user_data);
using CUoccupancyB2DSize = size_t (*)(int block_size);
using CUasyncCallback = void (*)(CUasyncNotificationInfo* info, void* user_data,
                                 CUasyncCallbackHandle callback);
using CUlogsCallback = void (*)(void* data, CUlogLevel level, char* message, size_t length);

// Textures: only passed through, so only named.
struct CUDA_RESOURCE_DESC;
struct CUDA_TEXTURE_DESC;
struct CUDA_RESOURCE_VIEW_DESC;

}  // namespace nvshare::cuda
