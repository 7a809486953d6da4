#pragma once

#include <string>

#include "wire/messages.h"

namespace nvshare::cli {

// One line, without its end, for the person whose program was refused GPU memory: why, and what to
// do about it.
std::string shortage_text(const std::string& tenant, const wire::Shortage& shortage);

}  // namespace nvshare::cli
