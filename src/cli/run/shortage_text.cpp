#include "cli/run/shortage_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

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

std::string text_in(const char* field, std::size_t size) {
  return {field, wire::text_length(field, size)};
}

// The limit that is exceeded, and how much of it is used.
struct Exceeded {
  std::string level;  // empty: the limit is the tenant's own
  Bytes used;
  Bytes limit;
};

std::optional<Exceeded> exceeded(const wire::Shortage& shortage) {
  const Bytes asked = to_bytes(shortage.asked);
  const Exceeded own{"", to_bytes(shortage.used), to_bytes(shortage.limit)};
  const Exceeded above{text_in(shortage.level, sizeof shortage.level),
                       to_bytes(shortage.level_used), to_bytes(shortage.level_limit)};
  const Exceeded& it = above.limit.count > 0 && !above.level.empty() ? above : own;
  if (it.limit.count == 0 || it.used + asked <= it.limit) return std::nullopt;
  return it;
}

// Behind the limit: the limit to set, if any can be so high as to help. The GPU bounds one tenant
// only: the tenants of a level take turns, and may have more than the GPU together.
std::string advice(const std::string& tenant, const wire::Shortage& shortage, const Exceeded& it) {
  const Bytes gpu = to_bytes(shortage.gpu);
  const Bytes asked = to_bytes(shortage.asked);
  if (gpu.count > 0 && to_bytes(shortage.used) + asked > gpu) {
    return fmt::format(", and the GPU has {}", to_text(gpu));
  }
  const bool own = it.level.empty();
  const Bytes most = own && gpu.count > 0 ? gpu : core::kMostMemory;
  const Bytes needed = it.used + asked;
  if (needed > most) return fmt::format(", and no limit is above {}", to_text(most));
  return fmt::format(". Raise it: nvshare limit {} --mem {}{}", own ? tenant : it.level,
                     config::exact_text(std::min(rounded_up(needed), most)),
                     own ? ", or start it with that --mem" : "");
}

}  // namespace

std::string shortage_text(const std::string& tenant, const wire::Shortage& shortage) {
  const Bytes asked = to_bytes(shortage.asked);
  const std::string what = fmt::format("{} asked for {} more GPU memory", tenant, to_text(asked));
  const auto it = exceeded(shortage);
  if (!it) {
    return fmt::format("{} and was refused: {}. See who has how much: nvshare status", what,
                       text_in(shortage.reason, sizeof shortage.reason));
  }
  // How much it is over is said, too: the others are rounded, and may look as if they fitted.
  const bool own = it->level.empty();
  return fmt::format(
      "{}: with the {} {} has that is {} over {} limit of {}{}", what, to_text(it->used),
      own ? "it" : "that " + it->level, to_text(it->used + asked - it->limit), own ? "its" : "the",
      own ? to_text(it->limit) : fmt::format("{}, which is {}", it->level, to_text(it->limit)),
      advice(tenant, shortage, *it));
}

}  // namespace nvshare::cli
