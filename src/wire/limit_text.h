#pragma once

#include <stddef.h>
#include <stdint.h>

namespace nvshare::wire {

// Whether a size is a number below 1 MiB without a unit, such as "500". Every memory limit that
// people write is tested with this, because 500 bytes are never meant. 0 is no such size: it is no
// limit.
constexpr bool lacks_unit(const char* text, size_t length) {
  constexpr uint64_t kFewBytes = 1 << 20;
  uint64_t bytes = 0;
  bool whole = true;
  bool some = false;
  for (size_t i = 0; i < length; ++i) {
    const char c = text[i];
    if (c == '.') whole = false;
    if ((c < '0' || c > '9') && c != '.') return false;
    if (c >= '1' && c <= '9') some = true;
    if (whole) bytes = bytes * 10 + static_cast<uint64_t>(c - '0');
    if (bytes >= kFewBytes) return false;
  }
  return some;
}

// The value of NVSHARE_GPU_MEMORY_LIMIT in bytes: "4Gi", "1.5Gi", "512Mi", "64Ki", "4G", "300M",
// "8K", a number from 1 MiB on, or "25%" of the device's memory (up to 100%); 0 (no limit of its
// own) for null and for anything else.
uint64_t parse_limit(const char* text, uint64_t device_memory);

// Whether the value is a limit, or says that there is none: null, empty or "0".
bool understands_limit(const char* text);

}  // namespace nvshare::wire
