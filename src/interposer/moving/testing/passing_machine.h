#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/swap_machine.h"

// Host memory that several programs share. The test is the scheduler, and the other programs.
namespace nvshare::interposer::moving::swap {

inline constexpr uint64_t kConnection = 7;

struct News {
  SlabNews what;
  SwapSlabs which;
};

inline std::mutex g_mutex;
inline std::vector<News> g_news;
inline std::function<void(const News&)> g_on_news;  // called before it is noted
inline std::atomic<uint64_t> g_untaken;

inline void note_slabs(gate::Gate&, SlabNews what, const SwapSlabs& which) {
  if (g_on_news) g_on_news({what, which});
  const std::scoped_lock lock(g_mutex);
  g_news.push_back({what, which});
}

// There is no host memory but what a test shares. The program does not run, so nothing rests.
class PassingMachine : public SwapMachine {
 protected:
  PassingMachine() : SwapMachine(0) {}

  void SetUp() override {
    SwapMachine::SetUp();
    gate.state = gate::kClosed;
    g_news.clear();
    g_on_news = nullptr;
    g_untaken = 0;
  }

  void TearDown() override {
    before_each(FunctionId::cuMemHostRegister_v2, nullptr);
    wait_for_arena();
    EXPECT_EQ(g_untaken, 0u);
    host_memory -= bytes_told(SlabNews::kPassed) + bytes_told(SlabNews::kMissing);
    SwapMachine::TearDown();
    for (const auto& [id, file] : files) close(file);
  }

  // A segment of so many slabs, of which all are there.
  void add(uint64_t id, uint64_t count, uint64_t owned) {
    const int file = memfd_create("shared", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, static_cast<off_t>(count * kSlabBytes)), 0);
    files[id] = file;
    add_file(dup(file), {connection, id, count * kSlabBytes, owned, first_slabs(count)});
  }
  void add_file(int descriptor, const SwapSharedSegment& segment) {
    host_memory += swap_slab_bytes(segment.bytes, segment.owned);
    const auto note_untaken = [](gate::Gate&, uint64_t bytes) { g_untaken = bytes; };
    swap_add_shared(gate, descriptor, segment, note_untaken, nullptr, note_slabs);
  }
  uint64_t give(uint64_t id, uint64_t slabs) {
    const uint64_t bytes = swap_slabs_given(gate, connection, id, slabs);
    host_memory += bytes;
    return bytes;
  }
  void close_slabs(uint64_t id, uint64_t slabs) { swap_slabs_close(gate, connection, id, slabs); }
  void need(uint64_t enough) {
    EXPECT_EQ(return_all_but(enough), 0u) << "shared slabs are passed, not returned";
  }

  static uint64_t first_slabs(uint64_t count) { return (uint64_t{1} << count) - 1; }

  // All slabs of the segment that were told of in this way; no slab is told of twice.
  static uint64_t told(SlabNews what, uint64_t id = 1) {
    const std::scoped_lock lock(g_mutex);
    uint64_t slabs = 0;
    for (const News& news : g_news) {
      if (news.what != what || news.which.segment != id) continue;
      EXPECT_EQ(slabs & news.which.slabs, 0u) << "told twice";
      slabs |= news.which.slabs;
    }
    return slabs;
  }
  static size_t times_told(SlabNews what) {
    const std::scoped_lock lock(g_mutex);
    return static_cast<size_t>(std::count_if(g_news.begin(), g_news.end(),
                                             [&](const News& one) { return one.what == what; }));
  }
  static uint64_t bytes_told(SlabNews what) {
    const std::scoped_lock lock(g_mutex);
    uint64_t bytes = 0;
    for (const News& one : g_news) bytes += one.what == what ? one.which.bytes : 0;
    return bytes;
  }

  uint64_t free_bytes() { return arena_free(space_of(gate)->arena); }

  // What is mapped of the segment, as the engine has it. The engine has forgotten a segment of
  // which nothing is mapped.
  uint64_t mapped(uint64_t id = 1) {
    const Arena& arena = space_of(gate)->arena;
    const Lock lock(space_of(gate)->arena.mutex);
    uint64_t slabs = 0;
    for (const Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
      if (slab->memory != nullptr && slab->shared != nullptr && slab->shared->id == id)
        slabs |= uint64_t{1} << slab->index;
    }
    return slabs;
  }
  // Of these, what the processor can read.
  uint64_t visible(uint64_t id = 1) {
    const Arena& arena = space_of(gate)->arena;
    const Lock lock(space_of(gate)->arena.mutex);
    uint64_t slabs = 0;
    for (const Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
      if (slab->memory == nullptr || slab->shared == nullptr || slab->shared->id != id) continue;
      const int sink = memfd_create("sink", MFD_CLOEXEC);
      if (::write(sink, slab->memory, 1) == 1) slabs |= uint64_t{1} << slab->index;
      ::close(sink);
    }
    return slabs;
  }
  // Slabs that are mapped and ours alone.
  int private_slabs() {
    const Arena& arena = space_of(gate)->arena;
    const Lock lock(space_of(gate)->arena.mutex);
    int count = 0;
    for (const Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
      if (slab->memory != nullptr && slab->shared == nullptr) ++count;
    }
    return count;
  }
  bool knows_shared() {
    const Lock lock(space_of(gate)->arena.mutex);
    return space_of(gate)->arena.shared != nullptr;
  }
  uint64_t pages(uint64_t id = 1) {
    struct stat now {};
    EXPECT_EQ(fstat(files[id], &now), 0);
    return static_cast<uint64_t>(now.st_blocks) * 512;
  }

  // Another program writes to a slab, and looks for what it has written.
  void stamp(int file, uint64_t slab, uint64_t value) {
    for (const uint64_t at : {uint64_t{0}, kSlabBytes / 2, kSlabBytes - 8}) {
      EXPECT_EQ(pwrite(file, &value, 8, static_cast<off_t>(slab * kSlabBytes + at)), 8);
    }
  }
  bool has_stamp(int file, uint64_t slab, uint64_t value) {
    for (const uint64_t at : {uint64_t{0}, kSlabBytes / 2, kSlabBytes - 8}) {
      uint64_t found = 0;
      EXPECT_EQ(pread(file, &found, 8, static_cast<off_t>(slab * kSlabBytes + at)), 8);
      if (found != value) return false;
    }
    return true;
  }

  // Once, while the n-th slab from now is being mapped.
  void during_slab(uint64_t n, std::function<void()> action) {
    before_each(FunctionId::cuMemHostRegister_v2, [n, left = n, action]() mutable {
      if (left-- == 0) action();
    });
  }

  void move_out_and_in() {
    EXPECT_TRUE(out_all());
    EXPECT_TRUE(in_all());
    check_contents();
  }

  uint64_t connection = kConnection;
  std::map<uint64_t, int> files;
};

}  // namespace nvshare::interposer::moving::swap
