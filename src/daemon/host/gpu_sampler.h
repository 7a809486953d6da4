#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "base/uuid.h"

namespace nvshare::daemon {

struct GpuProcess {
  int pid = 0;
  Bytes memory{};
};

// What NVML says of one GPU at one moment.
struct GpuSample {
  Time at{};                       // when NVML was asked
  std::optional<int> utilisation;  // percent
  std::optional<Bytes> used;
  std::vector<GpuProcess> processes;
  // Percent of the last second in which a process kept the GPU busy, by process; empty where the
  // driver does not tell.
  std::map<int, int> busy;
  bool mps = false;  // processes share it through MPS
};

struct FoundGpu {
  Uuid uuid{};
  std::string name;
  Bytes total{};
  Bytes used{};
};

// Asks about each GPU from time to time, in a thread of the GPU's own: a call of NVML can take many
// milliseconds, and one that hangs must not stop the other GPUs' samples.
class GpuSampler {
 public:
  // One reading of GPU number `gpu`; may block.
  using Ask = std::function<GpuSample(std::size_t gpu)>;

  static Result<std::unique_ptr<GpuSampler>> start(std::size_t gpus, Ask ask, Duration period);
  // Leaves a thread behind that does not come back from NVML in time.
  ~GpuSampler();

  void set_period(Duration period);
  // Becomes readable when there is a new sample.
  int ready() const;
  // The newest of each GPU since the last call.
  struct Taken {
    std::size_t gpu = 0;
    GpuSample sample;
  };
  std::vector<Taken> take();

  static constexpr Duration kLeaveBehindAfter = 1s;

 private:
  struct Shared;
  explicit GpuSampler(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  static void sample_for_ever(const std::shared_ptr<Shared>& shared, std::size_t gpu);

  std::shared_ptr<Shared> shared_;
};

// The machine's GPUs through NVML.
class NvmlGpus {
 public:
  // Opens the library and looks for GPUs; an error when there are none.
  static Result<std::shared_ptr<NvmlGpus>> open(const std::string& library);
  virtual ~NvmlGpus() = default;
  virtual const std::vector<FoundGpu>& found() const = 0;
  virtual GpuSample sample(std::size_t gpu) const = 0;
};

}  // namespace nvshare::daemon
