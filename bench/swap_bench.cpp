#include "swap_bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

// swap_bench [--sizes 8Gi,20Gi,40Gi] [--both 8Gi] [--check] [--out FILE]
//
// How fast the swap engine moves memory out and in on the card that is there, beside a plain copy
// from and to pinned memory and the driver's own checkpoints, measured in the same run. With
// --check each way must reach 94 % of the plain copy and five times the checkpoint. --both: also
// two processes at once, one out and one in, so much each.
namespace nvshare::interposer {
namespace {

constexpr double kLeastPart = 0.94;
constexpr double kLeastTimes = 5;
constexpr std::uint64_t kCheckpointed = 8 * kGiB;

// Bytes per second of a plain copy each way, and of both at once in total.
struct Link {
  double out = 0;
  double in = 0;
  double both = 0;
};

// The driver's own, or such as the scheduler gives.
void* pinned_memory(std::uint64_t bytes, bool of_arena) {
  void* memory = nullptr;
  if (!of_arena) {
    must(real<FunctionId::cuMemHostAlloc>(&memory, bytes, 0u), "cuMemHostAlloc");
    return memory;
  }
  const int file = ::memfd_create("swap_bench", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) fail("no host memory");
  memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) fail("no host memory");
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  must(real<FunctionId::cuMemHostRegister_v2>(memory, bytes, unsigned{CU_MEMHOSTREGISTER_PORTABLE}),
       "cuMemHostRegister");
  return memory;
}

void release_pinned(void* memory, std::uint64_t bytes, bool of_arena) {
  if (!of_arena) return must(real<FunctionId::cuMemFreeHost>(memory), "cuMemFreeHost");
  must(real<FunctionId::cuMemHostUnregister>(memory), "cuMemHostUnregister");
  ::munmap(memory, bytes);
}

Link measure_link(bool of_arena) {
  constexpr std::uint64_t kBytes = kGiB;
  constexpr int kTimes = 8;
  CUdeviceptr device[2] = {};
  void* host[2] = {};
  CUstream stream[2] = {};
  for (int i = 0; i < 2; ++i) {
    must(real<FunctionId::cuMemAlloc_v2>(&device[i], kBytes), "cuMemAlloc");
    host[i] = pinned_memory(kBytes, of_arena);
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
    release_pinned(host[i], kBytes, of_arena);
  }
  return link;
}

// --- the swap engine

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

Row measure_swap(gate::Gate& gate, std::uint64_t bytes, std::uint64_t* arena) {
  const Pieces pieces = allocate(gate, bytes);
  Row row;
  row.bytes = pieces.bytes();
  if (*arena < row.bytes) {
    row.pin = give_arena(gate, row.bytes - *arena);
    *arena = row.bytes;
  }
  fill(pieces, 100);
  row.out = timed_move(true, gate, row.bytes, &row.copied);
  row.in = timed_move(false, gate, row.bytes);
  check(pieces, 100);
  fill(pieces, 200);
  row.out_again = timed_move(true, gate, row.bytes);
  timed_move(false, gate, row.bytes);
  check(pieces, 200);
  row.out_unchanged = timed_move(true, gate, row.bytes, &row.recopied);
  timed_move(false, gate, row.bytes);
  check(pieces, 200);
  for (const CUdeviceptr address : pieces.addresses) moving::swap::swap_free(address);
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
      catching::g_driver[static_cast<unsigned>(FunctionId::cuCheckpointProcessLock)] != nullptr &&
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
  std::string command;
  Link link;
  Link of_arena;
  std::optional<Both> both;
  std::vector<Row> rows;
  Checkpoint checkpoint;
};

std::string json_of(const Link& link) {
  return fmt::format("{{\"out\": {:.2f}, \"in\": {:.2f}, \"both_at_once\": {:.2f}}}", link.out,
                     link.in, link.both);
}

std::string json_of(const std::optional<Both>& both, const Link& link) {
  if (!both) return "null";
  return fmt::format(
      "{{\"rate\": {:.2f}, \"part\": {:.3f}, \"out_seconds\": [{:.4f}, {:.4f}], \"in_seconds\": "
      "[{:.4f}, {:.4f}]}}",
      both->rate, both->rate / link.both, both->out[0], both->out[1], both->in[0], both->in[1]);
}

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
      "{{\n  \"command\": \"build/dev/bin/swap_bench {}\",\n"
      "  \"what\": \"GiB/s of the swap engine, and as a part of a plain pinned copy\",\n"
      "  \"plain_copy\": {},\n"
      "  \"plain_copy_of_arena\": {},\n"
      "  \"two_processes\": {},\n"
      "  \"checkpoint_8gib_seconds\": {{\"out\": {:.2f}, \"in\": {:.2f}}},\n"
      "  \"swap\": [\n{}\n  ]\n}}\n",
      results.command, json_of(results.link), json_of(results.of_arena),
      json_of(results.both, results.link), point.out, point.in, rows);
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

