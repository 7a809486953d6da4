#pragma once

#include "interposer/memory/count.h"

// Memory that graphs allocate and do not free themselves. It stays when the executable graph is
// destroyed, until somebody frees it; so it has to be known which of it is there at that moment.
namespace nvshare::interposer::memory {

inline constexpr int kMostGraphDevices = 64;

Key key_of(CUgraphExec exec, int device);

// Set when the first allocation node is made. Graphs are not looked through before.
extern std::atomic<bool> g_graph_memory;

// What the nodes of a graph, and of the graphs inside it, allocate and free.
struct GraphMemory {
  struct Allocation {
    uint64_t bytes;
    int device;
  };
  uint64_t bytes[kMostGraphDevices] = {};
  Table<Allocation> allocated;  // by address
  Table<bool> freed;

  GraphMemory() = default;
  ~GraphMemory() {
    allocated.clear();
    freed.clear();
  }
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  // False without memory of the host's to look at it.
  bool look_through(CUgraph graph);
};

// An executable graph was made of it.
void note_left(CUgraphExec exec, GraphMemory& memory);
// Whether any graph leaves memory, or frees what another left. Most programs have none.
bool anything_left();
// It was launched: what it leaves is there, what it frees for others is not.
void left_launched(CUgraphExec exec);
// Memory was freed, graph's or not.
void left_freed(CUdeviceptr address);
// The executable graph is gone: of what it counted, what is there is counted by itself from now on.
void left_behind(CUgraphExec exec, Serial before);

void forget_left_after_fork() REQUIRES(g_books.mutex);

}  // namespace nvshare::interposer::memory
