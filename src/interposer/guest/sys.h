#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "interposer/guest/ground.h"
#include "interposer/guest/thread_safety.h"

// The few things of the operating system that the guest needs, without the C++ library and without
// what glibc moved between its libraries over the years (threads, dl). Nothing here touches errno.
namespace nvshare::interposer::guest {

using Word = std::atomic<uint32_t>;

uint64_t now_ns();  // monotonic
void sleep_ns(uint64_t duration);
// The same, but a signal handler that runs in this thread ends the sleep. False when one has run.
bool sleep_unless_signalled(uint64_t duration);

// Waits while `word` is `value`, at most `timeout` nanoseconds (0: for ever). May return early.
void futex_wait(Word& word, uint32_t value, uint64_t timeout = 0);
// The same for a word that other processes see too.
void shared_futex_wait(Word& word, uint32_t value, uint64_t timeout);
void futex_wake(Word& word, int count);
inline constexpr int kEveryone = 0x7fffffff;

// Not recursive, never allocates, survives fork when held by nobody.
class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() {
    uint32_t expected = 0;
    if (!word_.compare_exchange_strong(expected, 1, std::memory_order_acquire)) lock_slow();
  }
  bool try_lock() TRY_ACQUIRE(true) {
    uint32_t expected = 0;
    return word_.compare_exchange_strong(expected, 1, std::memory_order_acquire);
  }
  // At the end of a thread or of the process: a program that calls exit() in a signal handler may
  // have been interrupted with the lock held, and would wait for itself.
  bool lock_at_the_end() TRY_ACQUIRE(true);
  void unlock() RELEASE() {
    if (word_.exchange(0, std::memory_order_release) == 2) futex_wake(word_, 1);
  }
  // The caller holds it, on a way that the compiler does not follow.
  void is_held() const ASSERT_CAPABILITY(this) {}
  // In the child of a fork, where whoever held it does not exist.
  void reset_after_fork() ASSERT_CAPABILITY(this) { word_.store(0, std::memory_order_relaxed); }

 private:
  void lock_slow();
  Word word_{0};
};

class SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() RELEASE() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

// Keeps the host's errno as it was.
class KeepErrno {
 public:
  KeepErrno();
  ~KeepErrno();

 private:
  int saved_;
};

// Zeroed memory that is not the host's heap; null when there is none.
void* map_memory(size_t bytes);
void unmap_memory(void* memory, size_t bytes);

// Starts a detached thread with every signal blocked and a small stack; false when it cannot be.
bool start_thread(void* (*body)(void*), void* argument, const char* name);

// Whether log() writes anything, for who would have to look for what to write.
bool logs();
// One line to standard error when NVSHARE_LOG is set (1, debug); otherwise nothing at all.
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));

// One line to standard error: for what the user has to do something about.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));
// One line to standard error, of each text the first time only: for what the user has to do
// something about. Texts are told apart by where they are.
void warn_once(const char* text);

}  // namespace nvshare::interposer::guest
