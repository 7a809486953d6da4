#include "programs/job.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "programs/job_kernels.h"

namespace nvshare::programs {
namespace {

constexpr std::size_t kBuffer = std::size_t{16} << 20;  // that a copy or a memset is about
constexpr std::size_t kLedgerWords = 1024;
constexpr std::size_t kChanging = 200;  // infer: one part in so many
constexpr unsigned kBlock = 1024;       // threads; two such blocks fill a multiprocessor

unsigned pattern_of(std::size_t piece) {
  return 0x9e3779b9u * static_cast<unsigned>(piece + 1);
}

}  // namespace

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool Job::fail(const std::string& what) {
  stop();
  const std::lock_guard hold(error_lock_);
  if (error_.empty()) error_ = what;
  return false;
}

bool Job::ok(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return true;
  const char* name = result_name(result);
  return fail(fmt::format("{}: {}", what, name == nullptr ? "unknown error" : name));
}

bool Job::begin() {
  if (const std::string error = driver_.open(options_.per_thread_stream); !error.empty()) {
    return fail(error);
  }
  CUmodule module{};
  int processors = 0;
  const auto function = [&](CUfunction& to, const char* name) {
    return ok(driver_.call<FunctionId::cuModuleGetFunction>(&to, module, name), name);
  };
  if (!ok(driver_.call<FunctionId::cuInit>(0u), "cuInit")) return false;
  if (!ok(driver_.call<FunctionId::cuDevicePrimaryCtxRetain>(&context_, options_.device),
          "cuDevicePrimaryCtxRetain") ||
      !ok(driver_.call<FunctionId::cuCtxSetCurrent>(context_), "cuCtxSetCurrent") ||
      !ok(driver_.call<FunctionId::cuDeviceGetAttribute>(
              &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, options_.device),
          "cuDeviceGetAttribute") ||
      !ok(driver_.call<FunctionId::cuModuleLoadData>(&module,
                                                     static_cast<const void*>(kJobKernels)),
          "cuModuleLoadData")) {
    return false;
  }
  blocks_ = 2 * static_cast<unsigned>(std::max(processors, 1));
  operation_ = options_.kernel;
  return function(noop_, "noop") && function(spin_, "spin") && function(fill_, "fill32") &&
         function(add_, "add32") && function(read_, "read32") && take_memory() &&
         measure_operation();
}

bool Job::take_memory() {
  const auto all = static_cast<std::size_t>(options_.memory.count);
  CUdeviceptr range = 0;
  if (options_.expandable && all > 0 &&
      !ok(driver_.call<FunctionId::cuMemAddressReserve>(&range, all, std::size_t{0}, CUdeviceptr{0},
                                                        0ull),
          "cuMemAddressReserve")) {
    return false;
  }
  for (std::size_t taken = 0; taken < all;) {
    const std::size_t bytes = std::min(all - taken, static_cast<std::size_t>(options_.piece.count));
    CUdeviceptr address = range + taken;
    const bool good =
        options_.expandable
            ? expand(address, bytes)
            : ok(driver_.call<FunctionId::cuMemAlloc_v2>(&address, bytes), "cuMemAlloc");
    if (!good) return false;
    pieces_.push_back({address, bytes, bytes, 0});
    taken += bytes;
  }
  if (options_.pattern == Pattern::Infer) {
    pieces_.front().changing = std::min(pieces_.front().bytes, all / kChanging);
    if (!ok(driver_.call<FunctionId::cuMemAlloc_v2>(&sink_, sizeof(std::uint64_t)), "cuMemAlloc")) {
      return false;
    }
  }
  if (!options_.fill && !options_.check) return true;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    CUdeviceptr address = pieces_[i].address;
    unsigned value = pattern_of(i);
    std::uint64_t words = pieces_[i].bytes / sizeof value;
    void* params[] = {&address, &value, &words};
    if (!launch(fill_, blocks_, kBlock, nullptr, params)) return false;
  }
  return ok(driver_.call<FunctionId::cuCtxSynchronize>(), "cuCtxSynchronize");
}

// Handles are kept, or not; a mapping keeps the memory.
bool Job::expand(CUdeviceptr address, std::size_t bytes) {
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, options_.device};
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = device;
  const CUmemAccessDesc access{device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  return ok(driver_.call<FunctionId::cuMemCreate>(&handle, bytes, &kind, 0ull), "cuMemCreate") &&
         ok(driver_.call<FunctionId::cuMemMap>(address, bytes, std::size_t{0}, handle, 0ull),
            "cuMemMap") &&
         ok(driver_.call<FunctionId::cuMemSetAccess>(address, bytes, &access, std::size_t{1}),
            "cuMemSetAccess") &&
         (pieces_.size() % 2 == 0 ||
          ok(driver_.call<FunctionId::cuMemRelease>(handle), "cuMemRelease"));
}

