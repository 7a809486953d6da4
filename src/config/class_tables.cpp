#include "config/class_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "config/exact_text.h"

namespace nvshare::config {

using core::Refusal;
using core::TaskClass;

const Choices<Refusal>& refusals() {
  static const Choices<Refusal> choices = [] {
    Choices<Refusal> all;
    for (const Refusal one : {Refusal::Wait, Refusal::Skip, Refusal::FallbackCpu}) {
      all.emplace_back(core::name_of(one), one);
    }
    return all;
  }();
  return choices;
}

namespace {

void read_class(TableReader table, TaskClass& one) {
  const auto number = [&](std::string_view key) { return table.integer(key, INT_MIN, INT_MAX); };
  if (const auto value = number("priority")) one.priority = static_cast<int>(*value);
  if (const auto value = number("slots")) one.slots = static_cast<int>(*value);
  const auto time = [&](std::string_view key) {
    return table.duration(key, Duration{0}, Duration::max());
  };
  if (const auto value = time("max_wait")) one.max_wait = *value;
  if (const auto value = time("hold_max")) one.hold_max = *value;
  if (const auto value = table.choice("busy", refusals())) one.busy = *value;
  if (const auto value = table.choice("pressure", refusals())) one.pressure = *value;
  table.finish();
}

}  // namespace

std::vector<TaskClass> read_classes(TableReader& file, Problems& problems) {
  std::vector<TaskClass> classes = core::default_classes();
  const Value* tables = file.find("classes");
  if (tables == nullptr) return classes;
  TableReader reader(*tables, "classes", problems);
  for (const Entry& entry : tables->entries) {
    auto table = reader.table(entry.key);
    if (!table) continue;
    auto at = std::ranges::find(classes, entry.key, &TaskClass::name);
    if (at == classes.end()) {
      TaskClass fresh;
      fresh.name = entry.key;
      at = classes.insert(at, std::move(fresh));
    }
    read_class(std::move(*table), *at);
  }
  reader.finish();
  return classes;
}

std::string to_file(const std::vector<TaskClass>& classes) {
  std::string text;
  for (const TaskClass& one : classes) {
    text += fmt::format("\n[classes.{}]\npriority = {}\n", toml_text(one.name), one.priority);
    text += fmt::format("max_wait = \"{}\"\n", exact_text(one.max_wait));
    text += fmt::format("hold_max = \"{}\"\n", exact_text(one.hold_max));
    text += fmt::format("busy = \"{}\"\n", core::name_of(one.busy));
    text += fmt::format("pressure = \"{}\"\n", core::name_of(one.pressure));
    if (one.slots) text += fmt::format("slots = {}\n", *one.slots);
  }
  return text;
}

}  // namespace nvshare::config