struct Options {
  std::string command;  // all of them, as they were written
  std::vector<std::uint64_t> sizes;
  std::uint64_t both = 0;
  bool checkpoint = true;
  bool check = false;
  std::string out;
};

int run(const Options& options) {
  Results results;
  results.command = options.command;
  int ready[2];
  int end[2];
  if (::pipe(ready) != 0 || ::pipe(end) != 0) return 1;
  const pid_t child = options.checkpoint ? ::fork() : -1;
  if (child == 0) hold_memory(ready[1], end[0]);
  std::optional<Neighbour> neighbour;
  if (options.both > 0) neighbour.emplace(options.both);
  open_driver();
  if (child > 0) results.checkpoint = measure_checkpoint(child, ready[0], end[1]);
  results.link = measure_link(false);
  results.of_arena = measure_link(true);
  static gate::Gate gate;
  std::uint64_t arena = 0;
  for (const std::uint64_t size : options.sizes) {
    results.rows.push_back(measure_swap(gate, size, &arena));
  }
  if (neighbour) results.both = neighbour->measure(gate, &arena);
  const std::string text = json(results);
  fmt::print("{}", text);
  if (!options.out.empty()) std::ofstream(options.out) << text;
  const bool good = is_good(results);
  fmt::print("{}\n", good ? "ok" : "MISSED");
  return options.check && !good ? 1 : 0;
}

// Of one size; nothing when it is none.
std::optional<std::uint64_t> size_of(const std::string& text) {
  const auto bytes = parse_bytes(text);
  if (!bytes || bytes->count < (1 << 23)) return {};
  return static_cast<std::uint64_t>(bytes->count);
}

bool add_sizes(const std::string& text, std::vector<std::uint64_t>& sizes) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const auto size = size_of(text.substr(at, comma - at));
    if (!size) return false;
    sizes.push_back(*size);
    at = comma + 1;
  }
  return true;
}

std::optional<Options> parse(const std::vector<std::string>& words) {
  Options options;
  options.command = fmt::format("{}", fmt::join(words, " "));
  std::string sizes = "8Gi,20Gi,40Gi";
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool more = i + 1 < words.size();
    if (words[i] == "--check") {
      options.check = true;
    } else if (words[i] == "--no-checkpoint") {
      options.checkpoint = false;
    } else if (words[i] == "--sizes" && more) {
      sizes = words[++i];
    } else if (words[i] == "--both" && more) {
      const auto size = size_of(words[++i]);
      if (!size) return {};
      options.both = *size;
    } else if (words[i] == "--out" && more) {
      options.out = words[++i];
    } else {
      return {};
    }
  }
  if (!add_sizes(sizes, options.sizes)) return {};
  return options;
}

}  // namespace
}  // namespace nvshare::interposer

int main(int count, char** words) {
  const auto options = nvshare::interposer::parse({words + 1, words + count});
  if (!options) {
    std::fputs(
        "usage: swap_bench [--sizes 8Gi,20Gi] [--both 8Gi] [--no-checkpoint] [--check] [--out "
        "FILE]\n"
        "sizes are at least 8Mi\n",
        stderr);
    return 2;
  }
  return nvshare::interposer::run(*options);
}
