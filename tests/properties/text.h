#pragma once

#include <string>

#include "core/decision.h"
#include "core/event.h"
#include "core/snapshot.h"

namespace nvshare::properties {

// One line each, with every number in it: two are equal exactly when what they tell is equal.
std::string to_line(const core::Event& event);
std::string to_line(const core::Decision& decision);
std::string to_lines(const core::Snapshot& snapshot);

}  // namespace nvshare::properties
