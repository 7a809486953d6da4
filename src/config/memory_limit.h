#pragma once

#include <string_view>

#include "base/units.h"

namespace nvshare::config {

// A limit on GPU memory as people write it: "4Gi", "512Mi"; 0 is none. An error for more than any
// GPU has, and for so few bytes without a unit that one is missing most likely.
Result<Bytes> parse_memory_limit(std::string_view text);

}  // namespace nvshare::config
