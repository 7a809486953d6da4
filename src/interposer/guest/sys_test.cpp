#include "interposer/guest/sys.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace nvshare::interposer::guest {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;

TEST(Sys, TimeGoesOnAndSleepLasts) {
  const uint64_t before = now_ns();
  sleep_ns(3 * kMillisecond);
  EXPECT_GE(now_ns() - before, 3 * kMillisecond);
}

TEST(Sys, FutexWaitsForWhoWakesOrUntilItsTime) {
  Word word{1};
  futex_wait(word, 0);  // another value: does not wait
  const uint64_t before = now_ns();
  // Early returns are allowed, so it is asked until the time has passed.
  while (now_ns() - before < 2 * kMillisecond) futex_wait(word, 1, 2 * kMillisecond);
  std::thread waker([&word] {
    word = 2;
    futex_wake(word, kEveryone);
  });
  while (word == 1) futex_wait(word, 1);
  waker.join();
  EXPECT_EQ(word, 2U);
}

TEST(Sys, WhoHoldsAMutexAtTheEndDoesNotWaitForItself) {
  Mutex mutex;
  EXPECT_TRUE(mutex.lock_at_the_end());
  EXPECT_FALSE(mutex.lock_at_the_end());
  mutex.unlock();
  EXPECT_TRUE(mutex.try_lock());
}

TEST(Sys, MutexExcludes) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20000; ++j) {
        const Lock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80000);
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_FALSE(mutex.try_lock());
  mutex.reset_after_fork();
  EXPECT_TRUE(mutex.try_lock());
}

TEST(Sys, ErrnoStaysAsItWas) {
  errno = 77;
  Word word{0};
  futex_wait(word, 1);  // EAGAIN, were it asked
  EXPECT_EQ(errno, 77);
  EXPECT_EQ(map_memory(SIZE_MAX / 2), nullptr);
  EXPECT_EQ(errno, 77);
  unmap_memory(reinterpret_cast<void*>(1), 1);
  EXPECT_EQ(errno, 77);
}

TEST(Sys, MemoryIsZeroed) {
  auto* memory = static_cast<char*>(map_memory(10000));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(std::string(memory, 10000), std::string(10000, '\0'));
  memory[9999] = 1;
  unmap_memory(memory, 10000);
}

// What a thread tells about itself.
struct Told {
  Word done{0};
  char name[16] = {};
  sigset_t blocked{};
};

void* tell(void* given) {
  auto* told = static_cast<Told*>(given);
  pthread_getname_np(pthread_self(), told->name, sizeof told->name);
  pthread_sigmask(SIG_BLOCK, nullptr, &told->blocked);
  told->done = 1;
  futex_wake(told->done, 1);
  return nullptr;
}

TEST(Sys, ThreadsHaveANameAndNoSignals) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "this sanitizer wants to start every thread itself";
#endif
  sigset_t before{};
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  Told told;
  ASSERT_TRUE(start_thread(tell, &told, "nvshare-test"));
  while (told.done == 0) futex_wait(told.done, 0, 100 * kMillisecond);
  EXPECT_STREQ(told.name, "nvshare-test");
  for (const int one : {SIGTERM, SIGINT, SIGUSR1, SIGPROF, SIGCHLD, SIGRTMIN, SIGRTMAX}) {
    EXPECT_EQ(sigismember(&told.blocked, one), 1) << one;
  }
  sigset_t after{};
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
}

int g_pipe_signals = 0;

bool pipe_signal_is(int (*look)(sigset_t*)) {
  sigset_t set{};
  look(&set);
  return sigismember(&set, SIGPIPE) == 1;
}

int blocked_now(sigset_t* set) {
  return pthread_sigmask(SIG_BLOCK, nullptr, set);
}

TEST(Sys, AWarningThatNobodyReadsIsNoSignal) {
  int pair[2];
  ASSERT_EQ(pipe(pair), 0);
  close(pair[0]);
  const int standard_error = dup(STDERR_FILENO);
  dup2(pair[1], STDERR_FILENO);
  const auto before = signal(SIGPIPE, [](int) { ++g_pipe_signals; });
  errno = 77;
  warn("nobody reads this");
  EXPECT_EQ(errno, 77);
  EXPECT_EQ(g_pipe_signals, 0);
  EXPECT_FALSE(pipe_signal_is(sigpending));
  EXPECT_FALSE(pipe_signal_is(blocked_now));
  // The program's own stays.
  sigset_t own{};
  sigaddset(&own, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &own, nullptr);
  raise(SIGPIPE);
  warn("nor this");
  EXPECT_TRUE(pipe_signal_is(sigpending));
  EXPECT_TRUE(pipe_signal_is(blocked_now));
  pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  EXPECT_EQ(g_pipe_signals, 1);
  signal(SIGPIPE, before);
  dup2(standard_error, STDERR_FILENO);
  close(standard_error);
  close(pair[1]);
}

TEST(Sys, LogSaysNothingUnlessAsked) {
  const auto said = [] {
    testing::internal::CaptureStderr();
    log("%d and %s", 1, "two");
    return testing::internal::GetCapturedStderr();
  };
  unsetenv("NVSHARE_LOG");
  EXPECT_EQ(said(), "");
  setenv("NVSHARE_LOG", "1", 1);
  const std::string prefix = "nvshare[" + std::to_string(getpid()) + "]: ";
  EXPECT_EQ(said(), prefix + "1 and two\n");
  testing::internal::CaptureStderr();
  log("%s", std::string(2000, 'x').c_str());
  const std::string longest = testing::internal::GetCapturedStderr();
  EXPECT_EQ(longest.size(), 511U);
  EXPECT_EQ(longest.back(), '\n');
  unsetenv("NVSHARE_LOG");
}

}  // namespace
}  // namespace nvshare::interposer::guest
