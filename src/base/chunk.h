#pragma once

#include <stdint.h>

namespace nvshare {

// Memory moves in whole chunks of up to this many bytes. The library cuts its memory so, and the
// scheduler reckons with it: both include this header, because orders smaller than a chunk would
// otherwise move nothing. 256 MiB copy at full speed and map in little time; a small card has
// smaller chunks, so that some of them are free to pass each other. Nothing of the C++ library is
// needed here.
constexpr uint64_t largest_chunk(uint64_t gpu_bytes) {
  constexpr uint64_t kPage = uint64_t{2} << 20;
  constexpr uint64_t kMost = uint64_t{256} << 20;
  const uint64_t part = gpu_bytes / 16 / kPage * kPage;
  return part < kPage ? kPage : part < kMost ? part : kMost;
}

}  // namespace nvshare
