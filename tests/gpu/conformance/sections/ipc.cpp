// Memory, events and pools that travel to another process.

#include <unistd.h>

#include <cstring>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr size_t kChunk = 2 * kMiB;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Bytes as text, to hand them to another process, and back.
template <typename T>
std::string to_hex(const T& value) {
  static const char digits[] = "0123456789abcdef";
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  std::string text;
  for (const unsigned char byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

template <typename T>
T from_hex(const std::string& text) {
  unsigned char bytes[sizeof(T)] = {};
  for (std::size_t i = 0; i < sizeof(T) && 2 * i + 1 < text.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

void plain_memory(Run& run) {
  CUipcMemHandle handle = {};
  CUipcMemHandle other = {};
  CUdeviceptr opened = 0;
  CUdeviceptr managed = 0;
  const CUdeviceptr address = device_memory(run, 4 * kMiB);
  fill(run, address, 41, kMiB);
  CALL(cuIpcGetMemHandle, &handle, address);
  CALL(cuIpcOpenMemHandle_v2, &opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  run.helper("open_memory", {to_hex(handle)});
  run.value("the other process wrote", words_at(run, address, 1)[0]);
  CALL(cuIpcGetMemHandle, &other, address + 4096);
  CALL(cuIpcGetMemHandle, &other, 0);
  CALL(cuIpcGetMemHandle, nullptr, address);
  SETUP(cuMemAllocManaged, &managed, kMiB, CU_MEM_ATTACH_GLOBAL);
  CALL(cuIpcGetMemHandle, &other, managed);
  CALL(cuIpcCloseMemHandle, address);
  CALL(cuIpcCloseMemHandle, 0);
  const CUipcMemHandle nonsense = {};
  CALL(cuIpcOpenMemHandle_v2, &opened, nonsense, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  SETUP(cuMemFree_v2, address);
  run.heading("memory that its owner has freed");
  run.helper("open_memory", {to_hex(handle)});
}

void events(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  const CUevent event = new_event(run, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  const CUevent private_event = new_event(run);
  CUipcEventHandle handle = {};
  CUevent opened = nullptr;
  CALL(cuIpcGetEventHandle, &handle, private_event);
  CALL(cuIpcGetEventHandle, &handle, event);
  launch_spin(run, kernels, stream, 5);
  SETUP(cuEventRecord, event, stream);
  CALL(cuIpcOpenEventHandle, &opened, handle);
  run.helper("open_event", {to_hex(handle)});
  CALL(cuEventSynchronize, event);
  const CUipcEventHandle nonsense = {};
  CALL(cuIpcOpenEventHandle, &opened, nonsense);
  CALL(cuIpcGetEventHandle, nullptr, event);
  CALL(cuIpcGetEventHandle, &handle, nullptr);
}

void mapped_memory(Run& run) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUmemAllocationProp properties = {};
  CUmemAccessDesc access = {};
  CUipcMemHandle ipc = {};
  int fd = -1;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kDescriptor;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  SETUP(cuMemCreate, &handle, kChunk, &properties, 0);
  SETUP(cuMemAddressReserve, &address, kChunk, 0, 0, 0);
  SETUP(cuMemMap, address, kChunk, 0, handle, 0);
  SETUP(cuMemSetAccess, address, kChunk, &access, 1);
  fill(run, address, 43, 64);
  CALL(cuIpcGetMemHandle, &ipc, address);
  CALL(cuMemExportToShareableHandle, &fd, handle, kDescriptor, 0);
  const int inherited = ::dup(fd);  // without close-on-exec
  run.helper("import_memory", {std::to_string(inherited)});
  run.value("the other process wrote", words_at(run, address, 1)[0]);
  ::close(inherited);
  ::close(fd);
}

void pool_memory(Run& run) {
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties = {};
  CUdeviceptr address = 0;
  CUmemPoolPtrExportData data = {};
  CUipcMemHandle ipc = {};
  int fd = -1;
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = kDescriptor;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CALL(cuMemPoolCreate, &pool, &properties);
  CALL(cuMemPoolExportToShareableHandle, &fd, pool, kDescriptor, 0);
  SETUP(cuMemAllocFromPoolAsync, &address, kMiB, pool, nullptr);
  SETUP(cuStreamSynchronize, nullptr);
  fill(run, address, 45, 64);
  CALL(cuMemPoolExportPointer, &data, address);
  CALL(cuMemPoolExportPointer, &data, device_memory(run, kMiB));
  CALL(cuMemPoolExportPointer, &data, address);
  CALL(cuIpcGetMemHandle, &ipc, address);
  const int inherited = ::dup(fd);
  run.helper("import_pool", {std::to_string(inherited), to_hex(data)});
  run.value("the other process wrote", words_at(run, address, 1)[0]);
  ::close(inherited);
  ::close(fd);
}

}  // namespace

void ipc_open_memory(Run& run, const Arguments& arguments) {
  use_card(run);
  const auto handle = from_hex<CUipcMemHandle>(arguments.at(0));
  CUdeviceptr address = 0;
  CUdeviceptr again = 0;
  size_t bytes = 0;
  CALL(cuIpcOpenMemHandle_v2, &address, handle, 0);
  CALL(cuIpcOpenMemHandle, &address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (address == 0) return;
  run.value("word", words_at(run, address, 1)[0]);
  CALL(cuMemGetAddressRange_v2, nullptr, &bytes, address);
  run.value("bytes", bytes);
  CALL(cuIpcOpenMemHandle_v2, &again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  run.value("opened twice, the same address", again == address);
  CALL(cuMemsetD32_v2, address, 42, 16);
  SETUP(cuCtxSynchronize);
  CALL(cuMemFree_v2, address);
  CALL(cuIpcCloseMemHandle, address);
  CALL(cuIpcCloseMemHandle, address);
  CALL(cuIpcCloseMemHandle, address);
}

void ipc_open_event(Run& run, const Arguments& arguments) {
  use_card(run);
  CUevent event = nullptr;
  CALL(cuIpcOpenEventHandle, &event, from_hex<CUipcEventHandle>(arguments.at(0)));
  CALL(cuEventSynchronize, event);
  CALL(cuEventQuery, event);
  CALL(cuStreamWaitEvent, nullptr, event, 0);
  CALL(cuStreamSynchronize, nullptr);
  CALL(cuEventDestroy_v2, event);
}

void ipc_import_memory(Run& run, const Arguments& arguments) {
  use_card(run);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  void* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(std::stoi(arguments.at(0))));
  CALL(cuMemImportFromShareableHandle, &handle, os_handle, kDescriptor);
  SETUP(cuMemAddressReserve, &address, kChunk, 0, 0, 0);
  CALL(cuMemMap, address, kChunk, 0, handle, 0);
  CALL(cuMemSetAccess, address, kChunk, &access, 1);
  run.value("word", words_at(run, address, 1)[0]);
  CALL(cuMemsetD32_v2, address, 44, 16);
  CALL(cuCtxSynchronize);
  CALL(cuMemUnmap, address, kChunk);
  CALL(cuMemRelease, handle);
}

void ipc_import_pool(Run& run, const Arguments& arguments) {
  use_card(run);
  CUmemoryPool pool = nullptr;
  CUdeviceptr address = 0;
  CUdeviceptr own = 0;
  auto data = from_hex<CUmemPoolPtrExportData>(arguments.at(1));
  void* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(std::stoi(arguments.at(0))));
  CALL(cuMemPoolImportFromShareableHandle, &pool, os_handle, kDescriptor, 0);
  CALL(cuMemPoolImportPointer, &address, pool, &data);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CALL(cuMemPoolSetAccess, pool, &access, 1);
  run.value("word", words_at(run, address, 1)[0]);
  CALL(cuMemsetD32_v2, address, 46, 16);
  CALL(cuCtxSynchronize);
  CALL(cuMemAllocFromPoolAsync, &own, kMiB, pool, nullptr);
  CALL(cuMemFreeAsync, address, nullptr);
  CALL(cuStreamSynchronize, nullptr);
  CALL(cuMemPoolDestroy, pool);
}

void ipc(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  plain_memory(run);
  run.heading("events");
  events(run, kernels);
  run.heading("mapped memory");
  mapped_memory(run);
  run.heading("pools");
  pool_memory(run);
}

}  // namespace nvshare::conformance
