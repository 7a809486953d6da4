// Memory that moves in whole chunks, and sometimes not at all.

#include "chunks.h"

#include "holds.h"

namespace nvshare::properties {
namespace {

constexpr int kRuns = 200;
constexpr int kBytes = 400;
constexpr Duration kLasts = 60s;

template <typename Check>
void play(Check&& check) {
  holds(kRuns, [&] {
    const auto input = *bytes(kBytes);
    ChunkWorld world{Dice(input)};
    world.play(Time{kLasts});
    check(world);
  });
}

TEST(Chunks, TheBooksAddUpAndNothingIsOverbooked) {
  play([](const ChunkWorld& world) {
    if (!world.watch().broken().empty()) RC_FAIL(world.story());
  });
}

// Also at the end: whoever is not there now was there not long ago.
TEST(Chunks, EverybodyComesInAgainAndAgain) {
  play([](const ChunkWorld& world) {
    if (!world.watch().broken().empty()) return;  // another test says so
    for (const auto& [id, served] : world.served()) {
      const bool lately = served.last > Time{kLasts * 2 / 3};
      if (!world.all_there(id) && (served.times < 5 || !lately)) {
        RC_FAIL("client " + std::to_string(id.value) + "\n" + world.story());
      }
    }
  });
}

// Nobody keeps the GPU for longer than 0.4 s when others wait, and no order fails for ever.
TEST(Chunks, MemoryThatCannotMoveIsNotWaitedForLong) {
  int given = 0;
  play([&](const ChunkWorld& world) {
    given += world.given_later();
    if (world.longest_wait() > 20s) RC_FAIL(to_text(world.longest_wait()) + "\n" + world.story());
  });
  EXPECT_GT(given, 50) << "somebody waits";
}

// An order takes at least a millisecond; whoever repeats orders in vain gives one in each.
TEST(Chunks, OrdersAreNotRepeatedWithoutEnd) {
  play([](const ChunkWorld& world) {
    int served = 0;
    for (const auto& [id, one] : world.served()) served += one.times;
    const auto rests = kLasts / 100ms * static_cast<std::int64_t>(world.served().size());
    if (world.orders() > 40 * served + rests) {
      RC_FAIL(std::to_string(world.orders()) + " orders, and served " + std::to_string(served));
    }
  });
}

}  // namespace
}  // namespace nvshare::properties
