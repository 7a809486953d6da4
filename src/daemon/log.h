#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/units.h"

namespace nvshare::daemon {

enum class Level { Info, Warning, Error };
std::string_view name_of(Level level);
std::optional<Level> level_by_name(std::string_view name);

struct Field {
  template <typename Value>
  Field(std::string_view name, const Value& given) : key(name), value(text(given)) {}

  std::string_view key;
  std::string value;

 private:
  template <typename Value>
  static std::string text(const Value& given) {
    if constexpr (std::is_convertible_v<Value, std::string_view>) {
      return std::string(std::string_view(given));
    } else {
      return std::to_string(given);
    }
  }
};

// Lines of key=value ("level=info event=client_registered client=3 tenant=train"). Each kind of
// event is bounded in rate: what was left out is counted in the next line of its kind. A value that
// is not a plain word is quoted, and cannot begin a new line.
class Log {
 public:
  using Sink = std::function<void(std::string_view line)>;

  // `sink` is given whole lines with their end, of at most kLongestLine bytes.
  Log(Level least, Sink sink) : least_(least), sink_(std::move(sink)) {}

  // The time of the loop's present turn, by which the rate is bounded.
  void set_time(Time now) { now_ = now; }
  void set_level(Level least) { least_ = least; }
  // `event` outlives the log: a literal.
  void write(Level level, std::string_view event, std::initializer_list<Field> fields = {});
  void info(std::string_view event, std::initializer_list<Field> fields = {}) {
    write(Level::Info, event, fields);
  }
  void warn(std::string_view event, std::initializer_list<Field> fields = {}) {
    write(Level::Warning, event, fields);
  }
  void error(std::string_view event, std::initializer_list<Field> fields = {}) {
    write(Level::Error, event, fields);
  }

  static constexpr int kLinesPerSecond = 20;         // of one kind
  static constexpr std::size_t kLongestLine = 2048;  // less than a pipe takes at once

 private:
  struct Rate {
    Time since{};
    int lines = 0;
    long left_out = 0;
  };

  Level least_;
  Sink sink_;
  Time now_{};
  std::map<std::string_view, Rate> rates_;
};

// Writes to the descriptor, with the time in front, or loses the line where that would block.
Log::Sink write_to(int fd);

// The value as it stands in a line: quoted when it has to be.
std::string logfmt_value(std::string_view value);
// " key=value" of each.
void append_fields(std::string& line, std::initializer_list<Field> fields);
// "time=...", now, in UTC.
std::string time_stamp();

}  // namespace nvshare::daemon
