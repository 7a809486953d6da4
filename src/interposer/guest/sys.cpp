#include "interposer/guest/sys.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interposer/guest/elf.h"

namespace nvshare::interposer::guest {

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr size_t kStackSize = 512 * 1024;

timespec to_timespec(uint64_t duration) {
  return {static_cast<time_t>(duration / kSecond), static_cast<long>(duration % kSecond)};
}

// False when a signal handler has run.
bool slept_until(const timespec& end) {
  return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == 0 ||
         errno != EINTR;
}

// The kernel's set of signals: one bit each, from signal 1.
using SignalSet = uint64_t;

// Every signal but the two by which the C library cancels threads and changes user ids in all of
// them: blocking those would hang the host.
constexpr SignalSet kNearlyAllSignals = ~((SignalSet{1} << 31) | (SignalSet{1} << 32));

void set_blocked(const SignalSet* wanted, SignalSet* before) {
  const KeepErrno keep;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, wanted, before, sizeof(SignalSet));
}

// What a new thread is told.
struct Start {
  void* (*body)(void*);
  void* argument;
  const char* name;
};

void* begin_thread(void* given) {
  const Start start = *static_cast<Start*>(given);
  unmap_memory(given, sizeof(Start));
  syscall(SYS_prctl, PR_SET_NAME, start.name, 0, 0, 0);
  return start.body(start.argument);
}

// The functions of the thread library, which is not always libc.
struct Threads {
  decltype(&pthread_create) create;
  decltype(&pthread_attr_init) attr_init;
  decltype(&pthread_attr_destroy) attr_destroy;
  decltype(&pthread_attr_setdetachstate) set_detached;
  decltype(&pthread_attr_setstacksize) set_stack_size;

  bool find() {
    return look_up(create, "pthread_create") && look_up(attr_init, "pthread_attr_init") &&
           look_up(attr_destroy, "pthread_attr_destroy") &&
           look_up(set_detached, "pthread_attr_setdetachstate") &&
           look_up(set_stack_size, "pthread_attr_setstacksize");
  }

  bool start(void* argument, size_t stack_size) const {
    pthread_attr_t attributes;
    if (attr_init(&attributes) != 0) return false;
    set_detached(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack_size != 0) set_stack_size(&attributes, stack_size);
    pthread_t thread;
    const int result = create(&thread, &attributes, begin_thread, argument);
    attr_destroy(&attributes);
    return result == 0;
  }

 private:
  template <typename Function>
  static bool look_up(Function& function, const char* name) {
    function = reinterpret_cast<Function>(libc_function(name));
    return function != nullptr;
  }
#ifdef __SANITIZE_THREAD__  // in tests: the sanitizer must see a thread begin, or its code crashes
  static bool look_up(decltype(&pthread_create)& function, const char*) {
    function = &pthread_create;
    return true;
  }
#endif
};

}  // namespace

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecond + static_cast<uint64_t>(now.tv_nsec);
}

void sleep_ns(uint64_t duration) {
  const KeepErrno keep;
  const timespec end = to_timespec(now_ns() + duration);
  while (!slept_until(end)) {
  }
}

bool sleep_unless_signalled(uint64_t duration) {
  const KeepErrno keep;
  return slept_until(to_timespec(now_ns() + duration));
}

namespace {

void wait_on(Word& word, int operation, uint32_t value, uint64_t timeout) {
  const KeepErrno keep;
  const timespec at_most = to_timespec(timeout);
  syscall(SYS_futex, &word, operation, value, timeout == 0 ? nullptr : &at_most, nullptr, 0);
}

}  // namespace

void futex_wait(Word& word, uint32_t value, uint64_t timeout) {
  wait_on(word, FUTEX_WAIT_PRIVATE, value, timeout);
}

void shared_futex_wait(Word& word, uint32_t value, uint64_t timeout) {
  wait_on(word, FUTEX_WAIT, value, timeout);
}

