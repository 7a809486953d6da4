#include "softgpu/api/copy_task.h"

#include <cstring>

namespace nvshare::softgpu {
namespace {

using Wide = unsigned __int128;

// Whether any device may use all of the range: mapped memory can be closed to all of them.
bool may_use(Runtime& rt, std::uint64_t address, std::uint64_t bytes, bool write) {
  for (int device = 0; device < rt.device_count(); ++device) {
    if (rt.addresses.device_can(address, bytes, write, device)) return true;
  }
  return false;
}

// Finds out what an address is; false when it is not what it has to be.
bool resolve_address(Runtime& rt, std::uint64_t address, Wide bytes, Expect expect, bool write,
                     CopySide& side) {
  side.base = address;
  if (bytes > UINT64_MAX - address) return false;
  const Allocation* allocation = rt.addresses.find(address);
  const bool host_memory =
      allocation != nullptr && (allocation->kind == MemoryKind::kHostPinned ||
                                allocation->kind == MemoryKind::kHostRegistered);
  const bool known = allocation != nullptr || rt.addresses.find_mapping(address) != nullptr;
  if (expect == Expect::kDevice && !known) return false;
  if (!known) {
    side.type = CU_MEMORYTYPE_HOST;
    return address != 0;
  }
  side.type = host_memory ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  side.pinned = host_memory;
  // Pinned memory may be part of something larger; device memory ends where it ends.
  return host_memory || may_use(rt, address, static_cast<std::uint64_t>(bytes), write);
}

struct GivenSide {
  CUmemorytype type;
  std::uint64_t host;
  std::uint64_t device;
  CUarray array;
  std::size_t x, y, z, pitch, height;
};

CUresult resolve_array(Runtime& rt, const GivenSide& given, const CopyTask& task, CopySide& side) {
  const auto array = rt.arrays.find(given.array);
  if (!array) return CUDA_ERROR_INVALID_VALUE;
  const auto& shape = array->descriptor;
  const Wide right = Wide{given.x} + task.width;
  const Wide bottom = Wide{given.y} + task.height;
  const Wide back = Wide{given.z} + task.depth;
  const std::size_t height = shape.Height == 0 ? 1 : shape.Height;
  const std::size_t depth = shape.Depth == 0 ? 1 : shape.Depth;
  if (right > shape.Width * array->element || bottom > height || back > depth) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side.type = CU_MEMORYTYPE_ARRAY;
  side.pitch = array->pitch;
  side.slice = array->slice;
  side.base = array->base + given.z * array->slice + given.y * array->pitch + given.x;
  return CUDA_SUCCESS;
}

CUresult resolve_side(Runtime& rt, const GivenSide& given, const CopyTask& task, bool write,
                      CopySide& side) {
  if (given.type == CU_MEMORYTYPE_ARRAY) return resolve_array(rt, given, task, side);
  if (given.type < CU_MEMORYTYPE_HOST || given.type > CU_MEMORYTYPE_UNIFIED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Wide row = Wide{given.x} + task.width;
  if (row > UINT64_MAX) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t pitch = given.pitch == 0 ? static_cast<std::size_t>(row) : given.pitch;
  if (pitch < row) return CUDA_ERROR_INVALID_VALUE;
  const Wide height = given.height == 0 ? Wide{given.y} + task.height : Wide{given.height};
  if (task.depth > 1 && height < Wide{given.y} + task.height) return CUDA_ERROR_INVALID_VALUE;
  const Wide slice = Wide{pitch} * height;
  const Wide start = given.z * slice + Wide{given.y} * pitch + given.x;
  const Wide span = (task.depth - 1) * slice + Wide{task.height - 1} * pitch + task.width;
  if (slice > UINT64_MAX || start > UINT64_MAX || span > UINT64_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t base = given.type == CU_MEMORYTYPE_HOST ? given.host : given.device;
  if (base == 0 || start > UINT64_MAX - base) return CUDA_ERROR_INVALID_VALUE;
  const Expect expect = given.type == CU_MEMORYTYPE_HOST     ? Expect::kHost
                        : given.type == CU_MEMORYTYPE_DEVICE ? Expect::kDevice
                                                             : Expect::kAny;
  if (!resolve_address(rt, base + static_cast<std::uint64_t>(start), span, expect, write, side)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side.pitch = pitch;
  side.slice = static_cast<std::size_t>(slice);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult make_linear_copy(Call& call, std::uint64_t to, Expect to_kind, std::uint64_t from,
                          Expect from_kind, std::size_t bytes, CopyTask& task) {
  task.width = bytes;
  auto& given = task.given;
  given.WidthInBytes = bytes;
  given.Height = given.Depth = 1;
  if (bytes == 0) return CUDA_SUCCESS;
  if (!resolve_address(call.rt, to, bytes, to_kind, true, task.to) ||
      !resolve_address(call.rt, from, bytes, from_kind, false, task.from)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  given.srcMemoryType = task.from.type;
  given.dstMemoryType = task.to.type;
  given.srcHost = task.from.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<void*>(from) : nullptr;
  given.srcDevice = task.from.type == CU_MEMORYTYPE_HOST ? 0 : from;
  given.dstHost = task.to.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<void*>(to) : nullptr;
  given.dstDevice = task.to.type == CU_MEMORYTYPE_HOST ? 0 : to;
  given.srcPitch = given.dstPitch = bytes;
  given.srcHeight = given.dstHeight = 1;
  return CUDA_SUCCESS;
}

CUresult make_box_copy(Call& call, const CUDA_MEMCPY3D& copy, CopyTask& task) {
  task.given = copy;
  task.width = copy.WidthInBytes;
  task.height = copy.Height;
  task.depth = copy.Depth;
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  if (task.width == 0 || task.height == 0 || task.depth == 0) return CUDA_SUCCESS;
  const GivenSide from{copy.srcMemoryType, reinterpret_cast<std::uint64_t>(copy.srcHost),
                       copy.srcDevice,     copy.srcArray,
                       copy.srcXInBytes,   copy.srcY,
                       copy.srcZ,          copy.srcPitch,
                       copy.srcHeight};
  const GivenSide to{copy.dstMemoryType, reinterpret_cast<std::uint64_t>(copy.dstHost),
                     copy.dstDevice,     copy.dstArray,
                     copy.dstXInBytes,   copy.dstY,
                     copy.dstZ,          copy.dstPitch,
                     copy.dstHeight};
  SOFTGPU_TRY(resolve_side(call.rt, from, task, false, task.from));
  return resolve_side(call.rt, to, task, true, task.to);
}

CUDA_MEMCPY3D widen(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D wide{};
  wide.srcXInBytes = copy.srcXInBytes;
  wide.srcY = copy.srcY;
  wide.srcMemoryType = copy.srcMemoryType;
  wide.srcHost = copy.srcHost;
  wide.srcDevice = copy.srcDevice;
  wide.srcArray = copy.srcArray;
  wide.srcPitch = copy.srcPitch;
  wide.dstXInBytes = copy.dstXInBytes;
  wide.dstY = copy.dstY;
  wide.dstMemoryType = copy.dstMemoryType;
  wide.dstHost = copy.dstHost;
  wide.dstDevice = copy.dstDevice;
  wide.dstArray = copy.dstArray;
  wide.dstPitch = copy.dstPitch;
  wide.WidthInBytes = copy.WidthInBytes;
  wide.Height = copy.Height;
  wide.Depth = 1;
  return wide;
}

CUDA_MEMCPY3D without_contexts(const CUDA_MEMCPY3D_PEER& copy) {
  static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER));
  CUDA_MEMCPY3D plain{};
  std::memcpy(&plain, &copy, sizeof plain);
  plain.reserved0 = nullptr;  // where the contexts were
  plain.reserved1 = nullptr;
  return plain;
}

CUresult check_memset(Call& call, const CUDA_MEMSET_NODE_PARAMS& params) {
  const unsigned size = params.elementSize;
  if (size != 1 && size != 2 && size != 4) return CUDA_ERROR_INVALID_VALUE;
  if (params.width == 0 || params.height == 0) return CUDA_SUCCESS;
  if (params.dst % size != 0) return CUDA_ERROR_INVALID_VALUE;
  const Wide row = Wide{params.width} * size;
  if (params.height > 1 && (params.pitch < row || params.pitch % size != 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Wide span = Wide{params.height - 1} * params.pitch + row;
  if (span > UINT64_MAX - params.dst) return CUDA_ERROR_INVALID_VALUE;
  return may_use(call.rt, params.dst, static_cast<std::uint64_t>(span), true)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace nvshare::softgpu
