// Any bytes are a state or an error, and a state that is read is written and read again unchanged.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "daemon/state.h"

namespace {

void try_to_read(std::string_view text) {
  using namespace nvshare::daemon;
  const auto read = parse_state(text);
  if (!read) return;
  for (const KeptRun& run : read->runs) {
    if (run.pid < 1 || run.limits.core_percent < 1 || run.limits.core_percent > 100) std::abort();
  }
  State whole = *read;
  whole.left_out = 0;  // what made no sense is not written
  const auto again = parse_state(to_text(whole));
  if (!again || !(*again == whole)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_to_read(text);
  // With the right first line, which no fuzzer finds.
  try_to_read(nvshare::daemon::sealed(text));
  return 0;
}
