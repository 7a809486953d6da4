#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "programs/driver.h"
#include "programs/job_options.h"

namespace nvshare::programs {

// What all threads of a gpu-job share: the device, the kernels, how far they are and what failed.
class Job {
 public:
  explicit Job(JobOptions options) : options_(std::move(options)) {}

  // Opens the driver and the device, loads the kernels, takes and fills the memory. False when
  // something failed: error() says what.
  bool begin();
  // One thread's work, from the first launch until its time is up or everybody is told to stop.
  void work();
  // Whether the memory is still as it was filled, and its checksum. False when not, or when the
  // driver refused: error() says which.
  bool verify(std::uint64_t& checksum);

  const JobOptions& options() const { return options_; }
  std::int64_t done() const { return done_.load(std::memory_order_relaxed); }
  Duration operation() const { return operation_; }  // how long one takes on the GPU
  void stop() { stop_.store(true, std::memory_order_relaxed); }
  std::string error() const {
    const std::lock_guard hold(error_lock_);
    return error_;
  }

 private:
  // A stream, with what it takes to know how far its work is.
  struct Lane {
    CUstream stream{};
    CUevent marks[2]{};
    std::int64_t marked[2]{};  // operations before the mark that are not counted as done yet
    int next = 0;
    CUdeviceptr ledger = 0;  // --check: every batch adds one to each of its words
    std::int64_t batches = 0;
    CUdeviceptr buffer = 0;  // what copies and memsets use
    void* host = nullptr;
    CUgraphExec graph{};
  };

  bool ok(CUresult result, const char* what);
  bool fail(const std::string& what);
  bool take_memory();
  bool expand(CUdeviceptr address, std::size_t bytes);
  bool open_lane(Lane& lane);
  bool make_graph(Lane& lane);
  bool measure_operation();
  bool launch(CUfunction function, unsigned grid, unsigned block, CUstream stream, void** params);
  bool one_operation(Lane& lane, CUstream stream);
  bool add_to_ledger(Lane& lane, CUstream stream);
  bool add(CUdeviceptr address, std::uint64_t words, unsigned grid, CUstream stream);
  bool change_next_piece(CUstream stream);
  bool read_next_piece(CUstream stream);
  bool take_workspace(Lane& lane, CUdeviceptr& address);
  bool submit(Lane& lane, std::int64_t count);
  bool settle(Lane& lane, int mark);
  bool check_ledger(Lane& lane);
  bool keep_full(std::vector<Lane>& lanes, std::int64_t end);
  bool in_bursts(std::vector<Lane>& lanes, std::int64_t end);
  bool wait_for_all(std::vector<Lane>& lanes);
  std::int64_t batch_size(std::int64_t submitted) const;
  bool more(std::int64_t submitted, std::int64_t end) const;

  JobOptions options_;
  Driver driver_;
  CUcontext context_{};
  CUfunction noop_{};
  CUfunction spin_{};
  CUfunction fill_{};
  CUfunction add_{};
  CUfunction read_{};
  unsigned blocks_ = 1;  // that fill the device
  Duration operation_{};
  // Memory, how much of it is changed (from its beginning: train, infer), and how often it was.
  struct Piece {
    CUdeviceptr address;
    std::size_t bytes;
    std::size_t changing;
    unsigned passes;
  };
  std::vector<Piece> pieces_;
  CUdeviceptr sink_ = 0;  // what read_ needs
  std::size_t next_piece_ = 0;

  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> stop_{false};
  mutable std::mutex error_lock_;
  std::string error_;
};

// Monotonic time in nanoseconds.
std::int64_t now_ns();

}  // namespace nvshare::programs
