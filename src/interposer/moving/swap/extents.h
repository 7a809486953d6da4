#pragma once

#include "interposer/guest/pool.h"
#include "interposer/guest/tree.h"

namespace nvshare::interposer::moving::swap {

// A stretch of addresses, given out or free.
struct Extent {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool free = false;
  Extent* before = nullptr;  // its neighbours in the same range
  Extent* after = nullptr;
  Extent* next = nullptr;    // for who was given several
  TreeNode<Extent> by_size;  // among the free ones
};

struct ExtentsBySize {
  static TreeNode<Extent>& node(Extent& one) { return one.by_size; }
  static bool before(const Extent& a, const Extent& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.address < b.address;
  }
};

// Gives out parts of ranges of addresses: best fit, and what is given back joins its free
// neighbours. Not thread-safe. Zero when it is empty.
class Extents {
 public:
  // All of it is free; false when there is no memory for its record.
  bool add_range(Pool<Extent>& pool, uint64_t address, uint64_t bytes);
  // Takes away the only range, of which nothing is given out.
  void remove_range(Pool<Extent>& pool);

  // Takes a range away that was added so, if nothing of it is given out.
  bool remove_free_range(Pool<Extent>& pool, uint64_t address, uint64_t bytes);

  // So many bytes in one piece; null when no free piece is as large, or there is no memory for the
  // record of the rest.
  Extent* take(Pool<Extent>& pool, uint64_t bytes);
  void give(Pool<Extent>& pool, Extent* extent);

  uint64_t largest() const;
  uint64_t free_bytes() const { return free_bytes_; }
  // Of the range that was added last: where the last part that is given out ends.
  uint64_t used_up_to() const {
    return last_->free ? last_->address : last_->address + last_->bytes;
  }

 private:
  void absorb_next(Pool<Extent>& pool, Extent* extent);

  Tree<Extent, ExtentsBySize> free_;
  uint64_t free_bytes_ = 0;
  Extent* last_ = nullptr;
};

}  // namespace nvshare::interposer::moving::swap
