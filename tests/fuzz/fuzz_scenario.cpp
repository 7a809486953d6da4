// Any text is a scenario or a list of what is wrong with it, and a scenario that is called good is.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/arbiter/arbiter.h"
#include "core/config.h"
#include "sim/scenario_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = nvshare::sim::parse_scenario(text, "fuzz.toml");
  if (!parsed.errors.empty()) return 0;
  if (parsed.scenario.clients.empty() || parsed.scenario.gpus.empty()) std::abort();
  if (!nvshare::core::problems(parsed.scenario.config).empty()) std::abort();
  if (!nvshare::core::problems(parsed.scenario.arbiter).empty()) std::abort();
  const nvshare::core::Arbiter arbiter(parsed.scenario.arbiter);
  for (const auto& client : parsed.scenario.clients) {
    if (client.lease && !arbiter.find_class(client.lease->asks.task_class)) std::abort();
    if (client.name.empty() || client.processes < 1) std::abort();
    if (client.limits.core_percent < 1 || client.limits.core_percent > 100) std::abort();
    for (std::size_t i = 1; i < client.memory.size(); ++i) {
      if (client.memory[i].at <= client.memory[i - 1].at) std::abort();
    }
  }
  return 0;
}
