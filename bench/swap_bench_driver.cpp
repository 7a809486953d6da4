#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "swap_bench.h"

namespace nvshare::interposer {

void* catching::g_driver[kFunctionCount] = {};
std::atomic<int> gate::g_captures{0};
bool gate::stopped_looking() {
  return false;
}

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
    catching::g_driver[static_cast<unsigned>(row.id)] = ::dlsym(library, row.symbol);
  }
  CUcontext context{};
  must(real<FunctionId::cuInit>(0u), "cuInit");
  must(real<FunctionId::cuDevicePrimaryCtxRetain>(&context, 0), "cuDevicePrimaryCtxRetain");
  must(real<FunctionId::cuCtxSetCurrent>(context), "cuCtxSetCurrent");
}

double gib_per_second(std::uint64_t bytes, double took) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB) / took;
}

namespace {

struct Sums {
  moving::Moved all;
};
bool add_up(void* argument, moving::Moved& moved) {
  moving::Moved& all = static_cast<Sums*>(argument)->all;
  all.out += moved.out;
  all.in += moved.in;
  all.copied += moved.copied;
  return true;
}

// Where the time went, in milliseconds.
void print_times(bool out, gate::Gate& gate, std::uint64_t bytes, double took) {
  const moving::swap::SwapTimes times = moving::swap::swap_times(gate);
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
  fmt::print(stderr,
             "swap_bench: {} {:.1f} GiB took={:.2f}ms hash={:.2f} map={:.2f} unmap={:.2f} "
             "submit={:.2f} copy={:.2f} place={:.2f} tell={:.2f}\n",
             out ? "out" : "in", gib_per_second(bytes, 1), took * 1e3, ms(times.hash),
             ms(times.map), ms(times.unmap), ms(times.submit), ms(times.copy), ms(times.place),
             ms(times.tell));
}

}  // namespace

Pieces allocate(gate::Gate& gate, std::uint64_t bytes) {
  Pieces pieces;
  pieces.each = std::min(bytes, 2 * kGiB);
  pieces.addresses.resize(bytes / pieces.each);
  for (CUdeviceptr& address : pieces.addresses) {
    must(moving::swap::swap_allocate(gate, pieces.each, true, &address), "swap_allocate");
  }
  return pieces;
}

void fill(const Pieces& pieces, unsigned value) {
  for (const CUdeviceptr piece : pieces.addresses) {
    must(real<FunctionId::cuMemsetD32_v2>(piece, value++, pieces.each / 4), "cuMemsetD32");
  }
  must(real<FunctionId::cuCtxSynchronize>(), "cuCtxSynchronize");
}

void check(const Pieces& pieces, unsigned value) {
  std::vector<unsigned> words(1 << 20);
  for (const CUdeviceptr piece : pieces.addresses) {
    for (const std::uint64_t at : {std::uint64_t{0}, pieces.each - words.size() * 4}) {
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

double give_arena(gate::Gate& gate, std::uint64_t bytes) {
  const double begin = seconds();
  for (std::uint64_t given = 0; given < bytes; given += kGiB) {
    const std::uint64_t segment = std::min(kGiB, bytes - given);
    const int fd = ::memfd_create("swap_bench", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(segment)) != 0) fail("no host memory");
    moving::swap::swap_add_arena(gate, fd, segment, nullptr, nullptr);
  }
  while (moving::swap::space_of(gate)->arena.pending.load() != 0) ::usleep(1000);
  return seconds() - begin;
}

double timed_move(bool out, gate::Gate& gate, std::uint64_t bytes, std::uint64_t* copied) {
  Sums sums;
  const double begin = seconds();
  const bool all = out ? moving::swap::swap_out(gate, bytes, add_up, &sums)
                       : moving::swap::swap_in(gate, bytes, add_up, &sums);
  const double took = seconds() - begin;
  if (!all || sums.all.out + sums.all.in < bytes) fail("not all of it could be moved");
  print_times(out, gate, bytes, took);
  if (copied != nullptr) *copied = sums.all.copied;
  return took;
}

}  // namespace nvshare::interposer
