#include "cli/run/shortage_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "config/exact_text.h"
#include "core/config.h"

namespace nvshare::cli {
namespace {

Bytes to_bytes(std::uint64_t count) {
  const auto most = static_cast<std::uint64_t>(core::kMostMemory.count);
  return Bytes{static_cast<std::int64_t>(std::min(count, most))};
}

// A limit that a person would type, and leaves a little more.
Bytes rounded_up(Bytes bytes) {
  const std::int64_t step = (bytes > gib(1) ? gib(1) : mib(128)).count;
  return Bytes{(bytes.count + step - 1) / step * step};
}

// Behind "over its limit": the limit to set, if any can be so high as to help.
std::string advice(const std::string& tenant, Bytes needed, Bytes gpu) {
  const Bytes most = gpu.count == 0 ? core::kMostMemory : gpu;
  if (needed > most) {
    return gpu.count == 0 ? fmt::format(", and no limit is above {}", to_text(most))
                          : fmt::format(", and the GPU has {}", to_text(most));
  }
  return fmt::format(". Raise it: nvshare limit {} --mem {}, or start it with that --mem", tenant,
                     config::exact_text(std::min(rounded_up(needed), most)));
}

}  // namespace

std::string shortage_text(const std::string& tenant, const wire::Shortage& shortage) {
  const Bytes asked = to_bytes(shortage.asked);
  const Bytes used = to_bytes(shortage.used);
  const Bytes limit = to_bytes(shortage.limit);
  const std::string what = fmt::format("{} asked for {} more GPU memory", tenant, to_text(asked));
  if (limit.count == 0 || used + asked <= limit) {
    const std::string reason(shortage.reason,
                             wire::text_length(shortage.reason, sizeof shortage.reason));
    return fmt::format("{} and was refused: {}. See who has how much: nvshare status", what,
                       reason);
  }
  // How much it is over is said, too: the others are rounded, and may look as if they fitted.
  return fmt::format("{}: with the {} it has that is {} over its limit of {}{}", what,
                     to_text(used), to_text(used + asked - limit), to_text(limit),
                     advice(tenant, used + asked, to_bytes(shortage.gpu)));
}

}  // namespace nvshare::cli
