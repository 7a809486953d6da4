#pragma once

#include "interposer/guest/sys.h"

namespace nvshare::interposer::guest {

// Records of one kind, in mapped memory that is reused and never given back. Not thread-safe. Zero
// when it is empty.
template <typename T>
class Pool {
 public:
  // A zeroed record; null when there is no memory.
  T* take() {
    if (free_ == nullptr && !grow()) return nullptr;
    Cell* cell = free_;
    free_ = cell->next;
    cell->value = T{};
    return &cell->value;
  }

  void give(T* record) {
    Cell* cell = reinterpret_cast<Cell*>(record);
    cell->next = free_;
    free_ = cell;
  }

 private:
  union Cell {
    T value;
    Cell* next;
  };
  static constexpr size_t kBytes = 64 * 1024;

  bool grow() {
    auto* cells = static_cast<Cell*>(map_memory(kBytes));
    if (cells == nullptr) return false;
    for (size_t i = 0; i < kBytes / sizeof(Cell); ++i) give(&cells[i].value);
    return true;
  }

  Cell* free_ = nullptr;
};

}  // namespace nvshare::interposer::guest
