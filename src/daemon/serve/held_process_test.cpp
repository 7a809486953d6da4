#include "daemon/serve/held_process.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nvshare::daemon {
namespace {

// A kernel that answers with these numbers; a descriptor where one is 0.
struct Kernel {
  int peer = 0;
  int number = 0;
  int asked_by_number = 0;

  ProcessCalls calls() {
    const auto answer = [](int error) { return error == 0 ? dup(STDERR_FILENO) : -error; };
    return {.of_peer = [this, answer](int) { return answer(peer); },
            .of_number =
                [this, answer](int) {
                  ++asked_by_number;
                  return answer(number);
                }};
  }
};

std::string found(const Result<HeldProcess>& held) {
  if (!held) return held.error().message;
  if (held->descriptor) return held->gone ? "both" : "held";
  return held->gone ? "gone" : "no descriptors";
}

TEST(HeldProcess, APeerThatIsGoneIsNotLookedForByItsNumber) {
  for (const int error : {ESRCH, EINVAL, ENODATA}) {
    Kernel kernel{.peer = error};
    EXPECT_EQ(found(hold_peer(kernel.calls(), 0, 7)), "gone") << std::strerror(error);
    EXPECT_EQ(kernel.asked_by_number, 0) << "it may be another process's";
  }
}

TEST(HeldProcess, AnOlderKernelIsAskedForTheNumber) {
  Kernel kernel{.peer = ENOPROTOOPT};
  EXPECT_EQ(found(hold_peer(kernel.calls(), 0, 7)), "held");
  for (const int error : {ESRCH, EINVAL}) {
    kernel.number = error;
    EXPECT_EQ(found(hold_peer(kernel.calls(), 0, 7)), "gone") << std::strerror(error);
  }
  for (const int error : {ENOSYS, EPERM}) {
    kernel.number = error;
    EXPECT_EQ(found(hold_peer(kernel.calls(), 0, 7)), "no descriptors") << std::strerror(error);
  }
}

TEST(HeldProcess, WithoutADescriptorToSpareAProcessIsNeitherHeldNorGone) {
  for (const int error : {EMFILE, ENFILE, ENOMEM}) {
    const std::string problem =
        std::string("the scheduler cannot hold process 7: ") + std::strerror(error);
    Kernel kernel{.peer = error};
    EXPECT_EQ(found(hold_peer(kernel.calls(), 0, 7)), problem);
    EXPECT_EQ(kernel.asked_by_number, 0);
    kernel.number = error;
    EXPECT_EQ(found(hold_process(kernel.calls(), 7)), problem);
  }
}

TEST(HeldProcess, ThisKernelHoldsProcesses) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const ProcessCalls calls = ProcessCalls::of_kernel();
  const std::string own = found(hold_process(calls, getpid()));
  if (own == "no descriptors") GTEST_SKIP() << "neither pidfd_open nor SO_PEERPIDFD";
  EXPECT_EQ(own, "held");
  EXPECT_EQ(found(hold_peer(calls, ends[0], getpid())), "held");
  EXPECT_EQ(found(hold_process(calls, 1 << 30)), "gone") << "no process has such a number";
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace nvshare::daemon
