#include "sim/scenario_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "core/residency.h"

namespace nvshare::sim {
namespace {

using config::TableReader;

constexpr std::int64_t kMostCounted = 1'000'000;  // more could not be played

// How many processes are on a GPU, over time.
class Attendance {
 public:
  void add(Duration from, Duration to, std::int64_t processes) {
    changes_[from] += processes;
    changes_[to] -= processes;
  }

  void count() {
    std::int64_t there = 0;
    for (auto& [at, change] : changes_) {
      there += change;
      change = there;
      most_ = std::max(most_, there);
    }
  }

  // After count(): at most, in all and from one time to another.
  std::int64_t most() const { return most_; }
  std::int64_t most(Duration from, Duration to) const {
    auto at = changes_.upper_bound(from);
    std::int64_t most = at == changes_.begin() ? 0 : std::prev(at)->second;
    for (; at != changes_.end() && at->first < to; ++at) most = std::max(most, at->second);
    return most;
  }

 private:
  std::map<Duration, std::int64_t> changes_;  // after count(): how many there are from then on
  std::int64_t most_ = 0;
};

// Only the settings that matter here, so that a slip in another does not hide what is too large.
core::Config relevant(const core::Config& given) {
  core::Config config;
  config.reserve_percent = given.reserve_percent;
  config.reserve_base = given.reserve_base;
  config.reserve_per_process = given.reserve_per_process;
  config.end_overdue = given.end_overdue;
  config.drop_timeout = given.drop_timeout;
  return core::problems(config).empty() ? config : core::Config{};
}

class MemoryCheck {
 public:
  explicit MemoryCheck(const Scenario& scenario);

  // What is wrong with the step, if anything.
  std::optional<std::string> problem(const ClientSpec& client, std::size_t step) const;

 private:
  struct Gpu {
    std::size_t id = 0;
    Bytes memory;
    Attendance attendance;
  };
  // What a client can have on a GPU.
  struct Room {
    const Gpu* gpu = nullptr;
    std::int64_t processes = 1;
    Bytes bytes;
  };

  // Which GPU it is on, where the file alone decides that.
  const Gpu* gpu_of(const ClientSpec& client) const {
    if (client.gpu) return &gpus_[static_cast<std::size_t>(*client.gpu)];
    return gpus_.size() == 1 ? &gpus_.front() : nullptr;
  }
  Duration surely_there_until(const ClientSpec& client) const;
  std::optional<std::string> over_limit(const ClientSpec& client, std::size_t step) const;
  Bytes usable(const Gpu& gpu, std::int64_t processes) const;
  Room room_on(const Gpu& gpu, const ClientSpec& client, std::size_t step) const;
  std::string to_text(const Room& room) const;

