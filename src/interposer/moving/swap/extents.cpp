#include "interposer/moving/swap/extents.h"

namespace nvshare::interposer::moving::swap {

bool Extents::add_range(Pool<Extent>& pool, uint64_t address, uint64_t bytes) {
  Extent* extent = pool.take();
  if (extent == nullptr) return false;
  extent->address = address;
  extent->bytes = bytes;
  extent->free = true;
  free_.insert(extent);
  free_bytes_ += bytes;
  last_ = extent;
  return true;
}

void Extents::remove_range(Pool<Extent>& pool) {
  pool.give(last_);
  *this = Extents();
}

bool Extents::remove_free_range(Pool<Extent>& pool, uint64_t address, uint64_t bytes) {
  Extent wanted;
  wanted.address = address;
  wanted.bytes = bytes;
  Extent* extent = free_.at_or_after(wanted);
  if (extent == nullptr || extent->address != address || extent->bytes != bytes) return false;
  free_.remove(extent);
  free_bytes_ -= bytes;
  if (last_ == extent) last_ = nullptr;
  pool.give(extent);
  return true;
}

Extent* Extents::take(Pool<Extent>& pool, uint64_t bytes) {
  Extent wanted;
  wanted.bytes = bytes;
  Extent* extent = free_.at_or_after(wanted);
  if (extent == nullptr) return nullptr;
  if (extent->bytes > bytes) {
    Extent* rest = pool.take();
    if (rest == nullptr) return nullptr;
    free_.remove(extent);
    rest->address = extent->address + bytes;
    rest->bytes = extent->bytes - bytes;
    rest->free = true;
    rest->before = extent;
    rest->after = extent->after;
    if (rest->after != nullptr) rest->after->before = rest;
    if (last_ == extent) last_ = rest;
    extent->bytes = bytes;
    extent->after = rest;
    free_.insert(rest);
  } else {
    free_.remove(extent);
  }
  extent->free = false;
  extent->next = nullptr;
  free_bytes_ -= bytes;
  return extent;
}

void Extents::absorb_next(Pool<Extent>& pool, Extent* extent) {
  Extent* gone = extent->after;
  extent->bytes += gone->bytes;
  extent->after = gone->after;
  if (extent->after != nullptr) extent->after->before = extent;
  if (last_ == gone) last_ = extent;
  pool.give(gone);
}

void Extents::give(Pool<Extent>& pool, Extent* extent) {
  free_bytes_ += extent->bytes;
  extent->free = true;
  if (extent->after != nullptr && extent->after->free) {
    free_.remove(extent->after);
    absorb_next(pool, extent);
  }
  if (extent->before != nullptr && extent->before->free) {
    extent = extent->before;
    free_.remove(extent);
    absorb_next(pool, extent);
  }
  free_.insert(extent);
}

uint64_t Extents::largest() const {
  const Extent* extent = free_.last();
  return extent == nullptr ? 0 : extent->bytes;
}

}  // namespace nvshare::interposer::moving::swap
