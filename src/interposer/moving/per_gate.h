#pragma once

#include <atomic>

#include "interposer/gate/gate.h"
#include "interposer/guest/sys.h"

namespace nvshare::interposer::moving {

// What is known per gate: one T for each, in mapped memory, made when it is first needed and there
// for as long as the process lives. A T has `gate` and `device`, and is otherwise zero at first.
// Thread-safe. Zero when it is empty.
template <typename T>
class PerGate {
 public:
  // Null when there is none yet.
  T* of(const gate::Gate& gate) const {
    T* found = nullptr;
    visit([&](T& one) {
      if (one.gate == &gate) found = &one;
      return found != nullptr;
    });
    return found;
  }

  // Null when there is no memory.
  T* make(gate::Gate& gate) {
    if (T* known = of(gate)) return known;
    const Lock lock(making_);
    if (T* known = of(gate)) return known;
    for (auto& place : places_) {
      if (place.load(std::memory_order_relaxed) != nullptr) continue;
      auto* one = static_cast<T*>(map_memory(sizeof(T)));
      if (one == nullptr) return nullptr;
      one->gate = &gate;
      one->device = -1;
      place.store(one, std::memory_order_release);
      return one;
    }
    return nullptr;
  }

  // Calls visit(one) for each, until it answers true.
  template <typename Visit>
  void visit(Visit visit) const {
    for (const auto& place : places_) {
      T* one = place.load(std::memory_order_acquire);
      if (one == nullptr || visit(*one)) return;
    }
  }

  void reset_after_fork() {
    making_.reset_after_fork();
    for (auto& place : places_) place.store(nullptr, std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kMost = 64;

  Mutex making_;
  std::atomic<T*> places_[kMost];
};

}  // namespace nvshare::interposer::moving
