#pragma once

#include <atomic>

#include "interposer/driver.h"
#include "interposer/sys.h"

// The gate: everything that makes the GPU work passes it. Open, it costs one relaxed load and two
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

// One per device that is used. Lives as long as the process.
struct Gate {
  std::atomic<uint32_t> state{kClosed};
  Link* link = nullptr;
};

// One per thread. Slots are reused, never freed.
struct Slot {
  std::atomic<const Gate*> inside{nullptr};  // written by the thread, read by who closes
  std::atomic<uint32_t> taken{0};
  uint32_t nesting = 0;       // of Passage and of our own calls into the driver
  Slot* next = nullptr;
  // The last stream of a metered call, and what is kept about it.
  CUcontext last_context = nullptr;
  CUstream last_stream = nullptr;
  struct StreamRecord* last_record = nullptr;
  uint32_t records_version = 0;
};

extern constinit thread_local Slot* t_slot __attribute__((tls_model("initial-exec")));
// The only gate there is, while only one device is used.
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
        slot_ = slot;
        return;
      }
    }
    enter_slow(destination);
  }
  ~Passage() {
    if (slot_ == nullptr) return;
    slot_->nesting -= 1;
    if (slot_->nesting == 0) slot_->inside.store(nullptr, std::memory_order_release);
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  void enter_slow(Destination destination);

  Slot* slot_ = nullptr;  // null: not to be left
};

}  // namespace nvshare::interposer
