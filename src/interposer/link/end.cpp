// The end of the process. Others wait for the memory that it has on the GPU and for the grant that
// it may hold. The kernel takes seconds to take apart a process with much pinned host memory, and
// closes its descriptors last; so both are given back before.
//
// The program cannot use the GPU any more: the driver calls that undefined after main(), and ends
// itself right behind us. Its threads may still run, though, and what it destroys now may still
// free memory. All of it happens in a thread of its own, for which the end of the process waits
// only so long: whatever that finds locked or busy, the process ends. But for a grant whose work is
// as good as done: the link's thread gives that back as ever, while the GPU may be looked at.
#include "interposer/gate/records.h"
#include "interposer/link/state.h"
#include "interposer/moving/swap/swap.h"

namespace nvshare::interposer::link {
namespace {

enum Leaving : uint32_t {
  kNot,
  kWaits,    // for the GPU
  kGivenUp,  // that took too long
  kGives,    // memory goes
  kLeft,
};

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kPatience = 2'000 * kMillisecond;      // with what is on the GPU
constexpr uint64_t kMorePatience = 5'000 * kMillisecond;  // with the driver

void step_to(Link& link, uint32_t step) {
  link.leaving = step;
  futex_wake(link.leaving, kEveryone);
}

bool may_begin(void* argument) {
  uint32_t expected = kWaits;
  return static_cast<Link*>(argument)->leaving.compare_exchange_strong(expected, kGives);
}

// Nobody gets in any more; those inside leave.
bool empty_gate(Link& link) {
  gate::end_gate(link.gate);
  wake_the_waiting(link);
  while (!gate::nobody_inside(link.gate)) {
    if (link.leaving.load() != kWaits) return false;
    sleep_ns(kMillisecond / 10);
  }
  return true;
}

void give_grant_back_now(Link& link) {
  Lock lock(link.mutex);
  gate::Done done;
  done.since = now_ns();
  if (link.phase == Phase::Holding) give_grant_back(link, done);
}

void* leave(void* argument) {
  Link& link = *static_cast<Link*>(argument);
  if (!empty_gate(link)) return nullptr;
  const moving::Freed freed = moving::swap::swap_leave(link.gate, may_begin, &link);
  if (freed.ours) {
    memory_freed(link.gate, {freed.bytes, freed.resident, 0});
    give_grant_back_now(link);
    log("left the GPU with %llu bytes", static_cast<unsigned long long>(freed.resident));
  }
  step_to(link, kLeft);
  return nullptr;
}

// While it takes that step, but not longer.
void wait_while(Link& link, uint32_t step, uint64_t patience) {
  for (const uint64_t begin = now_ns(); link.leaving.load() == step;) {
    const uint64_t waited = now_ns() - begin;
    if (waited >= patience) return;
    futex_wait(link.leaving, step, patience - waited);
  }
}

}  // namespace

// Others would wait for it for as long as the process takes to end: what was registered for that
// before the driver was first used comes behind us. What runs for longer it keeps.
void give_back_first(Link& link) {
  constexpr uint64_t kAMoment = 20 * kMillisecond;
  if (!link.made || link.phase != Phase::Holding || link.work.free) return;
  if (!link.mutex.lock_at_the_end()) return;
  link.grant.dropped = true;  // the link's thread gives it back
  link.mutex.unlock();
  for (const uint64_t begin = now_ns(); now_ns() - begin < kAMoment;) {
    const Phase phase = link.phase;
    if (phase != Phase::Holding && phase != Phase::Stopping) return;
    sleep_ns(kMillisecond / 10);
  }
}

void begin_to_leave(Link& link) {
  if (!link.made || !moving::swap::swap_is_slow_to_end(link.gate)) return;
  link.leaving = kWaits;
  if (!start_thread(leave, &link, "nvshare-end")) link.leaving = kNot;
}

void wait_until_left(Link& link) {
  // With memory that is being moved: the driver must not end meanwhile.
  for (const uint64_t begin = now_ns(); link.moving.load() && now_ns() - begin < kPatience;) {
    sleep_ns(kMillisecond);
  }
  wait_while(link, kWaits, kPatience);
  uint32_t waits = kWaits;
  if (link.leaving.compare_exchange_strong(waits, kGivenUp)) return;
  wait_while(link, kGives, kMorePatience);
}

}  // namespace nvshare::interposer::link
