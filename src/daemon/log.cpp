#include "daemon/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>

namespace nvshare::daemon {
namespace {

constexpr std::array<std::pair<std::string_view, Level>, 3> kLevels{
    {{"info", Level::Info}, {"warning", Level::Warning}, {"error", Level::Error}}};

bool plain(char c) {
  return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
}

}  // namespace

std::string_view name_of(Level level) {
  for (const auto& [name, meaning] : kLevels) {
    if (meaning == level) return name;
  }
  return "?";
}

std::optional<Level> level_by_name(std::string_view name) {
  for (const auto& [word, meaning] : kLevels) {
    if (word == name) return meaning;
  }
  return std::nullopt;
}

std::string logfmt_value(std::string_view value) {
  if (!value.empty() && std::all_of(value.begin(), value.end(), plain)) return std::string(value);
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

void append_fields(std::string& line, std::initializer_list<Field> fields) {
  for (const Field& field : fields) {
    line += fmt::format(" {}={}", field.key, logfmt_value(field.value));
  }
}

std::string time_stamp() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return fmt::format("time={:%FT%T}.{:06}Z", fmt::gmtime(now.tv_sec), now.tv_nsec / 1000);
}

void Log::write(Level level, std::string_view event, std::initializer_list<Field> fields) {
  if (level < least_) return;
  Rate& rate = rates_[event];
  if (now_ - rate.since >= 1s) rate = {now_, 0, rate.left_out};
  if (rate.lines >= kLinesPerSecond) {
    ++rate.left_out;
    return;
  }
  ++rate.lines;
  std::string line = fmt::format("level={} event={}", name_of(level), event);
  append_fields(line, fields);
  if (line.size() > kLongestLine - 32) line.resize(kLongestLine - 32);
  if (rate.left_out > 0) line += fmt::format(" suppressed={}", rate.left_out);
  rate.left_out = 0;
  line += '\n';
  sink_(line);
}

Log::Sink write_to(int fd) {
  return [fd](std::string_view line) {
    // The descriptor is not ours alone, so it is not made non-blocking; a pipe that polls as
    // writable takes a line of this length.
    pollfd ready{fd, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
    const std::string stamped = fmt::format("{} {}", time_stamp(), line);
    [[maybe_unused]] const auto written = ::write(fd, stamped.data(), stamped.size());
  };
}

}  // namespace nvshare::daemon
