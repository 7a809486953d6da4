#include "interposer/memory/imports.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/catch/current.h"
#include "interposer/gate/records.h"
#include "interposer/guest/pool.h"
#include "interposer/guest/tree.h"
#include "interposer/link/ipc.h"
#include "interposer/link/link.h"
#include "interposer/memory/driver_room.h"
#include "wire/channel.h"

namespace nvshare::interposer::memory {
namespace {

struct Import {
  IpcHandle handle{};
  CUcontext context = nullptr;
  CUdevice device = -1;  // of the memory, or the one it was opened on
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  CUdeviceptr place = 0;  // all the addresses that were reserved for it
  uint64_t each = 0;      // bytes of a chunk; of the last, perhaps less
  uint64_t last = 0;
  uint32_t count = 0;  // of chunks
  uint32_t mapped = 0;
  uint64_t opened = 0;  // 0: closed, and unmapped as soon as nothing is captured
  Import* next = nullptr;
  TreeNode<Import> by_address;
};

struct ImportsByAddress {
  static TreeNode<Import>& node(Import& one) { return one.by_address; }
  static bool before(const Import& a, const Import& b) { return a.address < b.address; }
};

struct Imports {
  Mutex changing;  // held while one is opened or closed, the driver's part too

  Mutex mutex;  // of what follows; changed with both held
  Tree<Import, ImportsByAddress> all;
  Pool<Import> pool;
};
constinit Imports g_imports{};
// Whether there is any. While there is none, nobody need look.
constinit std::atomic<uint64_t> g_import_count{0};

constexpr uint32_t kMostChunks = 4096;
constexpr uint64_t kMostBytes = uint64_t{1} << 48;  // more than any device has

// Not libc's, in which a thread may be cancelled.
void close_descriptor(int descriptor) {
  if (descriptor >= 0) syscall(SYS_close, descriptor);
}

// --- chunks arrive

// What has arrived of another process's memory: the driver's handle of each chunk.
class Arrivals {
 public:
  Arrivals() = default;
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // Until all have arrived. CUDA_ERROR_NOT_FOUND when the owner hung up before the first.
  CUresult receive(int socket, Import& import);
  CUmemGenericAllocationHandle& operator[](uint32_t index) { return handles_[index]; }

 private:
  CUresult take(const wire::IpcPiece& piece, int descriptor, Import& import);

