#pragma once

#include <atomic>

#include "interposer/driver.h"
#include "interposer/sys.h"

// The gate: everything that makes the GPU work passes it. Open, it costs one relaxed load and a few
// plain stores to the thread's own slot. Closed, callers wait in the CPU.
//
// Closing is race-free without a lock on the way in: a passing thread says in its slot that it is
// inside, and then looks at the gate; who closes changes the gate, makes every running thread of the
// process see that (membarrier), and then waits until nobody who was inside is any more.
namespace nvshare::interposer {

enum GateState : uint32_t {
  kClosed,   // wait, or connect first
  kFree,     // pass; nothing is counted
  kMetered,  // pass, but note what goes where
};

struct Link;
struct StreamRecord;

// One per device that is used. Lives as long as the process.
struct Gate {
  std::atomic<uint32_t> state{kClosed};
  Link* link = nullptr;
};

// One per thread. Slots are reused, never freed.
struct Slot {
  std::atomic<const Gate*> inside{nullptr};  // written by the thread, read by who closes
  std::atomic<uint32_t> taken{0};
  std::atomic<uint32_t> passes{0};  // counted by the thread while running free, for who looks whether it does
  uint32_t nesting = 0;             // a call within a call does not wait: the outer one passed
  StreamRecord* metered = nullptr;  // where the present call goes, while metered
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

// Held around one call that makes the GPU work. Constructing it may wait.
class Passage {
 public:
  explicit Passage(Destination destination) {
    Slot* slot = t_slot;
    Gate* gate = g_only_gate.load(std::memory_order_relaxed);
    if (__builtin_expect(slot != nullptr && gate != nullptr && slot->nesting == 0, 1)) {
      slot->inside.store(gate, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (__builtin_expect(gate->state.load(std::memory_order_relaxed) == kFree, 1)) {
        slot->nesting = 1;
        slot->passes.store(slot->passes.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
        slot_ = slot;
        return;
      }
    }
    enter_slow(destination);
  }
  ~Passage() {
    Slot* slot = slot_;
    if (slot == nullptr) return;
    if (__builtin_expect(slot->metered != nullptr && slot->nesting == 1, 0)) leave_metered(slot);
    slot->nesting -= 1;
    if (slot->nesting == 0) slot->inside.store(nullptr, std::memory_order_release);
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  void enter_slow(Destination destination);
  static void leave_metered(Slot* slot);

  Slot* slot_ = nullptr;  // null: nothing to leave
};

// The calling thread's slot; null when there is no memory for one.
Slot* own_slot();

// Prepares the process-wide barrier that closing needs; until then, and where the kernel has none,
// g_only_gate stays null and every call takes the slow way, with fences of its own.
bool prepare_barrier();

// From here on no thread passes. Those inside still are: nobody_inside() says when they have left.
void close_gate(Gate& gate);
bool nobody_inside(const Gate& gate);
// How many calls passed while running free, by all threads.
uint64_t all_passes();

void forget_slots_after_fork();

}  // namespace nvshare::interposer
