#include "cli/show/terminal_frame.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::cli {
namespace {

constexpr std::string_view kHome = "\033[H";
constexpr std::string_view kClearLine = "\033[K";  // from the cursor on
constexpr std::string_view kClearRest = "\033[J";  // of the screen

// How long the sequence is that the text begins with, as those for colours do; 0: none.
std::size_t escape_length(std::string_view text) {
  if (text.substr(0, 2) != "\033[") return 0;
  return std::min(text.find('m'), text.size() - 1) + 1;
}

bool begins_letter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;  // of UTF-8
}

// As many letters as fit; colours are ended also behind that.
std::string cut(std::string_view line, std::size_t columns) {
  std::string text;
  std::size_t letters = 0;
  while (!line.empty()) {
    const std::size_t escape = escape_length(line);
    if (escape == 0 && begins_letter(line[0])) ++letters;
    const std::size_t length = std::max<std::size_t>(1, escape);
    if (escape > 0 || letters <= columns) text += line.substr(0, length);
    line.remove_prefix(length);
  }
  return text;
}

}  // namespace

std::string terminal_frame(std::string_view text, TerminalSize size) {
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  // The cursor stands in the row below the last line.
  const std::size_t room = size.rows > 0 ? size.rows - 1 : lines;
  const std::size_t shown = lines <= room ? lines : std::max<std::size_t>(room, 1) - 1;
  std::string frame(kHome);
  const auto add = [&](std::string_view line) {
    // Not behind the text: after a whole row many terminals still are at its last letter.
    frame += kClearLine;
    frame += size.columns > 0 ? cut(line, size.columns) : std::string(line);
    frame += '\n';
  };
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t end = text.find('\n');
    add(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  if (shown < room && shown < lines) add(fmt::format("... and {} more lines", lines - shown));
  return frame + std::string(kClearRest);
}

}  // namespace nvshare::cli