void futex_wake(Word& word, int count) {
  const KeepErrno keep;
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void Mutex::lock_slow() {
  // 2: held, and somebody may be waiting.
  while (word_.exchange(2, std::memory_order_acquire) != 0) futex_wait(word_, 2);
}

bool Mutex::lock_at_the_end() {
  constexpr uint64_t kMillisecond = 1'000'000;
  constexpr uint64_t kAtMost = 1'000 * kMillisecond;
  constexpr uint64_t kTheSameEnd = 5'000 * kMillisecond;
  static std::atomic<uint64_t> in_vain_at{0};
  const uint64_t begin = now_ns();
  const uint64_t last = in_vain_at.load();
  const uint64_t patience = last != 0 && begin - last < kTheSameEnd ? 0 : kAtMost;
  while (!try_lock()) {
    if (now_ns() - begin >= patience) {
      in_vain_at = now_ns();
      return false;
    }
    sleep_ns(kMillisecond / 10);
  }
  return true;
}

KeepErrno::KeepErrno() : saved_(errno) {}

KeepErrno::~KeepErrno() {
  errno = saved_;
}

void* map_memory(size_t bytes) {
  const KeepErrno keep;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void unmap_memory(void* memory, size_t bytes) {
  const KeepErrno keep;
  munmap(memory, bytes);
}

bool start_thread(void* (*body)(void*), void* argument, const char* name) {
  const KeepErrno keep;
  Threads threads;
  if (!threads.find()) return false;
  auto* start = static_cast<Start*>(map_memory(sizeof(Start)));
  if (start == nullptr) return false;
  *start = {body, argument, name};
  SignalSet before;
  set_blocked(&kNearlyAllSignals, &before);
  // A program with much thread-local data can leave too little of a small stack.
  const bool started = threads.start(start, kStackSize) || threads.start(start, 0);
  set_blocked(&before, nullptr);
  if (!started) unmap_memory(start, sizeof(Start));
  return started;
}

bool logs() {
  const char* wanted = getenv("NVSHARE_LOG");
  return wanted != nullptr && wanted[0] != 0 && wanted[0] != '0';
}

namespace {

constexpr size_t kLine = 512;

// Nobody may read the host's standard error any more (`2>&1 | head -1`). SIGPIPE would end the host
// for a line that is not its own. One that was pending before is the host's.
void write_without_signal(const char* text, size_t length) {
  constexpr SignalSet kPipe = SignalSet{1} << (SIGPIPE - 1);
  SignalSet pending = 0;
  SignalSet before = 0;
  syscall(SYS_rt_sigpending, &pending, sizeof pending);
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &kPipe, &before, sizeof kPipe);
  if (write(STDERR_FILENO, text, length) < 0 && errno == EPIPE && (pending & kPipe) == 0) {
    const timespec at_once = {0, 0};
    syscall(SYS_rt_sigtimedwait, &kPipe, nullptr, &at_once, sizeof kPipe);
  }
  set_blocked(&before, nullptr);
}

// Writes the line, which begins with so many characters already.
void write_line(char (&line)[kLine], int length, const char* format, va_list arguments) {
  const int more = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
  if (more < 0) return;
  length += more;
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length] = '\n';
  write_without_signal(line, static_cast<size_t>(length) + 1);
}

}  // namespace

void log(const char* format, ...) {
  if (!logs()) return;
  const KeepErrno keep;
  char line[kLine];
  const int length = snprintf(line, sizeof line, "nvshare[%d]: ", static_cast<int>(getpid()));
  va_list arguments;
  va_start(arguments, format);
  write_line(line, length, format, arguments);
  va_end(arguments);
}

void warn(const char* format, ...) {
  const KeepErrno keep;
  char line[kLine] = "nvshare: ";
  va_list arguments;
  va_start(arguments, format);
  write_line(line, static_cast<int>(strlen(line)), format, arguments);
  va_end(arguments);
}

void warn_once(const char* text) {
  constexpr size_t kTexts = 8;
  static std::atomic<const char*> said[kTexts];
  size_t place = 0;
  for (const char* free = nullptr; place < kTexts; ++place, free = nullptr) {
    if (said[place].compare_exchange_strong(free, text)) break;
    if (free == text) return;
  }
  if (place < kTexts) warn("%s", text);
}

}  // namespace nvshare::interposer::guest
