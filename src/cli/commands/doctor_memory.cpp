#include <fmt/format.h>

#include <algorithm>

#include "cli/commands/doctor.h"
#include "cli/show/render.h"
#include "wire/limit_text.h"

namespace nvshare::cli {
namespace {

// Below this part of a GPU's memory, two programs of three quarters of it do not fit together.
constexpr int kLeastPercent = 50;

std::string_view advice(const ArenaInfo& arena) {
  if (arena.limited_by == "arena_limit") {
    return "raise arena_limit in the scheduler's settings, and start it again";
  }
  if (arena.limited_by == "cgroup") {
    return "raise the memory limit of the scheduler's cgroup (systemd: MemoryMax)";
  }
  return "free host memory, or add some";
}

}  // namespace

Finding host_memory_finding(const Status& status) {
  const ArenaInfo& arena = status.scheduler.arena;
  std::string what =
      fmt::format("{} of host memory can be spared for swapping", to_text(arena.limit));
  if (!arena.limited_by.empty()) what += fmt::format(", limited by {}", limiter(arena));
  const auto smaller = [](const GpuInfo& a, const GpuInfo& b) { return a.memory < b.memory; };
  const auto largest = std::max_element(status.gpus.begin(), status.gpus.end(), smaller);
  if (largest == status.gpus.end() ||
      arena.limit.count >= largest->memory.count / 100 * kLeastPercent) {
    return {Level::Good, std::move(what), ""};
  }
  return {Level::Warning,
          fmt::format("{}: little beside the {} of GPU {}, and programs that do not fit both are "
                      "refused memory",
                      what, to_text(largest->memory), largest->index),
          std::string(advice(arena))};
}

std::optional<Finding> own_limit_finding(const char* value) {
  if (value == nullptr || *value == 0) return std::nullopt;
  const std::string what = fmt::format("NVSHARE_GPU_MEMORY_LIMIT is '{}'", value);
  if (!wire::understands_limit(value)) {
    return Finding{Level::Problem, what + ", which is not understood: programs get no GPU memory",
                   "write 4Gi, 512Mi, 2G or 25%, or unset it"};
  }
  if (std::string_view(value) == "0") {
    return Finding{Level::Good,
                   what + ": programs that are started here have no limit of their own", ""};
  }
  // Of a device without memory, percent are nothing.
  const auto bytes = static_cast<std::int64_t>(wire::parse_limit(value, 0));
  const std::string most = bytes > 0 ? fmt::format("{} of GPU memory", to_text(Bytes{bytes}))
                                     : fmt::format("{} of a GPU's memory", value);
  return Finding{
      Level::Good,
      fmt::format("{}: programs that are started here may have at most {} each", what, most), ""};
}

}  // namespace nvshare::cli
