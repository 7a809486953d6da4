#include "interposer/memory/graph.h"

namespace nvshare::interposer::memory {
namespace {

constexpr uint32_t kAllocates = 0;
constexpr uint32_t kFrees = 1;  // what another graph allocates

std::atomic<uint32_t> g_left{0};  // how many there are, to be seen without the lock

void note(CUgraphExec exec, uint64_t address, uint32_t tag, uint64_t bytes, int device) {
  const Lock lock(g_books.mutex);
  if (!g_books.left.hold()) return;
  Left replaced{};
  const Left left{reinterpret_cast<uint64_t>(exec), bytes, device, false, ++g_books.last_serial};
  if (!g_books.left.put(address, tag, left, replaced)) g_left.fetch_add(1);
}

// Turns one thing that is left into a record of its own; false when there is none any more.
bool turn_one(CUgraphExec exec, Serial before) {
  Record replaced{};
  bool was_there = false;
  {
    const Lock lock(g_books.mutex);
    uint64_t address = 0;
    Left found{};
    g_books.left.for_each([&](uint64_t number, uint32_t tag, const Left& left) {
      if (tag != kAllocates || left.exec != reinterpret_cast<uint64_t>(exec)) return;
      if (left.serial > before || !left.live) return;
      address = number;
      found = left;
    });
    if (address == 0) return false;
    g_books.left.remove(address, kAllocates);
    g_left.fetch_sub(1);
    const Key of_graph = key_of(exec, found.device);
    const bool room = g_books.records.hold();
    Record* counted = g_books.records.find(of_graph.number, of_graph.tag());
    if (!room) return true;  // it goes with the graph's
    if (counted == nullptr || counted->bytes < found.bytes) {
      g_books.records.unhold();
      return true;
    }
    counted->bytes -= found.bytes;
    const Record record{found.bytes, counted->gate, nullptr, ++g_books.last_serial,
                        Lifetime::kGraph};
    const Key key{KeyKind::kAddress, address};
    was_there = g_books.records.put(key.number, key.tag(), record, replaced);
  }
  if (was_there) link::pinned_memory_freed(*replaced.gate, replaced.bytes);
  return true;
}

}  // namespace

void note_left(CUgraphExec exec, GraphMemory& memory) {
  memory.allocated.for_each([&](uint64_t address, uint32_t, const GraphMemory::Allocation& one) {
    if (memory.freed.find(address, 0) == nullptr) {
      note(exec, address, kAllocates, one.bytes, one.device);
    }
  });
  memory.freed.for_each([&](uint64_t address, uint32_t, bool) {
    if (memory.allocated.find(address, 0) == nullptr) note(exec, address, kFrees, 0, 0);
  });
}

bool anything_left() {
  return g_left.load(std::memory_order_relaxed) != 0;
}

void left_launched(CUgraphExec exec) {
  // One address at a time is let go of outside the lock.
  uint64_t after = 0;
  for (;;) {
    uint64_t freed = 0;
    const Serial before = mark();
    {
      const Lock lock(g_books.mutex);
      g_books.left.for_each([&](uint64_t address, uint32_t tag, Left& left) {
        if (left.exec != reinterpret_cast<uint64_t>(exec)) return;
        if (tag == kAllocates) {
          left.live = true;
        } else if (address > after && (freed == 0 || address < freed)) {
          freed = address;
        }
      });
    }
    if (freed == 0) return;
    left_freed(freed);
    uncount({KeyKind::kAddress, freed}, before);
    after = freed;
  }
}

void left_freed(CUdeviceptr address) {
  if (!anything_left()) return;
  const Lock lock(g_books.mutex);
  if (Left* left = g_books.left.find(address, kAllocates)) left->live = false;
}

void left_behind(CUgraphExec exec, Serial before) {
  if (!anything_left()) return;
  while (turn_one(exec, before)) {
  }
  const Lock lock(g_books.mutex);
  g_books.left.remove_if([&](uint64_t, uint32_t, const Left& left) {
    const bool gone = left.exec == reinterpret_cast<uint64_t>(exec) && left.serial <= before;
    if (gone) g_left.fetch_sub(1);
    return gone;
  });
}

void forget_left_after_fork() {
  g_books.left.forget();
  g_left.store(0);
}

}  // namespace nvshare::interposer::memory
