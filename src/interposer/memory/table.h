#pragma once

#include <stddef.h>
#include <stdint.h>

#include "interposer/guest/sys.h"

namespace nvshare::interposer::memory {

// A hash table from a number and a small tag to a value, in mapped memory. Not thread-safe. Values
// are copied as bytes. It is zero when it is empty, so that it can be a global without a
// constructor.
template <typename Value>
class Table {
 public:
  // Makes sure of a place for one more, which put() uses or unhold() gives up; false when there is
  // no memory. Held before the driver is called, so that what it gave is never left unrecorded.
  bool hold() {
    if ((used_ + held_ + 1) * 4 > capacity_ * 3 && !rebuild()) return false;
    held_ += 1;
    return true;
  }
  void unhold() { held_ -= 1; }

  // Uses a held place. True when there was a value already, which goes to `replaced`.
  bool put(uint64_t number, uint32_t tag, const Value& value, Value& replaced) {
    held_ -= 1;
    if (Value* known = find(number, tag)) {
      replaced = *known;
      *known = value;
      return true;
    }
    size_t at = place_of(number, tag);
    while (slots_[at].state == kTaken) at = (at + 1) & (capacity_ - 1);
    if (slots_[at].state == kEmpty) used_ += 1;
    slots_[at] = {number, tag, kTaken, value};
    count_ += 1;
    return false;
  }

  // Valid until the next hold().
  Value* find(uint64_t number, uint32_t tag) {
    Slot* slot = slot_of(number, tag);
    return slot == nullptr ? nullptr : &slot->value;
  }

  void remove(uint64_t number, uint32_t tag) {
    if (Slot* slot = slot_of(number, tag)) drop(*slot);
  }

  // Calls visit(number, tag, value) for each; those for which it answers true are removed.
  template <typename Visit>
  void remove_if(Visit visit) {
    for (size_t at = 0; at < capacity_; ++at) {
      Slot& slot = slots_[at];
      if (slot.state == kTaken && visit(slot.number, slot.tag, slot.value)) drop(slot);
    }
  }

  template <typename Visit>
  void for_each(Visit visit) {
    remove_if([&](uint64_t number, uint32_t tag, Value& value) {
      visit(number, tag, value);
      return false;
    });
  }

  size_t size() const { return count_; }

  void clear() {
    if (slots_ != nullptr) unmap_memory(slots_, capacity_ * sizeof(Slot));
    forget();
  }

  // Without unmapping: whoever changed it when the process was forked is not here to finish.
  void forget() { *this = Table(); }

 private:
  enum State : uint32_t { kEmpty, kTaken, kGone };
  struct Slot {
    uint64_t number;
    uint32_t tag;
    State state;
    Value value;
  };

  size_t place_of(uint64_t number, uint32_t tag) const {
    uint64_t mixed = (number ^ (uint64_t{tag} << 56)) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 32;
    return static_cast<size_t>(mixed) & (capacity_ - 1);
  }

  Slot* slot_of(uint64_t number, uint32_t tag) {
    if (count_ == 0) return nullptr;
    for (size_t at = place_of(number, tag);; at = (at + 1) & (capacity_ - 1)) {
      Slot& slot = slots_[at];
      if (slot.state == kEmpty) return nullptr;
      if (slot.state == kTaken && slot.number == number && slot.tag == tag) return &slot;
    }
  }

  void drop(Slot& slot) {
    slot.state = kGone;
    count_ -= 1;
  }

  // Larger when it is filled, otherwise only rid of what is gone.
  bool rebuild() {
    size_t capacity = capacity_ == 0 ? kSmallest : capacity_;
    while ((count_ + held_ + 1) * 2 > capacity) capacity *= 2;
    auto* slots = static_cast<Slot*>(map_memory(capacity * sizeof(Slot)));
    if (slots == nullptr) return false;
    Slot* before = slots_;
    const size_t capacity_before = capacity_;
    slots_ = slots;
    capacity_ = capacity;
    used_ = count_;
    for (size_t i = 0; i < capacity_before; ++i) {
      if (before[i].state != kTaken) continue;
      size_t at = place_of(before[i].number, before[i].tag);
      while (slots_[at].state != kEmpty) at = (at + 1) & (capacity_ - 1);
      slots_[at] = before[i];
    }
    if (before != nullptr) unmap_memory(before, capacity_before * sizeof(Slot));
    return true;
  }

  static constexpr size_t kSmallest = 64;

  Slot* slots_ = nullptr;
  size_t capacity_ = 0;
  size_t count_ = 0;  // taken
  size_t used_ = 0;   // taken or gone: those that a search passes
  size_t held_ = 0;
};

}  // namespace nvshare::interposer::memory
