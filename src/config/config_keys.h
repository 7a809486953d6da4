#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "config/reader.h"
#include "core/config.h"

namespace nvshare::config {

// One field of the core's configuration: the name it has in files, where it is kept, and what it
// does in a line. The only list of them: scenario files, the daemon's file, its environment and
// what it prints are all made from it.
struct ConfigKey {
  using Member = std::variant<Duration core::Config::*, Bytes core::Config::*, int core::Config::*,
                              bool core::Config::*, core::ComputePolicy core::Config::*,
                              core::ShareMode core::Config::*, core::QuantumMode core::Config::*>;

  std::string_view name;
  Member member;
  std::string_view help;
};

std::span<const ConfigKey> config_keys();
const ConfigKey* find_config_key(std::string_view name);

// What the key may be, in words: "auto, turns, concurrent", "10.0ms to 3600.00s".
std::string range_of(const ConfigKey& key);

// Reads every key that the table has into `config`, and reports values that are out of range.
void read_config(TableReader& table, core::Config& config);

// Sets one field from text, as in an environment variable. The range is checked by
// core::problems() once all are set.
Result<void> set_from_text(core::Config& config, const ConfigKey& key, std::string_view text);
// The field as text that set_from_text takes and that loses nothing.
std::string text_of(const core::Config& config, const ConfigKey& key);

}  // namespace nvshare::config
