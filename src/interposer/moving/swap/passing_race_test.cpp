#include <bit>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "interposer/moving/testing/passing_machine.h"

// Slabs change hands while chunks are moved.
namespace nvshare::interposer::moving::swap {
namespace {

// One thread is the scheduler, with its book of slabs. Another changes its mind how much is enough.
// The test's own thread moves chunks.
class SwapPassingRace : public PassingMachine {
 protected:
  static constexpr int kRounds = 400;
  static constexpr uint64_t kMostSegments = 4;

  struct Entry {
    int file = -1;
    uint64_t owned = 0;
    uint64_t told = 0;  // to be mapped
    uint64_t mapped = 0;
    uint64_t closing = 0;
    uint64_t there() const { return told | mapped; }
  };

  // What the scheduler disconnects a client for must not happen.
  void note(const News& news) {
    const std::scoped_lock lock(book_mutex);
    if (news.which.connection != connection) return;
    Entry& entry = book.at(news.which.segment);
    const uint64_t slabs = news.which.slabs;
    switch (news.what) {
      case SlabNews::kTaken:
        EXPECT_EQ(slabs & ~(entry.told | entry.closing), 0u);
        entry.mapped |= slabs & entry.told;
        entry.told = 0;
        break;
      case SlabNews::kPassed:
        EXPECT_EQ(slabs & ~entry.owned, 0u);
        entry.owned &= ~slabs;
        stamp_slabs(entry, slabs);
        break;
      case SlabNews::kClosed:
        EXPECT_EQ(slabs & ~entry.closing, 0u);
        entry.closing &= ~slabs;
        check_stamps(entry, slabs);
        break;
      case SlabNews::kMissing:
        ADD_FAILURE() << "a slab is missing";
    }
  }

  // Other programs write to what is not ours.
  void stamp_slabs(const Entry& entry, uint64_t slabs) {
    for (uint64_t n = 0; n < 4; ++n) {
      if ((slabs >> n & 1) != 0) stamp(entry.file, n, 1000 + n);
    }
  }
  void check_stamps(const Entry& entry, uint64_t slabs) {
    for (uint64_t n = 0; n < 4; ++n) {
      if ((slabs >> n & 1) == 0) continue;
      EXPECT_TRUE(has_stamp(entry.file, n, 1000 + n));
    }
  }

  void add_at_random(std::mt19937_64& dice) {
    if (book.size() >= kMostSegments) return;
    const uint64_t count = 1 + dice() % 4;
    const uint64_t owned = dice() & first_slabs(count);
    const int file = memfd_create("shared", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, static_cast<off_t>(count * kSlabBytes)), 0);
    const uint64_t id = ++last_id;
    {
      const std::scoped_lock lock(book_mutex);
      book[id] = {file, owned, first_slabs(count), 0, 0};
      stamp_slabs(book[id], first_slabs(count) & ~owned);
    }
    add_file(dup(file), {connection, id, count * kSlabBytes, owned, first_slabs(count)});
  }

  void change_at_random(std::mt19937_64& dice, bool gives) {
    uint64_t id = 0;
    uint64_t slabs = 0;
    {
      const std::scoped_lock lock(book_mutex);
      if (book.empty()) return;
      auto at = std::next(book.begin(), static_cast<long>(dice() % book.size()));
      Entry& entry = at->second;
      id = at->first;
      slabs = dice() & entry.there() & ~entry.owned;
      check_stamps(entry, slabs);
      if (gives) {
        entry.owned |= slabs;
      } else {
        entry.told &= ~slabs;
        entry.mapped &= ~slabs;
        entry.closing |= slabs;
      }
    }
    if (slabs == 0) return;
    if (gives) {
      EXPECT_EQ(give(id, slabs), std::popcount(slabs) * kSlabBytes);
    } else {
      close_slabs(id, slabs);
    }
  }

  void drop_entries(bool all) {
    const std::scoped_lock lock(book_mutex);
    if (all) ++connection;
    std::erase_if(book, [&](const auto& one) {
      const Entry& entry = one.second;
      if (!all && (entry.owned | entry.there() | entry.closing) != 0) return false;
      close(entry.file);
      return true;
    });
  }

  void schedule() {
    std::mt19937_64 dice(1);
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t kind = dice() % 16;
      if (kind < 4) {
        add_at_random(dice);
      } else if (kind < 15) {
        change_at_random(dice, kind % 2 == 0);
      } else {
        swap_forget_shared(gate);
        drop_entries(true);
      }
      drop_entries(false);
      if (dice() % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(dice() % 8));
    }
    stop = true;
  }

  void change_need() {
    std::mt19937_64 dice(2);
    while (!stop) {
      swap_arena_need(gate, dice() % 3 == 0 ? ~uint64_t{0} : dice() % (96 * kMiB),
                      [](gate::Gate&, uint64_t bytes) { returned += bytes; });
      arena_prepare_later(*space_of(gate));
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + dice() % 8));
    }
  }

  void move_at_random(std::mt19937_64& dice) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    on_progress = [end] { return std::chrono::steady_clock::now() < end; };
    out(dice() % (40 * kMiB));
    on_progress = nullptr;
    EXPECT_TRUE(in_all());
    check_contents();
    for (const auto& [address, one] : known) {
      if (dice() % 2 == 0) write(address, one.seed + 1);
    }
  }

  static inline std::atomic<uint64_t> returned;
  std::mutex book_mutex;  // of the book and the connection
  std::map<uint64_t, Entry> book;
  uint64_t last_id = 0;
  std::atomic<bool> stop{false};
};

TEST_F(SwapPassingRace, TheSchedulersBookIsRight) {
  returned = 0;
  g_on_news = [this](const News& news) { note(news); };
  for (uint64_t seed = 1; seed <= 4; ++seed) allocate(5 * kMiB, 100 * seed);
  std::thread scheduler([this] { schedule(); });
  std::thread needs([this] { change_need(); });
  std::mt19937_64 dice(3);
  while (!stop) move_at_random(dice);
  scheduler.join();
  needs.join();
  wait_for_arena();
  for (const auto& [id, entry] : book) {
    EXPECT_EQ(entry.closing, 0u);
    EXPECT_EQ(mapped(id), entry.mapped);
    EXPECT_EQ(visible(id), entry.owned);
    check_stamps(entry, entry.mapped & ~entry.owned);
  }
  drop_entries(true);
  host_memory -= returned;
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
