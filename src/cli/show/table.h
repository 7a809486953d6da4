#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace nvshare::cli {

// Text in columns: a head, rows, and what a cell is to look like on a terminal.
struct Cell {
  Cell(std::string given) : text(std::move(given)) {}
  Cell(const char* given) : text(given) {}
  Cell(std::string given, std::string_view how) : text(std::move(given)), look(how) {}
  std::string text;
  std::string_view look = "";  // an escape sequence; only used in colour
};

inline constexpr std::string_view kBold = "\033[1m";
inline constexpr std::string_view kGreen = "\033[32m";
inline constexpr std::string_view kYellow = "\033[33m";
inline constexpr std::string_view kRed = "\033[31m";
inline constexpr std::string_view kPlain = "\033[0m";

struct Column {
  std::string_view head;
  bool right = false;  // numbers
};

// Ends with a newline; two spaces between columns, none at the ends of lines.
std::string table_text(const std::vector<Column>& columns,
                       const std::vector<std::vector<Cell>>& rows, bool colour);

// Text that somebody else chose: at most `most` letters, and nothing that a terminal would act on.
std::string short_text(std::string_view text, std::size_t most);

// "12s", "3min", "1h02min", "2d03h".
std::string long_time(Duration time);

}  // namespace nvshare::cli
