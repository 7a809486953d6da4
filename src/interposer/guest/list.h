#pragma once

#include "interposer/guest/ground.h"

namespace nvshare::interposer::guest {

// Records in the order in which they were put there, each with its neighbours inside itself
// (`before`, `after`). Not thread-safe. Zero when it is empty.
template <typename T>
class List {
 public:
  T* first() const { return first_; }
  T* last() const { return last_; }

  void append(T& record) {
    record.before = last_;
    record.after = nullptr;
    (last_ == nullptr ? first_ : last_->after) = &record;
    last_ = &record;
  }

  void prepend(T& record) {
    record.before = nullptr;
    record.after = first_;
    (first_ == nullptr ? last_ : first_->before) = &record;
    first_ = &record;
  }

  void remove(T& record) {
    (record.before == nullptr ? first_ : record.before->after) = record.after;
    (record.after == nullptr ? last_ : record.after->before) = record.before;
    record.before = record.after = nullptr;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

}  // namespace nvshare::interposer::guest
