#include "machine.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "interposer/gate/records.h"
#include "interposer/memory/driver_room.h"
#include "interposer/memory/ipc_answer.h"
#include "interposer/moving/managed/managed.h"
#include "softgpu/driver.h"

namespace nvshare::interposer {
namespace {

// What the software GPU does not have: the functions of before CUDA 3.2, with 32-bit addresses that
// lead nowhere, and arrays by their later functions.

unsigned g_next_address = 0x1000;

CUresult old_allocate(CUdeviceptr_v1* address, unsigned) {
  *address = g_next_address += 0x1000;
  return CUDA_SUCCESS;
}

CUresult old_allocate_pitched(CUdeviceptr_v1* address, unsigned* pitch, unsigned width, unsigned,
                              unsigned) {
  *address = g_next_address += 0x1000;
  *pitch = (width + 511) / 512 * 512;
  return CUDA_SUCCESS;
}

CUresult old_free(CUdeviceptr_v1 address) {
  return address == 0 || address > g_next_address ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult old_array(CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v1* shape) {
  const CUDA_ARRAY_DESCRIPTOR wide{shape->Width, shape->Height, shape->Format, shape->NumChannels};
  return cuda::cuArrayCreate_v2(array, &wide);
}

CUresult old_array_3d(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR_v1* shape) {
  const CUDA_ARRAY3D_DESCRIPTOR wide{shape->Width,  shape->Height,      shape->Depth,
                                     shape->Format, shape->NumChannels, shape->Flags};
  return cuda::cuArray3DCreate_v2(array, &wide);
}

CUresult old_info(unsigned* free, unsigned* total) {
  *free = *total = 0xffffffff;
  return CUDA_SUCCESS;
}

CUresult old_total(unsigned* bytes, CUdevice) {
  *bytes = 0xffffffff;
  return CUDA_SUCCESS;
}

template <FunctionId id>
void replace(Signature<id>* function) {
  catching::g_driver[static_cast<unsigned>(id)] = reinterpret_cast<void*>(function);
}

gate::Gate g_gates[kDevices];

Account& account_of(const gate::Gate& gate) {
  return g_accounts[&gate - g_gates];
}

}  // namespace

void* catching::g_driver[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  reinterpret_cast<void*>(static_cast<Signature<FunctionId::symbol>*>(&cuda::symbol)),
#include "cuda/functions.def"
};

bool catching::driver_has(FunctionId) {
  return true;
}

// A gate that is always open.
constinit thread_local gate::Slot* gate::t_slot = nullptr;
std::atomic<gate::Gate*> gate::g_only_gate{nullptr};
gate::Passage::Passage(gate::Destination, gate::Needs) {}
gate::Passage::Passage(gate::Gate& gate) {
  if (!account_of(gate).brings_in) return;
  moving::swap::swap_in(
      gate, ~uint64_t{0},
      [](void* its, moving::Moved& moved) {
        account_of(*static_cast<gate::Gate*>(its)).absent += moved.out - moved.in;
        return true;
      },
      &gate);
}
gate::Passage::~Passage() {}

std::atomic<int> gate::g_captures{0};
bool gate::stopped_looking() {
  return false;
}

Account g_accounts[kDevices];

gate::Gate* link::gate_of_device(CUdevice device) {
  return device < 0 || device >= kDevices ? nullptr : &g_gates[device];
}

gate::Gate* link::gate_of_current_device() {
  CUdevice device = -1;
  return real<FunctionId::cuCtxGetDevice>(&device) == CUDA_SUCCESS ? link::gate_of_device(device)
                                                                   : nullptr;
}

link::Given link::memory_request(gate::Gate& gate, uint64_t bytes, bool movable) {
  Account& account = account_of(gate);
  account.requests += 1;
  uint64_t before = account.allocated;
  do {
    if (account.limit != 0 && bytes > account.limit - before) return link::Given::Refused;
  } while (!account.allocated.compare_exchange_weak(before, before + bytes));
  if (!movable) account.pinned += bytes;
  const bool absent = movable && account.full;
  if (absent) account.absent += bytes;
  return absent ? link::Given::Absent : link::Given::Room;
}

void link::memory_freed(gate::Gate& gate, const link::Gone& gone) {
  Account& account = account_of(gate);
  account.allocated -= gone.bytes;
  account.pinned -= gone.pinned;
  account.absent -= gone.bytes - gone.resident;
}

void link::memory_pinned(gate::Gate& gate, uint64_t bytes) {
  account_of(gate).pinned += bytes;
}

uint64_t link::memory_of_device(const gate::Gate&) {
  return UINT64_MAX;
}

// The scheduler here is believed: there is room where it says so.
void link::memory_rounding(gate::Gate&, uint64_t) {}

bool link::wait_while_refused(const gate::Gate&) {
  return false;
}

bool link::memory_found_no_room(gate::Gate&, uint64_t) {
  return false;
}

link::Again::Again(gate::Gate* gate) : gate_(gate), connection_(0) {}
bool link::Again::after(CUresult) {
  return false;
}

bool memory::DriverRoom::more(gate::Destination) {
  return false;
}
void memory::DriverRoom::give_back() {}

Neighbour g_neighbour;

Pair new_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {ends[0], ends[1]};
}

bool link::random_bytes(void* to, size_t bytes) {
  static std::atomic<unsigned char> next{1};
  memset(to, next++, bytes);
  return true;
}

bool link::ipc_announce(gate::Gate&, uint8_t (&name)[wire::kIpcNameLength]) {
  memset(name, 77, sizeof name);
  return g_neighbour.known_to_scheduler;
}

bool link::ipc_is_own(const uint8_t (&)[wire::kIpcNameLength]) {
  return g_neighbour.is_self;
}

int link::ipc_reach(const uint8_t (&)[wire::kIpcNameLength], const wire::IpcMemory& memory,
                    uint64_t) {
  if (g_neighbour.reach) return g_neighbour.reach(memory);
  const Pair pair = new_pair();
  memory::ipc_answer(pair.owner, memory);
  return pair.asker;
}

bool link::uuid_of(CUdevice device, CUuuid& uuid) {
  return real<FunctionId::cuDeviceGetUuid_v2>(&uuid, device) == CUDA_SUCCESS;
}

bool link::is_same(const CUuuid& one, const CUuuid& other) {
  return memcmp(&one, &other, sizeof one) == 0;
}

wire::Backend link::memory_backend(const gate::Gate& gate) {
  return account_of(gate).backend;
}

link::MemoryView link::memory_view(gate::Gate& gate) {
  const Account& account = account_of(gate);
  return {account.limit, account.allocated};
}

link::MemoryView link::look_at_memory(CUdevice device) {
  return link::memory_view(g_gates[device]);
}

unsigned long driver_calls(FunctionId id) {
  return softgpuCallCount(function(id).symbol);
}

void Machine::SetUpTestSuite() {
  setenv("NVSHARE_SOFTGPU_CARD", ("memory-" + std::to_string(getpid())).c_str(), 1);
  setenv("NVSHARE_SOFTGPU_MEMORY", "1Gi", 1);
  setenv("NVSHARE_SOFTGPU_COUNT", std::to_string(kDevices).c_str(), 1);
  ASSERT_OK(real<FunctionId::cuInit>(0));
  replace<FunctionId::cuMemAlloc>(old_allocate);
  replace<FunctionId::cuMemAllocPitch>(old_allocate_pitched);
  replace<FunctionId::cuMemFree>(old_free);
  replace<FunctionId::cuArrayCreate>(old_array);
  replace<FunctionId::cuArray3DCreate>(old_array_3d);
  replace<FunctionId::cuMemGetInfo>(old_info);
  replace<FunctionId::cuDeviceTotalMem>(old_total);
}

void Machine::SetUp() {
  for (Account& account : g_accounts) {
    account.limit = account.requests = 0;
    account.allocated = account.pinned = account.absent = 0;
    account.full = account.brings_in = false;
    account.backend = wire::Backend::Native;
  }
  g_neighbour = {};
  context = new_context(0);
}

void Machine::TearDown() {
  if (context != nullptr) {
    EXPECT_OK(destroy_context(context));
  }
  for (const Account& account : g_accounts) {
    EXPECT_EQ(account.allocated, 0u);
    EXPECT_EQ(account.pinned, 0u);
    EXPECT_EQ(account.absent, 0u);
  }
  const Lock lock(memory::g_books.mutex);
  EXPECT_EQ(memory::g_books.records.size(), 0u);
  EXPECT_EQ(memory::g_books.physicals.size(), 0u);
  EXPECT_EQ(memory::g_books.handles.size(), 0u);
  EXPECT_EQ(memory::g_books.mappings.size(), 0u);
}

CUcontext Machine::new_context(CUdevice device) {
  CUcontext made{};
  EXPECT_OK(real<FunctionId::cuCtxCreate_v2>(&made, 0, device));
  return made;
}

CUresult Machine::destroy_context(CUcontext gone) {
  const uint64_t before = memory::memory_mark();
  moving::managed::managed_context_leaving(gone, true);
  const CUresult result = real<FunctionId::cuCtxDestroy_v2>(gone);
  if (result == CUDA_SUCCESS) memory::memory_context_gone(gone, before);
  return result;
}

CUdeviceptr Machine::allocate(uint64_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_OK(own::cuMemAlloc_v2(&address, bytes));
  return address;
}

CUstream Machine::new_stream() {
  CUstream stream{};
  EXPECT_OK(real<FunctionId::cuStreamCreate>(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

}  // namespace nvshare::interposer
