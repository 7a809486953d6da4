#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nvshare {

using Uuid = std::array<std::uint8_t, 16>;

// "GPU-01234567-...", as NVML and the driver write a GPU's; nothing when the text is no such thing.
std::string to_text(const Uuid& uuid);
std::optional<Uuid> parse_uuid(std::string_view text);

}  // namespace nvshare
