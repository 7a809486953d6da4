#include "config/memory_limit.h"

#include <fmt/format.h>

#include "core/config.h"
#include "wire/limit_text.h"

namespace nvshare::config {

Result<Bytes> parse_memory_limit(std::string_view text) {
  const auto bytes = parse_bytes(text);
  if (!bytes) return bytes.error();
  if (wire::lacks_unit(text.data(), text.size())) {
    return Error{fmt::format(
        "'{0}' is a number of bytes: write {0}Mi or {0}Gi, or {0}B if bytes are meant", text)};
  }
  if (*bytes > core::kMostMemory) {
    return Error{fmt::format("'{}' is more than any GPU has ({} at most)", text,
                             to_text(core::kMostMemory))};
  }
  return bytes;
}

}  // namespace nvshare::config
