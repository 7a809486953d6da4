#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interposer/gate/records.h"
#include "interposer/moving/swap/state.h"

// What the parts of swap_bench share: the driver as it is, and the swap engine used as the library
// uses it. What goes wrong ends the program.
namespace nvshare::interposer {

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

double seconds();
double gib_per_second(std::uint64_t bytes, double took);
[[noreturn]] void fail(const std::string& what);
void must(CUresult result, const char* what);
// Of the first device, with its primary context current.
void open_driver();

// Memory that can move, in pieces.
struct Pieces {
  std::vector<CUdeviceptr> addresses;
  std::uint64_t each = 0;

  std::uint64_t bytes() const { return each * addresses.size(); }
};
Pieces allocate(gate::Gate& gate, std::uint64_t bytes);
void fill(const Pieces& pieces, unsigned value);
void check(const Pieces& pieces, unsigned value);

// Host memory as the scheduler gives it. Returns when it is pinned, with the seconds that took.
double give_arena(gate::Gate& gate, std::uint64_t bytes);

// Seconds of moving so much, all of which must move. What of it had to be copied: `copied`.
double timed_move(bool out, gate::Gate& gate, std::uint64_t bytes, std::uint64_t* copied = nullptr);

// --- swap_bench_both.cpp

// One process's memory goes out while another's comes in: GiB/s of both together, each way round
// once, and the seconds of each move.
struct Both {
  double rate = 0;
  double out[2] = {};
  double in[2] = {};
};
// The other process is made by the constructor, which comes before anything of the driver's.
class Neighbour {
 public:
  explicit Neighbour(std::uint64_t bytes);
  ~Neighbour();
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;
  Both measure(gate::Gate& gate, std::uint64_t* arena);

 private:
  std::uint64_t bytes_;
  int child_ = -1;
  int commands_ = -1;
  int answers_ = -1;
};

}  // namespace nvshare::interposer
