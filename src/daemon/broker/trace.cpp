#include "daemon/broker/trace.h"

#include <algorithm>

namespace nvshare::daemon {

void Trace::add(std::string_view event, std::string_view name, std::uint64_t client,
                std::initializer_list<Field> fields) {
  std::string text = time_stamp();
  append_fields(text, {{"event", event}, {"tenant", name}, {"client", client}});
  append_fields(text, fields);
  keep(name, std::move(text));
}

void Trace::add_lease(std::string_view event, std::string_view name, std::string_view fields) {
  std::string text = time_stamp();
  append_fields(text, {{"event", event}});
  if (!name.empty()) append_fields(text, {{"tenant", name}});
  text += fields;
  keep(name, std::move(text));
}

void Trace::keep(std::string_view name, std::string text) {
  if (lines_.size() == kKept) {
    lines_.pop_front();
    ++first_;
  }
  lines_.push_back({std::string(name), std::move(text)});
}

bool Trace::has(std::string_view name) const {
  return std::ranges::any_of(lines_, [&](const Line& line) { return line.name == name; });
}

Trace::Part Trace::from(std::uint64_t from, std::string_view name, std::size_t most) const {
  Part part;
  part.end = first_ + lines_.size();
  part.next = std::clamp(from, first_, part.end);
  part.lost = from < first_ ? first_ - from : 0;
  while (part.next < part.end && part.lines.size() < most) {
    const Line& line = lines_[part.next++ - first_];
    if (name.empty() || line.name == name) part.lines.push_back(line.text);
  }
  return part;
}

}  // namespace nvshare::daemon
