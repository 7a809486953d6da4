#pragma once

#include <initializer_list>

namespace nvshare::cli {

// Closes every descriptor above standard error but these. A negative number is no descriptor.
void close_all_but(std::initializer_list<int> kept);

}  // namespace nvshare::cli
