#include "base/uuid.h"

#include <fmt/format.h>

namespace nvshare {

std::string to_text(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

std::optional<Uuid> parse_uuid(std::string_view text) {
  if (text.rfind("GPU-", 0) != 0) return std::nullopt;
  Uuid uuid{};
  std::size_t digits = 0;
  for (const char c : text.substr(4)) {
    if (c == '-') continue;
    const int value = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (value < 0 || digits == 2 * uuid.size()) return std::nullopt;
    uuid[digits / 2] = static_cast<std::uint8_t>(uuid[digits / 2] << 4 | value);
    ++digits;
  }
  return digits == 2 * uuid.size() ? std::optional(uuid) : std::nullopt;
}

}  // namespace nvshare