bool Job::launch(CUfunction function, unsigned grid, unsigned block, CUstream stream,
                 void** params) {
  return ok(driver_.call<FunctionId::cuLaunchKernel>(function, grid, 1u, 1u, block, 1u, 1u, 0u,
                                                     stream, params, static_cast<void**>(nullptr)),
            "cuLaunchKernel");
}

bool Job::one_operation(Lane& lane, CUstream stream) {
  switch (options_.pattern) {
    case Pattern::Copy:
      return ok(driver_.call<FunctionId::cuMemcpyHtoDAsync_v2>(
                    lane.buffer, static_cast<const void*>(lane.host), kBuffer, stream),
                "cuMemcpyHtoDAsync");
    case Pattern::Memset:
      return ok(driver_.call<FunctionId::cuMemsetD32Async>(lane.buffer, 0x5eedu,
                                                           kBuffer / sizeof(unsigned), stream),
                "cuMemsetD32Async");
    case Pattern::Train:
      if (!change_next_piece(stream)) return false;
      break;
    case Pattern::Infer:
      if (!read_next_piece(stream)) return false;
      break;
    default:
      break;
  }
  if (options_.kernel == Duration::zero()) return launch(noop_, 1, 1, stream, nullptr);
  std::uint64_t length = static_cast<std::uint64_t>(options_.kernel.count());
  void* params[] = {&length};
  return launch(spin_, blocks_, kBlock, stream, params);
}

// Adds one to each word.
bool Job::add(CUdeviceptr address, std::uint64_t words, unsigned grid, CUstream stream) {
  unsigned one = 1;
  void* params[] = {&address, &one, &words};
  return launch(add_, grid, kBlock, stream, params);
}

bool Job::add_to_ledger(Lane& lane, CUstream stream) {
  return add(lane.ledger, kLedgerWords, 1, stream);
}

bool Job::change_next_piece(CUstream stream) {
  Piece& piece = pieces_[next_piece_];
  next_piece_ = (next_piece_ + 1) % pieces_.size();
  piece.passes += 1;
  return add(piece.address, piece.bytes / sizeof(unsigned), blocks_, stream);
}

// And changes what an inference server changes: one small place, again and again.
bool Job::read_next_piece(CUstream stream) {
  Piece& changed = pieces_.front();
  Piece& piece = pieces_[next_piece_];
  next_piece_ = (next_piece_ + 1) % pieces_.size();
  std::uint64_t bytes = piece.bytes;
  void* params[] = {&sink_, &piece.address, &bytes};
  changed.passes += 1;
  return launch(read_, blocks_, kBlock, stream, params) &&
         add(changed.address, changed.changing / sizeof(unsigned), blocks_, stream);
}

bool Job::open_lane(Lane& lane) {
  if (options_.streams > 0 &&
      !ok(driver_.call<FunctionId::cuStreamCreate>(&lane.stream, unsigned{CU_STREAM_NON_BLOCKING}),
          "cuStreamCreate")) {
    return false;
  }
  for (CUevent& mark : lane.marks) {
    const unsigned flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    if (!ok(driver_.call<FunctionId::cuEventCreate>(&mark, flags), "cuEventCreate")) return false;
  }
  if (options_.check) {
    if (!ok(driver_.call<FunctionId::cuMemAlloc_v2>(&lane.ledger, kLedgerWords * sizeof(unsigned)),
            "cuMemAlloc") ||
        !ok(driver_.call<FunctionId::cuMemsetD32Async>(lane.ledger, 0u, kLedgerWords, lane.stream),
            "cuMemsetD32Async")) {
      return false;
    }
  }
  const bool moves = options_.pattern == Pattern::Copy || options_.pattern == Pattern::Memset;
  if (moves &&
      (!ok(driver_.call<FunctionId::cuMemAlloc_v2>(&lane.buffer, kBuffer), "cuMemAlloc") ||
       !ok(driver_.call<FunctionId::cuMemHostAlloc>(&lane.host, kBuffer, 0u), "cuMemHostAlloc"))) {
    return false;
  }
  return options_.pattern != Pattern::Graph || make_graph(lane);
}

