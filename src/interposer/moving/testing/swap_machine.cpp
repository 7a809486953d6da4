#include "interposer/moving/testing/swap_machine.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "interposer/gate/records.h"
#include "interposer/guest/elf.h"
#include "interposer/moving/swap/state.h"
#include "softgpu/driver.h"

namespace nvshare::interposer {
namespace {

struct Faults {
  uint64_t calls = 0;
  uint64_t fails = 0;
  const char* failed = "nothing";
};
thread_local Faults t_faults;

struct Interlude {
  FunctionId before{};
  std::function<void()> action;
};
thread_local Interlude t_interlude;

std::mutex g_each_mutex;
std::function<void()> g_each;
std::atomic<unsigned> g_each_of{kFunctionCount};

std::array<std::atomic<uint64_t>, kFunctionCount> g_calls;

std::array<std::atomic<CUresult>, kFunctionCount> g_refused;  // with which answer

std::atomic<uint64_t> g_missing{0};

template <FunctionId id, auto driver, typename... Arguments>
CUresult watched(Arguments... arguments) {
  g_calls[static_cast<unsigned>(id)] += 1;
  if (t_interlude.action && t_interlude.before == id) std::exchange(t_interlude.action, nullptr)();
  if (g_each_of == static_cast<unsigned>(id)) {
    const std::scoped_lock lock(g_each_mutex);
    if (g_each) g_each();
  }
  if (++t_faults.calls == t_faults.fails) {
    t_faults.failed = function(id).symbol;
    return CUDA_ERROR_UNKNOWN;
  }
  const CUresult refused = g_refused[static_cast<unsigned>(id)];
  if (refused != CUDA_SUCCESS) return refused;
  return driver(arguments...);
}

template <FunctionId id, auto driver, typename... Arguments>
void* address_of(CUresult (*)(Arguments...)) {
  return reinterpret_cast<void*>(&watched<id, driver, Arguments...>);
}

}  // namespace

void* catching::g_driver[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  address_of<FunctionId::symbol, &cuda::symbol>(                                         \
      static_cast<Signature<FunctionId::symbol>*>(nullptr)),
#include "cuda/functions.def"
};

// Not libc's own: a sanitizer wants to know of threads.
void* guest::libc_function(const char* symbol) {
  return dlsym(RTLD_DEFAULT, symbol);
}

namespace moving {

void fail_call(uint64_t n) {
  t_faults = {0, n, "nothing"};
}
uint64_t calls_since() {
  return t_faults.calls;
}
const char* failed_function() {
  return t_faults.failed;
}
void refuse(FunctionId id, bool refused, CUresult answer) {
  g_refused[static_cast<unsigned>(id)] = refused ? answer : CUDA_SUCCESS;
}
void before_next(FunctionId id, std::function<void()> action) {
  t_interlude = {id, std::move(action)};
}
void before_each(FunctionId id, std::function<void()> action) {
  const std::scoped_lock lock(g_each_mutex);
  g_each_of = action ? static_cast<unsigned>(id) : kFunctionCount;
  g_each = std::move(action);
}
uint64_t driver_calls(FunctionId id) {
  return g_calls[static_cast<unsigned>(id)];
}

std::vector<unsigned char> pattern(uint64_t seed, uint64_t bytes) {
  std::vector<unsigned char> data(bytes);
  if (seed == 0) return data;
  uint64_t state = seed * 0x9e3779b97f4a7c15u;
  for (uint64_t at = 0; at < bytes; at += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(&data[at], &state, std::min<uint64_t>(8, bytes - at));
  }
  return data;
}

void start_card() {
  setenv("NVSHARE_SOFTGPU_CARD", ("swap-" + std::to_string(getpid())).c_str(), 1);
  setenv("NVSHARE_SOFTGPU_MEMORY", "1Gi", 1);
  setenv("NVSHARE_SOFTGPU_COUNT", "2", 1);
  ASSERT_OK(real<FunctionId::cuInit>(0));
}

bool note_progress(void* argument, Moved& moved) {
  auto& told = *static_cast<Told*>(argument);
  told.sum.out += moved.out;
  told.sum.in += moved.in;
  told.sum.copied += moved.copied;
  told.reports += 1;
  return *told.on_progress == nullptr || (*told.on_progress)();
}

namespace swap {

void SwapMachine::SetUpTestSuite() {
  start_card();
}

void SwapMachine::SetUp() {
  ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&context, 0, 0));
  used_before = used();
  host_memory = 0;
  g_missing = 0;
  add_arena(host_bytes_);
  // The first allocation makes the context known.
  CUdeviceptr first = 0;
  ASSERT_OK(swap_allocate(gate, 1, true, &first));
  ASSERT_OK(swap_free(first).result);
  wait_for_arena();
}

void SwapMachine::TearDown() {
  fail_call(0);
  while (!known.empty()) free(known.begin()->first);
  check_sums();
  tidy(*space_of(gate));
  EXPECT_EQ(used(), used_before);
  const Space& space = *space_of(gate);
  EXPECT_EQ(space.leftovers, nullptr);
  EXPECT_EQ(space.deferred, nullptr);
  swap_context_leaving(context, true);
  EXPECT_OK(real<FunctionId::cuCtxDestroy_v2>(context));
  swap_context_gone(context);
  wait_for_arena();
  EXPECT_EQ(arena_free(space_of(gate)->arena), host_memory - missing()) << "host memory was lost";
  for (Slab* slab = space.arena.slabs; slab != nullptr; slab = slab->next) {
    if (slab->memory != nullptr) munmap(slab->memory, slab->bytes);
  }
  swap_reset_after_fork();
}

uint64_t SwapMachine::missing() {
  return g_missing;
}

int SwapMachine::add_arena(uint64_t bytes, SwapTellUntaken tell) {
  static int descriptor = -1;
  if (descriptor >= 0) close(descriptor);
  descriptor = memfd_create("arena", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(descriptor, static_cast<off_t>(bytes)), 0);
  host_memory += bytes;
  swap_add_arena(gate, dup(descriptor), bytes, tell,
                 [](gate::Gate&, uint64_t missing) { g_missing += missing; });
  return descriptor;
}

uint64_t SwapMachine::return_all_but(uint64_t enough) {
  static std::atomic<uint64_t> returned;
  returned = 0;
  swap_arena_need(gate, enough, [](gate::Gate&, uint64_t bytes) { returned += bytes; });
  wait_for_arena();
  host_memory -= returned;
  return returned;
}

void SwapMachine::restart() {
  TearDown();
  SetUp();
}

void SwapMachine::wait_for_arena() {
  const Arena& arena = space_of(gate)->arena;
  while (arena.pending.load() > 0 || arena.preparing.load() > 0) std::this_thread::yield();
}

CUdeviceptr SwapMachine::allocate(uint64_t bytes, uint64_t seed) {
  CUdeviceptr address = 0;
  EXPECT_OK(swap_allocate(gate, bytes, true, &address));
  if (address == 0) return 0;
  EXPECT_EQ(address % 512, 0u);
  EXPECT_EQ(known.count(address), 0u);
  known[address] = {bytes, seed, false};
  told_resident += bytes;
  write(address, seed);
  return address;
}

CUdeviceptr SwapMachine::allocate_away(uint64_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_OK(swap_allocate(gate, bytes, false, &address));
  if (address != 0) known[address] = {bytes, 0, false};
  return address;
}

void SwapMachine::free(CUdeviceptr address) {
  const Freed freed = swap_free(address);
  EXPECT_TRUE(freed.ours);
  EXPECT_OK(freed.result);
  EXPECT_EQ(freed.gate, &gate);
  EXPECT_EQ(freed.bytes, known[address].bytes);
  told_resident -= freed.resident;
  known.erase(address);
}

void SwapMachine::write(CUdeviceptr address, uint64_t seed) {
  Known& one = known[address];
  const auto data = pattern(seed, one.bytes);
  EXPECT_OK(real<FunctionId::cuMemcpyHtoD_v2>(address, data.data(), data.size()));
  one.seed = seed;
  one.written = true;
}

void SwapMachine::check_contents() {
  for (const auto& [address, one] : known) {
    const Range range = swap_range_of(address);
    EXPECT_TRUE(range.ours);
    if (!range.resident || !one.written) continue;
    std::vector<unsigned char> found(one.bytes);
    ASSERT_OK(real<FunctionId::cuMemcpyDtoH_v2>(found.data(), address, found.size()));
    ASSERT_EQ(std::memcmp(found.data(), pattern(one.seed, one.bytes).data(), found.size()), 0)
        << one.bytes << " bytes with seed " << one.seed;
  }
}

void SwapMachine::check_sums() {
  EXPECT_EQ(swap_resident(gate) + swap_absent(gate), live());
  EXPECT_EQ(swap_has_any(gate), live() != 0);
  EXPECT_EQ(swap_resident(gate), told_resident);
  EXPECT_EQ(swap_in_pages(gate, 0), in_pages());
}

bool SwapMachine::out(uint64_t bytes) {
  Told told{{}, 0, &on_progress};
  const bool done = swap_out(gate, bytes, note_progress, &told);
  EXPECT_EQ(told.sum.in, 0u);
  last = told.sum;
  reports = told.reports;
  told_resident -= told.sum.out;
  return done;
}

bool SwapMachine::in(uint64_t bytes) {
  Told told{{}, 0, &on_progress};
  const bool done = swap_in(gate, bytes, note_progress, &told);
  EXPECT_EQ(told.sum.out, 0u);
  EXPECT_LE(told.sum.in, bytes);
  last = told.sum;
  reports = told.reports;
  told_resident += told.sum.in;
  return done;
}

uint64_t SwapMachine::used() const {
  size_t free = 0;
  size_t total = 0;
  EXPECT_OK(real<FunctionId::cuMemGetInfo_v2>(&free, &total));
  uint64_t own = 0;
  if (const Space* space = space_of(gate)) {
    for (const Lane& lane : space->lanes) own += lane.hasher.module != nullptr ? 2 * kMiB : 0;
  }
  return total - free - own;
}

uint64_t SwapMachine::in_pages() const {
  constexpr uint64_t kPage = 2 * kMiB;
  uint64_t sum = made;
  for (const auto& [address, one] : known) {
    sum += one.bytes <= kMiB ? one.bytes : (one.bytes + kPage - 1) / kPage * kPage;
  }
  return sum;
}

uint64_t SwapMachine::live() const {
  uint64_t sum = made;
  for (const auto& [address, one] : known) sum += one.bytes;
  return sum;
}

}  // namespace swap
}  // namespace moving
}  // namespace nvshare::interposer
