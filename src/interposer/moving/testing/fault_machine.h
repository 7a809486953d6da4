#pragma once

#include <string>
#include <thread>

#include "interposer/moving/testing/swap_machine.h"

// Every call that a move makes of the driver fails in turn.
namespace nvshare::interposer::moving::swap {

class FaultMachine : public SwapMachine {
 protected:
  using SwapMachine::SwapMachine;

  // As the link's thread does it, without a context. Answers how many calls it took.
  template <typename Body>
  uint64_t with_fault(uint64_t n, Body body) {
    uint64_t calls = 0;
    std::thread thread([&] {
      fail_call(n);
      body();
      calls = calls_since();
      failed = failed_function();
      fail_call(0);
    });
    thread.join();
    return calls;
  }

  // Whether everything is what it should be.
  virtual void check_all() {
    check_sums();
    check_contents();
  }

  // Afterwards everything works.
  void check_recovery() {
    check_all();
    EXPECT_TRUE(out_all());
    check_sums();
    EXPECT_EQ(used(), used_before);
    EXPECT_TRUE(in_all());
    EXPECT_EQ(swap_absent(gate), 0u);
    check_all();
    EXPECT_TRUE(out(4 * kMiB));
    EXPECT_TRUE(in_all());
    check_all();
  }

  const char* failed = "";

  // A move that fails, and the next ones too, so that what is undone after a failure fails as well.
  void fail_one_after_another(const std::function<void()>& prepare) {
    for (uint64_t n = 1;; n += 3) {
      prepare();
      const uint64_t calls_out = with_fault(n, [&] { out_all(); });
      const uint64_t calls_in = with_fault(n / 2 + 1, [&] { in_all(); });
      with_fault(n / 3 + 1, [&] { out_all(); });
      SCOPED_TRACE("call " + std::to_string(n));
      check_recovery();
      restart();
      if (HasFailure() || (calls_out < n && calls_in < n)) return;
    }
  }

  // Fails one call of `move` after the other, each time from the beginning: how many there were,
  // and how many it did not survive.
  struct Enumerated {
    uint64_t calls = 0;
    uint64_t failures = 0;
  };
  template <typename Prepare, typename Body, typename End = void (*)()>
  Enumerated fail_each(
      Prepare prepare, Body move, End end = [] {}) {
    Enumerated found;
    for (uint64_t n = 1;; ++n) {
      prepare();
      bool done = false;
      found.calls = with_fault(n, [&] { done = move(); });
      SCOPED_TRACE("call " + std::to_string(n) + ", " + failed);
      if (!done) ++found.failures;
      check_recovery();
      end();
      restart();
      if (HasFailure() || found.calls < n) return found;
    }
  }
};

}  // namespace nvshare::interposer::moving::swap
