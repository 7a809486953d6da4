#include "cli/show/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::cli {
namespace {

constexpr std::size_t kGap = 2;

void put(std::string& line, const Cell& cell, std::size_t width, bool right, bool colour) {
  const std::size_t padding = width - std::min(width, cell.text.size());
  if (right) line.append(padding, ' ');
  const bool coloured = colour && !cell.look.empty();
  if (coloured) line += cell.look;
  line += cell.text;
  if (coloured) line += kPlain;
  if (!right) line.append(padding, ' ');
}

}  // namespace

std::string table_text(const std::vector<Column>& columns,
                       const std::vector<std::vector<Cell>>& rows, bool colour) {
  std::vector<std::vector<Cell>> lines(1);
  for (const Column& column : columns) lines[0].emplace_back(std::string(column.head), kBold);
  lines.insert(lines.end(), rows.begin(), rows.end());
  std::vector<std::size_t> widths(columns.size());
  for (const auto& cells : lines) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      widths[i] = std::max(widths[i], cells[i].text.size());
    }
  }
  std::string text;
  for (const auto& cells : lines) {
    std::string line;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (i > 0) line.append(kGap, ' ');
      put(line, cells[i], widths[i], columns[i].right, colour);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string short_text(std::string_view text, std::size_t most) {
  std::string made(text.substr(0, most));
  // Also bytes above ASCII: some of them are control characters, and their width is not known.
  for (char& c : made) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > most && most > 2) made.replace(most - 2, 2, "..");
  return made;
}

std::string long_time(Duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}min", seconds / 60);
  if (seconds < 86400) return fmt::format("{}h{:02}min", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{}d{:02}h", seconds / 86400, seconds / 3600 % 24);
}

}  // namespace nvshare::cli
