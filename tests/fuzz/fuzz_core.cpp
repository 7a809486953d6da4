// Any sequence of events: the core neither crashes nor breaks what must always hold, and once
// everyone behaves everyone is served. The same player and the same rules as tests/properties.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "player.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nvshare::properties;
  Player player{Dice(std::span(data, size))};
  player.play();
  std::string wrong = to_lines(player.watch().broken());
  if (wrong.empty()) {
    const std::string not_served =
        player.settle();  // ends where a rule is broken, which is said first
    wrong = to_lines(player.watch().broken()) + not_served;
  }
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "%s%s", player.story().c_str(), wrong.c_str());
  std::abort();
}
