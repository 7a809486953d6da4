#pragma once

#include <stdint.h>

#include <atomic>

// Bytes that a program may allocate without asking, and into which it may free without telling. The
// scheduler has checked them beforehand, as if they were allocated, and can have back at any moment
// what is left of them.
//
// What a program has and what it has left of its credit is one sum, which neither take() nor give()
// changes: so the scheduler reads from `bytes` what the program has, whenever it wants to know.
namespace nvshare::wire {

struct Credit {
  // Written by the scheduler: how much of it the program may keep. 0: none; it asks and tells.
  std::atomic<uint64_t> cap;
  // The only word of the page that both change. What is left; always changed as a whole.
  std::atomic<uint64_t> bytes;
};

// --- by the program, one thread at a time

// To be allocated. False: it must ask.
inline bool take(Credit& credit, uint64_t bytes) {
  uint64_t left = credit.bytes.load();
  do {
    if (left < bytes) return false;
  } while (!credit.bytes.compare_exchange_weak(left, left - bytes));
  return true;
}

// They have been freed. False: it must tell.
inline bool give(Credit& credit, uint64_t bytes) {
  const uint64_t cap = credit.cap.load();
  uint64_t left = credit.bytes.load();
  do {
    if (left > cap || bytes > cap - left) return false;
  } while (!credit.bytes.compare_exchange_weak(left, left + bytes));
  if (credit.cap.load() != 0) return true;
  // It was taken away meanwhile. Either that was before these bytes were there, and nobody will
  // look for them again; or the scheduler has found them.
  return !take(credit, bytes);
}

// --- by the scheduler

inline void hand_out(Credit& credit, uint64_t bytes, uint64_t cap) {
  credit.bytes.fetch_add(bytes);
  credit.cap.store(cap);
}

// Takes back up to that much of what is left; says how much that was.
inline uint64_t withdraw(Credit& credit, uint64_t at_most) {
  uint64_t left = credit.bytes.load();
  uint64_t got;
  do {
    got = left < at_most ? left : at_most;
  } while (!credit.bytes.compare_exchange_weak(left, left - got));
  return got;
}

// Takes it away; says what was left of it. In this order: see give().
inline uint64_t revoke(Credit& credit) {
  credit.cap.store(0);
  return credit.bytes.exchange(0);
}

}  // namespace nvshare::wire
