#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "core/ids.h"
#include "core/reason.h"

// On which GPU something new goes: where its memory fits, then where the least work is.
namespace nvshare::core {

// A run that was placed and whose first client has not come.
struct Reservation {
  GpuId gpu;
  Bytes memory{};
};

struct PlaceWish {
  std::optional<Bytes> memory{};  // none: nothing is known
  std::vector<GpuId> among{};     // none: every GPU
  std::vector<Reservation> reserved{};
};

// What a GPU offers to a wish.
struct GpuLoad {
  GpuId gpu;
  int programs = 0;  // clients that are there, and reservations
  int wanting = 0;   // of the clients: those that have work
  Bytes free{};      // safe limit, less what is allocated and reserved; below 0: it is short
  Bytes total{};
};

struct Placement {
  GpuId gpu;
  Reason reason;
  std::vector<GpuLoad> others{};  // that could have been chosen
};

// Percent of a GPU that are free at least, so that a program of unknown size is put there. With a
// higher number programs avoid full GPUs sooner, and queue on fewer ones.
inline constexpr int kFreeForUnknown = 5;

// The best of `gpus`, in this order: the memory fits now; fewest programs; fewest that have work;
// most free memory; lowest number. Where the memory fits nowhere: most free memory first. Nothing
// when there are none.
std::optional<Placement> choose(const std::vector<GpuLoad>& gpus,
                                const std::optional<Bytes>& memory);

// "it was idle; GPU 0 had 1 program": why it was chosen, and what others had.
std::string to_text(const Placement& placement);

}  // namespace nvshare::core
