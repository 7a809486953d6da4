#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace nvshare::core {

// What a request does when the arbiter cannot grant its lease at once.
enum class Refusal { Wait, Skip, FallbackCpu };
std::string_view name_of(Refusal refusal);  // "WAIT", "SKIP", "FALLBACK_CPU"
std::optional<Refusal> refusal_by_name(std::string_view name);

inline constexpr int kHighestClassPriority = 100;
inline constexpr int kMostClasses = 64;
inline constexpr Duration kLongestWait = 10min;
inline constexpr Duration kLongestHold = 24h;

// A kind of work that asks for leases, as the configuration declares it.
struct TaskClass {
  std::string name;
  int priority = 50;                 // 0..kHighestClassPriority; the higher is served first
  Duration max_wait = 3s;            // of a request without its own
  Duration hold_max = 30s;           // a lease that is held for longer is revoked
  Refusal busy = Refusal::Wait;      // no slot is free
  Refusal pressure = Refusal::Wait;  // the GPU is under high pressure
  std::optional<int> slots{};        // leases of this class on one GPU; none: all of the GPU's

  friend bool operator==(const TaskClass&, const TaskClass&) = default;
};

// ASR, NMT and TTS, that wait, and SEMANTIC_REPAIR, that never does.
std::vector<TaskClass> default_classes();

// Every value that is out of its range, one line each; empty when the classes are usable.
std::vector<std::string> problems(const std::vector<TaskClass>& classes);

// The one map from a class's priority (0..100) to a tenant's (-10..10). 50 is a tenant's 0.
int tenant_priority(int class_priority);

}  // namespace nvshare::core
