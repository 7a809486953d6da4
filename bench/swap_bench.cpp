#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"
#include "interposer/records.h"
#include "interposer/swap_state.h"

// swap_bench [--sizes 8Gi,20Gi,40Gi] [--check] [--out FILE]
//
// How fast the swap engine moves memory out and in on the card that is there, beside a plain copy
// from and to pinned memory and the driver's own checkpoints, measured in the same run. With
// --check each way must reach 94 % of the plain copy and five times the checkpoint.
namespace nvshare::interposer {

void* g_driver[kFunctionCount] = {};
std::atomic<int> g_captures{0};
bool stopped_looking() {
  return false;
}

namespace {

constexpr double kLeastPart = 0.94;
constexpr double kLeastTimes = 5;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kCheckpointed = 8 * kGiB;

double seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "swap_bench: {}\n", what);
  std::exit(1);
}

void must(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(fmt::format("{}: error {}", what, static_cast<int>(result)));
}

void open_driver() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(::dlerror());
  for (const Function& row : kFunctions) {
    g_driver[static_cast<unsigned>(row.id)] = ::dlsym(library, row.symbol);
  }
  CUcontext context{};
  must(real<FunctionId::cuInit>(0u), "cuInit");
  must(real<FunctionId::cuDevicePrimaryCtxRetain>(&context, 0), "cuDevicePrimaryCtxRetain");
  must(real<FunctionId::cuCtxSetCurrent>(context), "cuCtxSetCurrent");
}

double gib_per_second(std::uint64_t bytes, double took) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB) / took;
}

// Bytes per second of a plain copy each way, and of both at once in total.
struct Link {
  double out = 0;
  double in = 0;
  double both = 0;
};

Link measure_link() {
  constexpr std::uint64_t kBytes = kGiB;
  constexpr int kTimes = 8;
  CUdeviceptr device[2] = {};
  void* host[2] = {};
  CUstream stream[2] = {};
  for (int i = 0; i < 2; ++i) {
    must(real<FunctionId::cuMemAlloc_v2>(&device[i], kBytes), "cuMemAlloc");
    must(real<FunctionId::cuMemHostAlloc>(&host[i], kBytes, 0u), "cuMemHostAlloc");
    must(real<FunctionId::cuStreamCreate>(&stream[i], unsigned{CU_STREAM_NON_BLOCKING}),
         "cuStreamCreate");
  }
  const auto out = [&](int i) {
    must(real<FunctionId::cuMemcpyDtoHAsync_v2>(host[i], device[i], kBytes, stream[i]), "copy out");
  };
  const auto in = [&](int i) {
    must(real<FunctionId::cuMemcpyHtoDAsync_v2>(device[i], static_cast<const void*>(host[i]),
                                                kBytes, stream[i]),
         "copy in");
  };
  const auto timed = [&](const std::function<void()>& copy, std::uint64_t bytes) {
    copy();
    must(real<FunctionId::cuCtxSynchronize>(), "cuCtxSynchronize");
    const double begin = seconds();
    for (int i = 0; i < kTimes; ++i) copy();
    must(real<FunctionId::cuCtxSynchronize>(), "cuCtxSynchronize");
    return gib_per_second(bytes * kTimes, seconds() - begin);
  };
  Link link;
  link.out = timed([&] { out(0); }, kBytes);
  link.in = timed([&] { in(0); }, kBytes);
  link.both = timed([&] { out(0), in(1); }, 2 * kBytes);
  for (int i = 0; i < 2; ++i) {
    must(real<FunctionId::cuMemFree_v2>(device[i]), "cuMemFree");
    must(real<FunctionId::cuMemFreeHost>(host[i]), "cuMemFreeHost");
  }
  return link;
}

// --- the swap engine

struct Sums {
  SwapMoved all;
};
bool add_up(void* argument, SwapMoved& moved) {
  SwapMoved& all = static_cast<Sums*>(argument)->all;
  all.out += moved.out;
  all.in += moved.in;
  all.copied += moved.copied;
  return true;
}

// As the scheduler gives it. Returns when it is pinned.
double give_arena(Gate& gate, std::uint64_t bytes) {
  const double begin = seconds();
  for (std::uint64_t given = 0; given < bytes; given += kGiB) {
    const std::uint64_t segment = std::min(kGiB, bytes - given);
    const int fd = ::memfd_create("swap_bench", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(segment)) != 0) fail("no host memory");
    swap_add_arena(gate, fd, segment);
  }
  while (space_of(gate)->arena.pending.load() != 0) ::usleep(1000);
  return seconds() - begin;
}

struct Row {
  std::uint64_t bytes = 0;
  double pin = 0;  // seconds
  double out = 0;
  double in = 0;
  double out_again = 0;        // all of it changed
  double out_unchanged = 0;    // none of it
  std::uint64_t copied = 0;    // by the first
  std::uint64_t recopied = 0;  // by the last
};