  core::Config config_;
  std::vector<Gpu> gpus_;
  Bytes fits_always_ = Bytes{std::numeric_limits<std::int64_t>::max()};  // on every GPU
};

MemoryCheck::MemoryCheck(const Scenario& scenario) : config_(relevant(scenario.config)) {
  for (const GpuSpec& spec : scenario.gpus) {
    for (int i = 0; i < spec.count; ++i) gpus_.push_back({gpus_.size(), spec.memory, {}});
  }
  for (const ClientSpec& client : scenario.clients) {
    if (const Gpu* gpu = gpu_of(client)) {
      gpus_[gpu->id].attendance.add(client.arrives, surely_there_until(client), client.processes);
    }
  }
  for (Gpu& gpu : gpus_) {
    gpu.attendance.count();
    fits_always_ = std::min(fits_always_, usable(gpu, gpu.attendance.most() + 1));
  }
}

// A process may be gone before it leaves: when its work is done, or because it was ended.
Duration MemoryCheck::surely_there_until(const ClientSpec& client) const {
  Duration until = client.leaves.value_or(Duration::max());
  if (client.work.total) until = std::min(until, client.arrives + *client.work.total);
  if (config_.end_overdue) until = std::min(until, client.arrives + config_.drop_timeout);
  return std::max(until, client.arrives + Duration{1});
}

std::optional<std::string> MemoryCheck::over_limit(const ClientSpec& client,
                                                   std::size_t step) const {
  const MemoryStep& now = client.memory[step];
  const Bytes before = step == 0 ? Bytes{} : client.memory[step - 1].allocated;
  if (now.allocated <= before) return std::nullopt;  // a limit forbids to take more, not to keep
  std::optional<Bytes> limit = client.limits.memory;
  for (const LimitStep& change : client.changes) {
    if (change.at <= client.arrives + now.at) limit = change.limits.memory;
  }
  const bool all_there = client.arrives + now.at < surely_there_until(client);
  const int processes = all_there ? client.processes : 1;
  if (!limit || now.allocated.count <= limit->count / processes) return std::nullopt;
  const std::string size = nvshare::to_text(now.allocated);
  return fmt::format("{} is more than its memory_limit of {}",
                     processes == 1 ? size : fmt::format("{} processes of {}", processes, size),
                     nvshare::to_text(*limit));
}

// By the core's own rule. Who comes when nothing is left need not be counted.
Bytes MemoryCheck::usable(const Gpu& gpu, std::int64_t processes) const {
  const std::int64_t each = std::max<std::int64_t>(1, config_.reserve_per_process.count);
  core::HostPool host;
  core::Residency residency(config_, gpu.memory, host);
  for (auto left = std::min({processes, gpu.memory.count / each + 1, kMostCounted}); left > 0;
       --left) {
    residency.join();
  }
  return residency.safe_limit();
}

// While it has what it takes in this step, with everybody else who is on the GPU then.
MemoryCheck::Room MemoryCheck::room_on(const Gpu& gpu, const ClientSpec& client,
                                       std::size_t step) const {
  const int itself = gpu_of(client) == nullptr ? 1 : 0;  // not counted on any GPU yet
  const Duration from = client.arrives + client.memory[step].at;
  Duration to = surely_there_until(client);
  if (step + 1 < client.memory.size()) {
    to = std::min(to, client.arrives + client.memory[step + 1].at);
  }
  const auto processes = std::max<std::int64_t>(1, gpu.attendance.most(from, to) + itself);
  return {&gpu, processes, usable(gpu, processes)};
}

std::string MemoryCheck::to_text(const Room& room) const {
  const bool crowded = room.bytes < usable(*room.gpu, 1);
  return fmt::format("{}, of which {} can be used{}", nvshare::to_text(room.gpu->memory),
                     nvshare::to_text(room.bytes),
                     crowded ? fmt::format(" while {} processes are there", room.processes) : "");
}

std::optional<std::string> MemoryCheck::problem(const ClientSpec& client, std::size_t step) const {
  if (auto over = over_limit(client, step)) return over;
  const Bytes wanted = client.memory[step].allocated;
  if (wanted <= fits_always_) return std::nullopt;
  const std::string size = nvshare::to_text(wanted);
  if (const Gpu* gpu = gpu_of(client)) {
    const Room room = room_on(*gpu, client, step);
    if (wanted <= room.bytes) return std::nullopt;
    return fmt::format("{} does not fit on GPU {}: it has {}", size, gpu->id, to_text(room));
  }
  // The core places by load and does not know yet how large the client will be.
  std::optional<Room> least;
  std::optional<Room> most;
  for (const Gpu& gpu : gpus_) {
    const Room room = room_on(gpu, client, step);
    if (!least || room.bytes < least->bytes) least = room;
    if (!most || room.bytes > most->bytes) most = room;
  }
  if (wanted <= least->bytes) return std::nullopt;
  if (wanted > most->bytes) {
    return fmt::format("{} fits on no GPU: the largest has {}", size, to_text(*most));
  }
  return fmt::format(
      "{} does not fit on every GPU, and it may be placed on any: name a gpu (GPU {} has {})", size,
      least->gpu->id, to_text(*least));
}

}  // namespace

void check_memory(const Scenario& scenario, std::vector<TableReader>& tables) {
  const MemoryCheck check(scenario);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    TableReader& table = tables[i];
    const ClientSpec& client = scenario.clients[i];
    if (table.has("gpu") && !client.gpu) continue;  // nobody knows which it would be
    for (std::size_t step = 0; step < client.memory.size(); ++step) {
      const auto problem = check.problem(client, step);
      if (!problem) continue;
      const bool listed = table.find("memory")->kind == config::Kind::Array;
      auto steps = listed ? table.tables("memory") : std::vector<TableReader>{};
      if (steps.size() == client.memory.size()) {
        steps[step].problem("allocated", *problem);
      } else {
        table.problem("memory", *problem);
      }
      break;
    }
  }
}

}  // namespace nvshare::sim