// A whole batch as one graph, captured from a stream as programs do it.
bool Job::make_graph(Lane& lane) {
  CUstream stream{};
  CUgraph graph{};
  if (!ok(driver_.call<FunctionId::cuStreamCreate>(&stream, unsigned{CU_STREAM_NON_BLOCKING}),
          "cuStreamCreate") ||
      !ok(driver_.call<FunctionId::cuStreamBeginCapture_v2>(stream,
                                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture")) {
    return false;
  }
  for (int i = 0; i < options_.queue; ++i) {
    if (!one_operation(lane, stream)) return false;
  }
  if (options_.check && !add_to_ledger(lane, stream)) return false;
  return ok(driver_.call<FunctionId::cuStreamEndCapture>(stream, &graph), "cuStreamEndCapture") &&
         ok(driver_.call<FunctionId::cuGraphInstantiateWithFlags>(&lane.graph, graph, 0ull),
            "cuGraphInstantiate") &&
         ok(driver_.call<FunctionId::cuGraphDestroy>(graph), "cuGraphDestroy") &&
         ok(driver_.call<FunctionId::cuStreamDestroy_v2>(stream), "cuStreamDestroy");
}

// How long a copy or a memset takes, which nobody said: the quickest of a few.
bool Job::measure_operation() {
  if (options_.pattern != Pattern::Copy && options_.pattern != Pattern::Memset) return true;
  Lane lane;
  CUevent from{};
  CUevent to{};
  if (!open_lane(lane) ||
      !ok(driver_.call<FunctionId::cuEventCreate>(&from, 0u), "cuEventCreate") ||
      !ok(driver_.call<FunctionId::cuEventCreate>(&to, 0u), "cuEventCreate")) {
    return false;
  }
  float best = 1e9f;
  for (int i = 0; i < 5; ++i) {
    float took = 0;
    if (!ok(driver_.call<FunctionId::cuEventRecord>(from, lane.stream), "cuEventRecord") ||
        !one_operation(lane, lane.stream) ||
        !ok(driver_.call<FunctionId::cuEventRecord>(to, lane.stream), "cuEventRecord") ||
        !ok(driver_.call<FunctionId::cuEventSynchronize>(to), "cuEventSynchronize") ||
        !ok(driver_.call<FunctionId::cuEventElapsedTime>(&took, from, to), "cuEventElapsedTime")) {
      return false;
    }
    best = std::min(best, took);
  }
  operation_ = Duration(static_cast<std::int64_t>(static_cast<double>(best) * 1e6));
  return true;
}

// Memory that a batch works in, in stream order.
bool Job::take_workspace(Lane& lane, CUdeviceptr& address) {
  const auto bytes = static_cast<std::size_t>(options_.workspace.count);
  return bytes == 0 || (ok(driver_.call<FunctionId::cuMemAllocAsync>(&address, bytes, lane.stream),
                           "cuMemAllocAsync") &&
                        ok(driver_.call<FunctionId::cuMemsetD32Async>(
                               address, 0u, bytes / sizeof(unsigned), lane.stream),
                           "cuMemsetD32Async") &&
                        add(address, bytes / sizeof(unsigned), blocks_, lane.stream));
}

// A batch of `count` operations, and the mark behind it.
bool Job::submit(Lane& lane, std::int64_t count) {
  CUdeviceptr workspace = 0;
  if (!take_workspace(lane, workspace)) return false;
  if (lane.graph != nullptr) {
    if (!ok(driver_.call<FunctionId::cuGraphLaunch>(lane.graph, lane.stream), "cuGraphLaunch")) {
      return false;
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      if (!one_operation(lane, lane.stream)) return false;
    }
    if (options_.check && !add_to_ledger(lane, lane.stream)) return false;
  }
  if (workspace != 0 &&
      !ok(driver_.call<FunctionId::cuMemFreeAsync>(workspace, lane.stream), "cuMemFreeAsync")) {
    return false;
  }
  lane.batches += 1;
  lane.marked[lane.next] = count;
  return ok(driver_.call<FunctionId::cuEventRecord>(lane.marks[lane.next], lane.stream),
            "cuEventRecord");
}

// Waits for a mark and counts what lies before it.
bool Job::settle(Lane& lane, int mark) {
  if (lane.marked[mark] == 0) return true;
  if (!ok(driver_.call<FunctionId::cuEventSynchronize>(lane.marks[mark]), "cuEventSynchronize")) {
    return false;
  }
  done_.fetch_add(lane.marked[mark], std::memory_order_relaxed);
  lane.marked[mark] = 0;
  return true;
}

bool Job::more(std::int64_t submitted, std::int64_t end) const {
  if (stop_.load(std::memory_order_relaxed)) return false;
  return options_.launches > 0 ? submitted < options_.launches : now_ns() < end;
}

// A graph is a whole batch, so with graphs --launches is rounded up to whole ones.
std::int64_t Job::batch_size(std::int64_t submitted) const {
  if (options_.launches == 0 || options_.pattern == Pattern::Graph) return options_.queue;
  return std::min<std::int64_t>(options_.queue, options_.launches - submitted);
}

// Two batches in each stream: while one runs the next is there already, so that the GPU never waits
// for the CPU. With `sync`, one batch, and it is waited for.
bool Job::keep_full(std::vector<Lane>& lanes, std::int64_t end) {
  std::int64_t submitted = 0;
  while (more(submitted, end)) {
    for (Lane& lane : lanes) {
      if (!more(submitted, end)) break;
      const std::int64_t count = batch_size(submitted);
      if (!settle(lane, lane.next) || !submit(lane, count)) return false;
      submitted += count;
      if (options_.pattern == Pattern::Sync && !settle(lane, lane.next)) return false;
      lane.next ^= 1;
    }
  }
  return true;
}

bool Job::in_bursts(std::vector<Lane>& lanes, std::int64_t end) {
  const std::int64_t burst =
      std::max<std::int64_t>(1, options_.busy / std::max<Duration>(operation_, 1us));
  std::int64_t submitted = 0;
  while (more(submitted, end)) {
    std::int64_t left = burst;
    while (left > 0 && more(submitted, end)) {
      for (Lane& lane : lanes) {
        const std::int64_t count = std::min(left, batch_size(submitted));
        if (count == 0) break;
        if (!settle(lane, lane.next) || !submit(lane, count)) return false;
        lane.next ^= 1;
        submitted += count;
        left -= count;
      }
    }
    if (!wait_for_all(lanes)) return false;
    std::this_thread::sleep_for(options_.idle);
  }
  return true;
}

bool Job::wait_for_all(std::vector<Lane>& lanes) {
  for (Lane& lane : lanes) {
    if (!settle(lane, lane.next) || !settle(lane, lane.next ^ 1)) return false;
  }
  return true;
}

bool Job::check_ledger(Lane& lane) {
  std::vector<unsigned> words(kLedgerWords);
  if (!ok(driver_.call<FunctionId::cuMemcpyDtoHAsync_v2>(
              static_cast<void*>(words.data()), lane.ledger, words.size() * sizeof(unsigned),
              lane.stream),
          "cuMemcpyDtoHAsync") ||
      !ok(driver_.call<FunctionId::cuStreamSynchronize>(lane.stream), "cuStreamSynchronize")) {
    return false;
  }
  for (const unsigned word : words) {
    if (word == static_cast<unsigned>(lane.batches)) continue;
    return fail(fmt::format("{} batches were run, {} were counted", lane.batches, word));
  }
  return true;
}

void Job::work() {
  if (!ok(driver_.call<FunctionId::cuCtxSetCurrent>(context_), "cuCtxSetCurrent")) return;
  std::vector<Lane> lanes(static_cast<std::size_t>(std::max(options_.streams, 1)));
  for (Lane& lane : lanes) {
    if (!open_lane(lane)) return;
  }
  const std::int64_t end = now_ns() + options_.length.count();
  const bool worked =
      options_.pattern == Pattern::Bursty ? in_bursts(lanes, end) : keep_full(lanes, end);
  if (!worked || !wait_for_all(lanes) || !options_.check) return;
  for (Lane& lane : lanes) {
    if (!check_ledger(lane)) return;
  }
}

bool Job::verify(std::uint64_t& checksum) {
  checksum = 0xcbf29ce484222325;
  std::vector<unsigned> words;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    words.assign(piece.bytes / sizeof(unsigned), 0);
    if (!ok(driver_.call<FunctionId::cuMemcpyDtoH_v2>(
                static_cast<void*>(words.data()), piece.address, words.size() * sizeof(unsigned)),
            "cuMemcpyDtoH")) {
      return false;
    }
    const std::size_t changing = piece.changing / sizeof(unsigned);
    for (std::size_t at = 0; at < words.size(); ++at) {
      const unsigned expected = pattern_of(i) + (at < changing ? piece.passes : 0);
      if (words[at] != expected) return fail(fmt::format("memory piece {} has changed", i));
      checksum = (checksum ^ words[at]) * 0x100000001b3;
    }
  }
  return true;
}

}  // namespace nvshare::programs