// Where the time went, in milliseconds.
void print_times(bool out, Gate& gate, std::uint64_t bytes, double took) {
  const SwapTimes times = swap_times(gate);
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
  fmt::print(stderr,
             "swap_bench: {} {:.1f} GiB took={:.2f}ms hash={:.2f} map={:.2f} unmap={:.2f} "
             "submit={:.2f} copy={:.2f} place={:.2f} tell={:.2f}\n",
             out ? "out" : "in", gib_per_second(bytes, 1), took * 1e3, ms(times.hash),
             ms(times.map), ms(times.unmap), ms(times.submit), ms(times.copy), ms(times.place),
             ms(times.tell));
}

double timed_move(bool out, Gate& gate, std::uint64_t bytes, std::uint64_t* copied = nullptr) {
  Sums sums;
  const double begin = seconds();
  const bool all = out ? swap_out(gate, bytes, add_up, &sums) : swap_in(gate, bytes, add_up, &sums);
  const double took = seconds() - begin;
  if (!all || sums.all.out + sums.all.in < bytes) fail("not all of it could be moved");
  print_times(out, gate, bytes, took);
  if (copied != nullptr) *copied = sums.all.copied;
  return took;
}

void fill(const std::vector<CUdeviceptr>& pieces, std::uint64_t bytes, unsigned value) {
  for (const CUdeviceptr piece : pieces) {
    must(real<FunctionId::cuMemsetD32_v2>(piece, value++, bytes / 4), "cuMemsetD32");
  }
  must(real<FunctionId::cuCtxSynchronize>(), "cuCtxSynchronize");
}

void check(const std::vector<CUdeviceptr>& pieces, std::uint64_t bytes, unsigned value) {
  std::vector<unsigned> words(1 << 20);
  for (const CUdeviceptr piece : pieces) {
    for (const std::uint64_t at : {std::uint64_t{0}, bytes - words.size() * 4}) {
      must(real<FunctionId::cuMemcpyDtoH_v2>(static_cast<void*>(words.data()), piece + at,
                                             words.size() * 4),
           "cuMemcpyDtoH");
      if (std::any_of(words.begin(), words.end(), [&](unsigned word) { return word != value; })) {
        fail("memory came back changed");
      }
    }
    ++value;
  }
}

Row measure_swap(Gate& gate, std::uint64_t bytes, std::uint64_t* arena) {
  const std::uint64_t piece = std::min(bytes, 2 * kGiB);
  std::vector<CUdeviceptr> pieces(bytes / piece);
  for (CUdeviceptr& address : pieces) {
    must(swap_allocate(gate, piece, true, &address), "swap_allocate");
  }
  Row row;
  row.bytes = piece * pieces.size();
  if (*arena < row.bytes) {
    row.pin = give_arena(gate, row.bytes - *arena);
    *arena = row.bytes;
  }
  fill(pieces, piece, 100);
  row.out = timed_move(true, gate, row.bytes, &row.copied);
  row.in = timed_move(false, gate, row.bytes);
  check(pieces, piece, 100);
  fill(pieces, piece, 200);
  row.out_again = timed_move(true, gate, row.bytes);
  timed_move(false, gate, row.bytes);
  check(pieces, piece, 200);
  row.out_unchanged = timed_move(true, gate, row.bytes, &row.recopied);
  timed_move(false, gate, row.bytes);
  check(pieces, piece, 200);
  for (const CUdeviceptr address : pieces) swap_free(address);
  return row;
}

// --- the driver's checkpoints, of a process that holds 8 GiB

struct Checkpoint {
  double out = 0;  // seconds
  double in = 0;
};

[[noreturn]] void hold_memory(int ready, int end) {
  open_driver();
  CUdeviceptr address = 0;
  must(real<FunctionId::cuMemAlloc_v2>(&address, kCheckpointed), "cuMemAlloc");
  must(real<FunctionId::cuMemsetD32_v2>(address, 7u, kCheckpointed / 4), "cuMemsetD32");
  must(real<FunctionId::cuCtxSynchronize>(), "cuCtxSynchronize");
  char byte = 1;
  [[maybe_unused]] const auto told = ::write(ready, &byte, 1);
  [[maybe_unused]] const auto ended = ::read(end, &byte, 1);
  ::_exit(0);
}

// Zeros when this driver has none.
Checkpoint measure_checkpoint(pid_t child, int ready, int end) {
  char byte = 0;
  if (::read(ready, &byte, 1) != 1) fail("the process to be checkpointed failed");
  Checkpoint measured;
  const double begin = seconds();
  const bool out =
      g_driver[static_cast<unsigned>(FunctionId::cuCheckpointProcessLock)] != nullptr &&
      real<FunctionId::cuCheckpointProcessLock>(
          child, static_cast<CUcheckpointLockArgs*>(nullptr)) == CUDA_SUCCESS &&
      real<FunctionId::cuCheckpointProcessCheckpoint>(
          child, static_cast<CUcheckpointCheckpointArgs*>(nullptr)) == CUDA_SUCCESS;
  const double middle = seconds();
  if (out && real<FunctionId::cuCheckpointProcessRestore>(
                 child, static_cast<CUcheckpointRestoreArgs*>(nullptr)) == CUDA_SUCCESS) {
    measured = {middle - begin, seconds() - middle};
    real<FunctionId::cuCheckpointProcessUnlock>(child,
                                                static_cast<CUcheckpointUnlockArgs*>(nullptr));
  }
  [[maybe_unused]] const auto told = ::write(end, &byte, 1);
  ::waitpid(child, nullptr, 0);
  return measured;
}

