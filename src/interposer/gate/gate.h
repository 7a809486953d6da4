#pragma once

#include <atomic>

#include "interposer/catch/driver.h"
#include "interposer/guest/sys.h"

// The gate: everything that makes the GPU work, or needs memory to be there, passes it. Open, it
// costs one relaxed load and a few plain stores to the thread's own slot. Closed, callers wait in
// the CPU.
//
// Closing is race-free without a lock on the way in: a passing thread says in its slot that it is
// inside, and then looks at the gate; who closes changes the gate, makes every running thread of
// the process see that (membarrier), and then waits until nobody who was inside is any more.
namespace nvshare::interposer::link {
struct Link;
}

namespace nvshare::interposer::gate {

enum GateState : uint32_t {
  kClosed,   // wait, or connect first
  kFree,     // pass; nothing is counted
  kMetered,  // pass, but note what goes where
  kEnded,    // for good: calls are refused, as the driver does it when the process ends
};

struct StreamRecord;

// One per device that is used. Lives as long as the process.
struct Gate {
  std::atomic<uint32_t> state{kClosed};
  link::Link* link = nullptr;
};

// One per thread. Slots are reused, never freed.
struct Slot {
  // Written by the thread, read by who closes. A call within a call finds it set and does not wait:
  // the outer one passed.
  std::atomic<const Gate*> inside{nullptr};
  std::atomic<uint32_t> taken{0};
  std::atomic<uint32_t> passes{
      0};  // counted by the thread while running free, for who looks whether it does
  Slot* next = nullptr;

  // The stream of the last metered call and its record, while records_version is up to date.
  CUcontext last_context = nullptr;
  CUstream last_stream = nullptr;
  StreamRecord* last_record = nullptr;
  uint32_t records_version = 0;
};

extern constinit thread_local Slot* t_slot __attribute__((tls_model("initial-exec")));
// The only gate there is, while only one device is used; null otherwise.
extern std::atomic<Gate*> g_only_gate;

// Where a call goes. `stream` as it was handed in; `per_thread` when a null stream means the
// thread's own (flavours Ptds, Ptsz).
struct Destination {
  CUstream stream = nullptr;
  bool per_thread = false;
};

// The short way, when the gate stands open and nothing is counted: the slot to leave by
// leave_free(), or null, when it takes a Passage.
[[gnu::always_inline]] inline Slot* enter_free() {
  Slot* slot = t_slot;
  Gate* gate = g_only_gate.load(std::memory_order_relaxed);
  if (slot == nullptr || gate == nullptr) return nullptr;
  if (slot->inside.load(std::memory_order_relaxed) != nullptr) return nullptr;
  slot->inside.store(gate, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(gate->state.load(std::memory_order_relaxed) != kFree, 0)) {
    slot->inside.store(nullptr, std::memory_order_release);
    return nullptr;
  }
  slot->passes.store(slot->passes.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return slot;
}
inline void leave_free(Slot* slot) {
  slot->inside.store(nullptr, std::memory_order_release);
}

// What a call needs to be made.
enum class Needs : uint8_t {
  kTurn,           // work for the GPU; recorded into a capture it needs nothing
  kTurnAndMemory,  // the same, but the driver looks at what is under the addresses it is given, and
                   // does so for a capture, too: memory that can leave must be there
  kMemory,         // the driver only looks; there is no work
};

// Held around one call, after enter_free() answered null. Constructing it may wait. What needs
// memory alone waits for it like others, as memory is there for whoever may run; it is not counted.
class Passage {
 public:
  explicit Passage(Destination destination, Needs needs = Needs::kTurnAndMemory);
  // For memory behind a gate that is known, whatever device is current.
  explicit Passage(Gate& gate);
  ~Passage();
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

  // The call is not made: it answers kRefused.
  bool refused() const { return refused_; }
  static constexpr CUresult kRefused = CUDA_ERROR_DEINITIALIZED;

 private:
  Passage(Gate* gate, Destination destination, Needs needs);

  bool refused_ = false;
  Slot* slot_ = nullptr;            // null: nothing to leave
  StreamRecord* record_ = nullptr;  // where the call goes, while metered
  Destination destination_;
  bool unnoted_ = false;  // metered, and there was no memory for a record
};

// The gate that a call to there passes; null when there is none.
Gate* gate_for(Destination destination);

// The calling thread's slot; null when there is no memory for one.
Slot* own_slot();

// Prepares the process-wide barrier that closing needs; until then, and where the kernel has none,
// g_only_gate stays null and every call takes the slow way, with fences of its own.
bool prepare_barrier();

// Sets its state, unless it has ended.
void set_state(Gate& gate, uint32_t state);
// From here on no thread passes. Those inside still are: nobody_inside() says when they have left.
void close_gate(Gate& gate);
// The same, for good.
void end_gate(Gate& gate);
bool nobody_inside(const Gate& gate);
// How many calls passed while running free, by all threads.
uint64_t all_passes();

void forget_slots_after_fork();

}  // namespace nvshare::interposer::gate
