#include "core/arbiter/task_class.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/event.h"

namespace nvshare::core {
namespace {

constexpr std::array kRefusals{Refusal::Wait, Refusal::Skip, Refusal::FallbackCpu};
constexpr std::size_t kLongestName = 64;

// Names stand in paths, in tables and in one-line messages.
bool good_name(std::string_view name) {
  if (name.empty() || name.size() > kLongestName) return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '.') return false;
  }
  return true;
}

}  // namespace

std::string_view name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::Wait:
      return "WAIT";
    case Refusal::Skip:
      return "SKIP";
    case Refusal::FallbackCpu:
      return "FALLBACK_CPU";
  }
  return "?";
}

std::optional<Refusal> refusal_by_name(std::string_view name) {
  for (const Refusal refusal : kRefusals) {
    if (name_of(refusal) == name) return refusal;
  }
  return std::nullopt;
}

std::vector<TaskClass> default_classes() {
  return {
      {"ASR", 90, 3s, 30s, Refusal::Wait, Refusal::Wait, {}},
      {"NMT", 80, 3s, 30s, Refusal::Wait, Refusal::Wait, {}},
      {"TTS", 70, 3s, 30s, Refusal::Wait, Refusal::Wait, {}},
      {"SEMANTIC_REPAIR", 20, 0s, 30s, Refusal::Skip, Refusal::Skip, {}},
  };
}

std::vector<std::string> problems(const std::vector<TaskClass>& classes) {
  std::vector<std::string> found;
  std::set<std::string> names;
  if (classes.empty()) found.emplace_back("classes: there is none");
  if (classes.size() > kMostClasses) {
    found.push_back(fmt::format("classes: {} are more than {}", classes.size(), kMostClasses));
  }
  for (const TaskClass& one : classes) {
    if (!good_name(one.name)) {
      found.push_back(fmt::format("classes: a name has 1 to {} letters, digits, '-', '_' and '.'",
                                  kLongestName));
      continue;
    }
    const auto bad = [&](const char* key, const std::string& value, const std::string& range) {
      found.push_back(fmt::format("classes.{}.{}: {} is not {}", one.name, key, value, range));
    };
    if (!names.insert(one.name).second) {
      found.push_back(fmt::format("classes.{}: it is there twice", one.name));
    }
    if (one.priority < 0 || one.priority > kHighestClassPriority) {
      bad("priority", fmt::to_string(one.priority),
          fmt::format("from 0 to {}", kHighestClassPriority));
    }
    if (one.max_wait < 0s || one.max_wait > kLongestWait) {
      bad("max_wait", to_text(one.max_wait), fmt::format("from 0s to {}", to_text(kLongestWait)));
    }
    if (one.hold_max < 1ms || one.hold_max > kLongestHold) {
      bad("hold_max", to_text(one.hold_max), fmt::format("from 1ms to {}", to_text(kLongestHold)));
    }
    if (one.slots && *one.slots < 1) bad("slots", fmt::to_string(*one.slots), "1 or more");
  }
  return found;
}

int tenant_priority(int class_priority) {
  constexpr int kMiddle = kHighestClassPriority / 2;
  constexpr int kStep = kMiddle / kHighestPriority;
  const int above = class_priority - kMiddle;
  // Rounded away from the middle, so that classes that differ from it still do as tenants.
  const int steps = above >= 0 ? (above + kStep - 1) / kStep : -((-above + kStep - 1) / kStep);
  return std::clamp(steps, kLowestPriority, kHighestPriority);
}

}  // namespace nvshare::core
