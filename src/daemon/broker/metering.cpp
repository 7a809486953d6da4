#include "daemon/broker/metering.h"

#include <algorithm>

namespace nvshare::daemon {

std::vector<Duration> share_out(std::span<const Duration> measured, Duration wall) {
  __extension__ typedef __int128 Wide;
  Wide sum = 0;
  std::vector<Duration> billed;
  for (const Duration one : measured) {
    billed.push_back(std::max(one, Duration::zero()));
    sum += billed.back().count();
  }
  const Wide room = std::max(wall, Duration::zero()).count();
  if (sum <= room) return billed;
  for (Duration& one : billed) {
    one = Duration{static_cast<Duration::rep>(one.count() * room / sum)};
  }
  return billed;
}

Duration believable(std::uint64_t said, Duration before, Duration since_grant) {
  const Duration most = std::max(before, since_grant);
  if (said >= static_cast<std::uint64_t>(most.count())) return most;
  return std::max(before, Duration{static_cast<Duration::rep>(said)});
}

}  // namespace nvshare::daemon