  CUmemGenericAllocationHandle* handles_ = nullptr;
  uint32_t count_ = 0;
  uint32_t arrived_ = 0;
};

Arrivals::~Arrivals() {
  for (uint32_t i = 0; i < arrived_; ++i) real<FunctionId::cuMemRelease>(handles_[i]);
  if (handles_ != nullptr) unmap_memory(handles_, count_ * sizeof *handles_);
}

bool is_sound(const wire::IpcPiece& piece) {
  const bool small_enough = piece.count != 0 && piece.count <= kMostChunks && piece.bytes != 0 &&
                            piece.bytes <= kMostBytes / piece.count;
  if (!small_enough || piece.index != 0) return small_enough;
  return piece.offset < piece.bytes && piece.length != 0 &&
         piece.length <= piece.bytes * piece.count - piece.offset;
}

CUdevice device_with(const uint8_t (&gpu)[16]) {
  CUuuid wanted;
  memcpy(&wanted, gpu, sizeof wanted);
  int count = 0;
  real<FunctionId::cuDeviceGetCount>(&count);
  for (CUdevice device = 0; device < count; ++device) {
    CUuuid uuid;
    if (link::uuid_of(device, uuid) && link::is_same(uuid, wanted)) return device;
  }
  return -1;
}

CUresult Arrivals::take(const wire::IpcPiece& piece, int descriptor, Import& import) {
  if (piece.count == 0 || descriptor < 0 || !is_sound(piece) || piece.index != arrived_) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (piece.index == 0) {
    handles_ = static_cast<CUmemGenericAllocationHandle*>(
        map_memory(piece.count * sizeof(CUmemGenericAllocationHandle)));
    if (handles_ == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    import.count = count_ = piece.count;
    import.each = piece.bytes;
    import.bytes = piece.length;
    import.address = piece.offset;  // in what is yet to be reserved
    if (const CUdevice device = device_with(piece.gpu); device >= 0) import.device = device;
  }
  const bool is_last = piece.index + 1 == count_;
  if (piece.count != count_ || piece.bytes > import.each ||
      (!is_last && piece.bytes != import.each)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  import.last = piece.bytes;
  const CUresult result = real_with_room<FunctionId::cuMemImportFromShareableHandle>(
      &handles_[arrived_], reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) arrived_ += 1;
  return result;
}

CUresult Arrivals::receive(int socket, Import& import) {
  alignas(8) char buffer[wire::kMaxMessage];
  do {
    int descriptor = -1;
    const int length = wire::receive(socket, buffer, true, &descriptor);
    if (length == 0 && arrived_ == 0) return CUDA_ERROR_NOT_FOUND;
    const auto* piece =
        length > 0 ? wire::as<wire::IpcPiece>(wire::look_at(buffer, static_cast<size_t>(length)))
                   : nullptr;
    const CUresult result =
        piece != nullptr ? take(*piece, descriptor, import) : CUDA_ERROR_INVALID_VALUE;
    close_descriptor(descriptor);
    if (result != CUDA_SUCCESS) return result;
  } while (arrived_ < count_);
  return CUDA_SUCCESS;
}

// An owner with too many askers hangs up, and is asked again.
CUresult fetch(const IpcHandle& handle, Arrivals& arrivals, Import& import) {
  const uint64_t deadline = now_ns() + link::kIpcPatience;
  for (;;) {
    const int socket = link::ipc_reach(handle.owner, handle.memory, deadline);
    if (socket < 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = arrivals.receive(socket, import);
    close_descriptor(socket);
    if (result != CUDA_ERROR_NOT_FOUND) return result;
    if (now_ns() >= deadline) return CUDA_ERROR_INVALID_VALUE;
    sleep_ns(1'000'000);
  }
}

// --- mapping

uint64_t bytes_of(const Import& import, uint32_t chunk) {
  return chunk + 1 == import.count ? import.last : import.each;
}

// False when the driver has not taken back all of it, which is then lost.
bool unmap(Import& import) {
  while (import.mapped > 0) {
    const uint32_t chunk = import.mapped - 1;
    if (real<FunctionId::cuMemUnmap>(import.place + chunk * import.each, bytes_of(import, chunk)) !=
        CUDA_SUCCESS) {
      return false;
    }
    import.mapped -= 1;
  }
  return import.place == 0 || real<FunctionId::cuMemAddressFree>(
                                  import.place, import.each * import.count) == CUDA_SUCCESS;
}

// The device that opens it, and the one that it is on.
CUresult open_to_devices(const Import& import, CUdevice current) {
  CUmemAccessDesc access[2] = {};
  access[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, current};
  access[1].location = {CU_MEM_LOCATION_TYPE_DEVICE, import.device};
  access[0].flags = access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const size_t count = import.device != current ? 2 : 1;
  const uint64_t bytes = import.each * (import.count - 1) + import.last;
  return real<FunctionId::cuMemSetAccess>(import.place, bytes, access, count);
}

// May be called again when the driver had no memory: goes on where it was.
CUresult map(Import& import, Arrivals& arrivals, CUdevice current) {
  if (import.place == 0) {
    const CUresult result = real<FunctionId::cuMemAddressReserve>(
        &import.place, import.each * import.count, size_t{0}, CUdeviceptr{0}, 0ull);
    if (result != CUDA_SUCCESS) return result;
    import.address += import.place;
  }
  for (; import.mapped < import.count; ++import.mapped) {
    const CUresult result = real<FunctionId::cuMemMap>(import.place + import.mapped * import.each,
                                                       bytes_of(import, import.mapped), size_t{0},
                                                       arrivals[import.mapped], 0ull);
    if (result != CUDA_SUCCESS) return result;
  }
  return open_to_devices(import, current);
}

// --- the table, with `changing` held

Import* find_handle(const IpcHandle& handle, CUcontext context) {
  Import* found = nullptr;
  const Lock lock(g_imports.mutex);
  g_imports.all.for_each([&](Import& one) {
    if (one.context == context && is_same(one.handle, handle)) found = &one;
  });
  return found;
}

void add(Import& import) {
  const Lock lock(g_imports.mutex);
  g_imports.all.insert(&import);
  g_import_count.fetch_add(1);
}

// Nobody uses it any more.
void drop(Import& import) {
  {
    const Lock lock(g_imports.mutex);
    g_imports.all.remove(&import);
    g_import_count.fetch_sub(1);
  }
  unmap(import);
  const Lock lock(g_imports.mutex);
  g_imports.pool.give(&import);
}

// Drops those for which `is_wanted`, and then `may_go`, which may wait.
template <typename IsWanted, typename MayGo>
void drop_all(IsWanted is_wanted, MayGo may_go) {
  Import* list = nullptr;
  {
    const Lock lock(g_imports.mutex);
    g_imports.all.for_each([&](Import& one) {
      if (!is_wanted(one)) return;
      one.next = list;
      list = &one;
    });
  }
  while (list != nullptr) {
    Import* next = list->next;
    if (may_go(*list)) drop(*list);
    list = next;
  }
}

bool wait_for_gpu(CUcontext context, CUresult* result) {
  const catching::Within within(context);
  *result = within ? real<FunctionId::cuCtxSynchronize>() : CUDA_ERROR_INVALID_CONTEXT;
  return *result == CUDA_SUCCESS;
}

bool captures_going_on() {
  return gate::g_captures.load(std::memory_order_relaxed) != 0;
}

// What was closed during a capture, when nobody could wait for the GPU.
void tidy() {
  if (g_import_count.load() == 0 || captures_going_on()) return;
  CUresult ignored;
  drop_all([](const Import& one) { return one.opened == 0; },
           [&](const Import& one) { return wait_for_gpu(one.context, &ignored); });
}

// The import that an address lies in, with the table's mutex held.
Import* find_address(CUdeviceptr address) {
  Import wanted;
  wanted.address = address;
  Import* found = g_imports.all.at_or_before(wanted);
  const bool inside = found != nullptr && address - found->address < found->bytes;
  return inside && found->opened != 0 ? found : nullptr;
}

CUresult make_import(const IpcHandle& handle, CUcontext context, CUdevice current, Import& import) {
  import.handle = handle;
  import.context = context;
  import.device = current;
  Arrivals arrivals;
  CUresult result = fetch(handle, arrivals, import);
  if (result != CUDA_SUCCESS) return result;
  result = with_room(gate::Destination{}, [&] { return map(import, arrivals, current); });
  if (result != CUDA_SUCCESS) unmap(import);
  return result;
}

}  // namespace

CUresult import_open(const IpcHandle& handle, CUdeviceptr* address) {
  const KeepErrno keep;
  CUcontext context = nullptr;
  CUdevice current = -1;
  CUresult result = real<FunctionId::cuCtxGetCurrent>(&context);
  if (result == CUDA_SUCCESS) result = real<FunctionId::cuCtxGetDevice>(&current);
  if (result != CUDA_SUCCESS) return result;
  // As the driver does it for memory of the process's own.
  if (link::ipc_is_own(handle.owner)) return CUDA_ERROR_INVALID_CONTEXT;
  const Lock changing(g_imports.changing);
  Import* import = find_handle(handle, context);
  if (import == nullptr) {
    tidy();
    {
      const Lock lock(g_imports.mutex);
      import = g_imports.pool.take();
    }
    if (import == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    result = make_import(handle, context, current, *import);
    if (result != CUDA_SUCCESS) {
      const Lock lock(g_imports.mutex);
      g_imports.pool.give(import);
      return result;
    }
    add(*import);
  }
  const Lock lock(g_imports.mutex);
  import->opened += 1;
  *address = import->address;
  return CUDA_SUCCESS;
}

bool import_close(CUdeviceptr address, CUresult* result) {
  if (g_import_count.load(std::memory_order_relaxed) == 0) return false;
  const KeepErrno keep;
  const Lock changing(g_imports.changing);
  Import* import = nullptr;
  {
    const Lock lock(g_imports.mutex);
    import = find_address(address);
    if (import == nullptr || import->address != address) return false;
    *result = CUDA_SUCCESS;
    // Waiting for the GPU would spoil a capture, so then it is unmapped later.
    if (import->opened > 1 || captures_going_on()) {
      import->opened -= 1;
      return true;
    }
  }
  // While it is in use on the GPU it cannot be unmapped: the work would fail.
  if (wait_for_gpu(import->context, result)) drop(*import);
  tidy();
  return true;
}

moving::Range import_range_of(CUdeviceptr address) {
  moving::Range range;
  if (g_import_count.load(std::memory_order_relaxed) == 0) return range;
  const Lock lock(g_imports.mutex);
  const Import* found = find_address(address);
  if (found == nullptr) return range;
  range.ours = range.resident = true;
  range.base = found->address;
  range.bytes = found->bytes;
  range.context = found->context;
  range.device = found->device;
  return range;
}

void imports_context_gone(CUcontext context) {
  if (g_import_count.load() == 0) return;
  const KeepErrno keep;
  const Lock changing(g_imports.changing);
  drop_all([context](const Import& one) { return one.context == context; },
           [](const Import&) { return true; });
}

void forget_imports_after_fork() {
  g_imports.changing.reset_after_fork();
  g_imports.mutex.reset_after_fork();
  g_imports.all = {};
  g_imports.pool = {};
  g_import_count = 0;
}

}  // namespace nvshare::interposer::memory