struct Results {
  Link link;
  std::vector<Row> rows;
  Checkpoint checkpoint;
};

std::string json(const Results& results) {
  std::string rows;
  for (const Row& row : results.rows) {
    rows += fmt::format(
        "{}    {{\"gib\": {:.1f}, \"out\": {:.2f}, \"in\": {:.2f}, \"out_again\": {:.2f}, "
        "\"out_part\": {:.3f}, \"in_part\": {:.3f}, \"out_unchanged_seconds\": {:.4f}, "
        "\"unchanged_copied\": {}, \"pin_seconds\": {:.2f}}}",
        rows.empty() ? "" : ",\n", gib_per_second(row.bytes, 1), gib_per_second(row.bytes, row.out),
        gib_per_second(row.bytes, row.in), gib_per_second(row.bytes, row.out_again),
        gib_per_second(row.bytes, row.out) / results.link.out,
        gib_per_second(row.bytes, row.in) / results.link.in, row.out_unchanged, row.recopied,
        row.pin);
  }
  const Checkpoint& point = results.checkpoint;
  return fmt::format(
      "{{\n  \"command\": \"build/dev/bin/swap_bench --check --out "
      "bench/results/swap_h200.json\",\n"
      "  \"what\": \"GiB/s of the swap engine, and as a part of a plain pinned copy\",\n"
      "  \"plain_copy\": {{\"out\": {:.2f}, \"in\": {:.2f}, \"both_at_once\": {:.2f}}},\n"
      "  \"checkpoint_8gib_seconds\": {{\"out\": {:.2f}, \"in\": {:.2f}}},\n"
      "  \"swap\": [\n{}\n  ]\n}}\n",
      results.link.out, results.link.in, results.link.both, point.out, point.in, rows);
}

bool is_good(const Results& results) {
  return std::all_of(results.rows.begin(), results.rows.end(), [&](const Row& row) {
    const double out = gib_per_second(row.bytes, row.out);
    const double in = gib_per_second(row.bytes, row.in);
    const auto times = [](double rate, double checkpoint) {
      return checkpoint == 0 || rate >= kLeastTimes * gib_per_second(kCheckpointed, checkpoint);
    };
    return out >= kLeastPart * results.link.out && in >= kLeastPart * results.link.in &&
           times(out, results.checkpoint.out) && times(in, results.checkpoint.in);
  });
}

int run(const std::vector<std::uint64_t>& sizes, bool with_checkpoint, bool check_limits,
        const std::string& out) {
  Results results;
  int ready[2];
  int end[2];
  if (::pipe(ready) != 0 || ::pipe(end) != 0) return 1;
  const pid_t child = with_checkpoint ? ::fork() : -1;
  if (child == 0) hold_memory(ready[1], end[0]);
  open_driver();
  if (child > 0) results.checkpoint = measure_checkpoint(child, ready[0], end[1]);
  results.link = measure_link();
  static Gate gate;
  std::uint64_t arena = 0;
  for (const std::uint64_t size : sizes) results.rows.push_back(measure_swap(gate, size, &arena));
  const std::string text = json(results);
  fmt::print("{}", text);
  if (!out.empty()) std::ofstream(out) << text;
  const bool good = is_good(results);
  fmt::print("{}\n", good ? "ok" : "MISSED");
  return check_limits && !good ? 1 : 0;
}

}  // namespace
}  // namespace nvshare::interposer

int main(int count, char** words) {
  const std::vector<std::string> all(words + 1, words + count);
  std::vector<std::uint64_t> sizes;
  std::string text = "8Gi,20Gi,40Gi";
  std::string out;
  bool check = false;
  bool checkpoint = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == "--check") {
      check = true;
    } else if (all[i] == "--no-checkpoint") {
      checkpoint = false;
    } else if (all[i] == "--sizes" && i + 1 < all.size()) {
      text = all[++i];
    } else if (all[i] == "--out" && i + 1 < all.size()) {
      out = all[++i];
    } else {
      std::fputs("usage: swap_bench [--sizes 8Gi,20Gi] [--no-checkpoint] [--check] [--out FILE]\n",
                 stderr);
      return 2;
    }
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const auto bytes = nvshare::parse_bytes(text.substr(at, comma - at));
    if (!bytes || bytes->count < (1 << 23)) {
      std::fputs("swap_bench: a size is wrong\n", stderr);
      return 2;
    }
    sizes.push_back(static_cast<std::uint64_t>(bytes->count));
    at = comma + 1;
  }
  return nvshare::interposer::run(sizes, checkpoint, check, out);
}
