#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nvshare::cli {

struct TerminalSize {
  std::size_t rows = 0;  // 0: not known
  std::size_t columns = 0;
};

// What shows `text`, whole lines, on a terminal in the place of what it showed before: drawn over,
// so that nothing flickers, and cut to the terminal's size, so that nothing scrolls. Says how many
// lines were cut.
std::string terminal_frame(std::string_view text, TerminalSize size);

}  // namespace nvshare::cli
