#pragma once

#include <stdint.h>

namespace nvshare::interposer::memory {

// The value of NVSHARE_GPU_MEMORY_LIMIT in bytes: "4Gi", "1.5Gi", "512Mi", "64Ki", "4G", "300M",
// "8K", a number, or "25%" of the device's memory (up to 100%); 0 (no limit of its own) for null
// and for anything else.
uint64_t parse_limit(const char* text, uint64_t device_memory);

}  // namespace nvshare::interposer::memory
