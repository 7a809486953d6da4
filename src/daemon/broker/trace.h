#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/log.h"

namespace nvshare::daemon {

// What was decided lately, for `nvshare trace`. That may be a thousand lines a second: in the log
// they would bury everything else.
class Trace {
 public:
  // Two minutes of two programs that take turns, and about a MiB.
  static constexpr std::size_t kKept = 4'000;

  // `name`: the tenant that it is about, `client` which of its processes.
  void add(std::string_view event, std::string_view name, std::uint64_t client,
           std::initializer_list<Field> fields);

  // The same of a tenant's lease. `name` is empty where no tenant is known.
  // `fields` are as append_fields() makes them.
  void add_lease(std::string_view event, std::string_view name, std::string_view fields);

  struct Part {
    std::vector<std::string_view> lines;
    std::uint64_t next = 0;  // what to ask for to go on
    std::uint64_t end = 0;   // where there is no more yet
    std::uint64_t lost = 0;  // that were asked for and are not kept any more
  };
  // The lines from number `from` on, of one tenant or (empty) of all, at most so many. As long as
  // nothing is added.
  Part from(std::uint64_t from, std::string_view name, std::size_t most) const;
  // A line of this tenant is kept.
  bool has(std::string_view name) const;

 private:
  struct Line {
    std::string name;
    std::string text;
  };
  void keep(std::string_view name, std::string text);

  std::deque<Line> lines_;
  std::uint64_t first_ = 0;  // the number of the first that is kept
};

}  // namespace nvshare::daemon
