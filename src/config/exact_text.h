#pragma once

#include <string>

#include "base/units.h"

namespace nvshare::config {

// In the largest unit that leaves a whole number: what parse_bytes and parse_duration take, and
// nothing is lost on the way. base's to_text is for people instead.
std::string exact_text(Bytes value);
std::string exact_text(Duration value);

}  // namespace nvshare::config
