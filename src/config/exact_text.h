#pragma once

#include <string>
#include <string_view>

#include "base/units.h"

namespace nvshare::config {

// In the largest unit that leaves a whole number: what parse_bytes and parse_duration take, and
// nothing is lost on the way. base's to_text is for people instead.
std::string exact_text(Bytes value);
std::string exact_text(Duration value);

// A text between quotes, as a TOML file has it.
std::string toml_text(std::string_view text);

}  // namespace nvshare::config
