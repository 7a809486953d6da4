#include "daemon/serve/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/event.h"

namespace nvshare::daemon {

std::optional<std::string> text_in(const Request& request, const char* key) {
  const auto at = request.find(key);
  if (at == request.end() || !at->is_string()) return std::nullopt;
  return at->get<std::string>();
}

Result<std::optional<std::int64_t>> number_in(const Request& request, const char* key,
                                              std::int64_t low, std::int64_t high) {
  const auto at = request.find(key);
  if (at == request.end()) return std::optional<std::int64_t>{};
  const auto wrong = [&] {
    return Error{
        fmt::format("{}: {} is not a whole number from {} to {}", key, at->dump(), low, high)};
  };
  if (!at->is_number_integer()) return wrong();
  if (at->is_number_unsigned() &&
      at->get<std::uint64_t>() > static_cast<std::uint64_t>(std::max<std::int64_t>(high, 0))) {
    return wrong();
  }
  const auto value = at->get<std::int64_t>();
  if (value < low || value > high) return wrong();
  return std::optional(value);
}

Result<bool> flag_in(const Request& request, const char* key) {
  const auto at = request.find(key);
  if (at == request.end()) return false;
  if (!at->is_boolean()) return Error{fmt::format("\"{}\" is to be true or false", key)};
  return at->get<bool>();
}

Result<Declaration> limits_in(const Request& request) {
  Declaration limits;
  const auto cores = number_in(request, "cores", 1, 100);
  if (!cores) return cores.error();
  if (*cores) limits.cores = static_cast<int>(**cores);
  const auto priority =
      number_in(request, "priority", core::kLowestPriority, core::kHighestPriority);
  if (!priority) return priority.error();
  if (*priority) limits.priority = static_cast<int>(**priority);
  if (const auto at = request.find("memory"); at != request.end() && at->is_null()) {
    limits.memory = Bytes{0};
    return limits;
  }
  const auto memory = number_in(request, "memory", 1, core::kMostMemory.count);
  if (!memory) return memory.error();
  if (*memory) limits.memory = Bytes{**memory};
  return limits;
}

}  // namespace nvshare::daemon
