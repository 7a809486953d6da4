#include "cli/run/descriptors.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace nvshare::cli {
namespace {

bool close_range(unsigned first, unsigned last) {
  return ::syscall(SYS_close_range, first, last, 0) == 0;
}

// The descriptors of this process above standard error.
std::vector<int> open_descriptors() {
  std::vector<int> all;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return all;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (fd > STDERR_FILENO && fd != ::dirfd(folder)) all.push_back(fd);
  }
  ::closedir(folder);
  return all;
}

}  // namespace

void close_all_but(std::initializer_list<int> kept) {
  std::vector<int> sorted(kept);
  std::ranges::sort(sorted);
  unsigned from = STDERR_FILENO + 1;
  bool closed = true;
  for (const int fd : sorted) {
    if (fd <= STDERR_FILENO) continue;
    const auto at = static_cast<unsigned>(fd);
    if (from < at) closed = close_range(from, at - 1) && closed;
    from = at + 1;
  }
  if (close_range(from, ~0U) && closed) return;
  // Linux before 5.9 has no close_range.
  for (const int fd : open_descriptors()) {
    if (!std::ranges::binary_search(sorted, fd)) ::close(fd);
  }
}

}  // namespace nvshare::cli
