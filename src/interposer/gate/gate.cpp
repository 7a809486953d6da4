#include "interposer/gate/gate.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/gate/records.h"
#include "interposer/link/state.h"
#include "interposer/moving/swap/swap.h"

extern "C" int __cxa_thread_atexit_impl(void (*function)(void*), void* argument, void* dso);
extern "C" void* __dso_handle;

namespace nvshare::interposer::gate {
namespace {

constexpr size_t kSlotsPerChunk = 256;

std::atomic<Slot*> g_slots{nullptr};
Mutex g_slots_mutex;
Slot* g_chunk = nullptr;
size_t g_chunk_left = 0;
std::atomic<bool> g_barrier{false};

void free_slot(void* argument) {
  auto* slot = static_cast<Slot*>(argument);
  if (!note_thread_gone(*slot)) return;  // nobody else may have it
  slot->inside = nullptr;
  slot->last_record = nullptr;
  t_slot = nullptr;
  slot->taken.store(0, std::memory_order_release);
}

Slot* take_free_slot() {
  for (Slot* slot = g_slots.load(); slot != nullptr; slot = slot->next) {
    uint32_t expected = 0;
    if (slot->taken.load(std::memory_order_relaxed) == 0 &&
        slot->taken.compare_exchange_strong(expected, 1)) {
      return slot;
    }
  }
  Lock lock(g_slots_mutex);
  if (g_chunk_left == 0) {
    g_chunk = static_cast<Slot*>(map_memory(kSlotsPerChunk * sizeof(Slot)));
    if (g_chunk == nullptr) return nullptr;
    g_chunk_left = kSlotsPerChunk;
  }
  Slot* slot = &g_chunk[kSlotsPerChunk - g_chunk_left--];
  slot->taken = 1;
  slot->next = g_slots.load();
  g_slots.store(slot);
  return slot;
}

}  // namespace

constinit thread_local Slot* t_slot __attribute__((tls_model("initial-exec"))) = nullptr;
std::atomic<Gate*> g_only_gate{nullptr};

// With several devices, or before there is any: the stream's context says, or the current one.
Gate* gate_for(Destination destination) {
  if (Gate* only = g_only_gate.load(std::memory_order_relaxed)) return only;
  const auto handle = reinterpret_cast<uintptr_t>(destination.stream);
  CUcontext context = nullptr;
  if (handle > 2 && link::any_link() &&
      real<FunctionId::cuStreamGetCtx>(destination.stream, &context) == CUDA_SUCCESS) {
    if (Gate* gate = gate_of_context(context)) return gate;
  }
  return link::gate_of_current_device();
}

Slot* own_slot() {
  if (t_slot != nullptr) return t_slot;
  Slot* slot = take_free_slot();
  if (slot == nullptr) return nullptr;
  __cxa_thread_atexit_impl(free_slot, slot, &__dso_handle);
  t_slot = slot;
  return slot;
}

bool prepare_barrier() {
  if (!g_barrier) {
    g_barrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  }
  return g_barrier;
}

void set_state(Gate& gate, uint32_t state) {
  uint32_t before = gate.state.load();
  while (before != kEnded && !gate.state.compare_exchange_weak(before, state)) {
  }
}

namespace {

// Everybody who runs sees the gate as it is now.
void make_seen() {
  if (g_barrier) {
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace

void close_gate(Gate& gate) {
  set_state(gate, kClosed);
  make_seen();
}

void end_gate(Gate& gate) {
  gate.state.store(kEnded);
  make_seen();
}

bool nobody_inside(const Gate& gate) {
  for (Slot* slot = g_slots.load(); slot != nullptr; slot = slot->next) {
    if (slot->inside.load(std::memory_order_acquire) == &gate) return false;
  }
  return true;
}

uint64_t all_passes() {
  uint64_t sum = 0;
  for (Slot* slot = g_slots.load(); slot != nullptr; slot = slot->next) {
    sum += slot->passes.load(std::memory_order_relaxed);
  }
  return sum;
}

Passage::Passage(Destination destination, Needs needs) : Passage(nullptr, destination, needs) {}

Passage::Passage(Gate& gate) : Passage(&gate, {}, Needs::kMemory) {}

Passage::Passage(Gate* gate, Destination destination, Needs needs) : destination_(destination) {
  const KeepErrno keep;
  Slot* slot = own_slot();
  if (slot == nullptr || slot->inside.load(std::memory_order_relaxed) != nullptr) return;
  if (gate == nullptr) gate = gate_for(destination);
  if (gate == nullptr) return;
  if (needs == Needs::kMemory && !moving::swap::swap_has_any(*gate)) return;
  for (;;) {
    const uint32_t state = gate->state.load(std::memory_order_acquire);
    if (state == kClosed || state == kEnded) {
      if (is_captured(destination) && (needs == Needs::kTurn || !moving::swap::swap_has_any(*gate)))
        return;
      refused_ = state == kEnded;
      if (refused_) return;
      link::wait_for_grant(*gate->link);
      continue;
    }
    if (state == kMetered && needs != Needs::kMemory) {
      record_ = record_for(*slot, *gate, destination);
      if (record_ != nullptr) {
        wait_for_room(*record_);
        link::note_gap(*gate->link, *record_);
      }
      unnoted_ = record_ == nullptr && !is_captured(destination);
    }
    slot->inside.store(gate, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (gate->state.load(std::memory_order_relaxed) == state) break;
    slot->inside.store(nullptr, std::memory_order_release);
    record_ = nullptr;
    unnoted_ = false;
  }
  // From inside: whoever stops the meter now sees that somebody is.
  if (record_ != nullptr) link::note_busy(*gate->link, *record_);
  slot->passes.store(slot->passes.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  slot_ = slot;
}

Passage::~Passage() {
  if (slot_ == nullptr) return;
  if (record_ != nullptr) {
    const KeepErrno keep;
    note_submission(*record_);
    link::note_busy(*record_->gate->link, *record_);
  } else if (unnoted_) {
    const KeepErrno keep;
    wait_for_call(destination_);
  }
  slot_->inside.store(nullptr, std::memory_order_release);
}

void forget_slots_after_fork() {
  g_slots_mutex.reset_after_fork();
  g_slots = nullptr;
  g_chunk_left = 0;
  g_only_gate = nullptr;
  t_slot = nullptr;
}

}  // namespace nvshare::interposer::gate
