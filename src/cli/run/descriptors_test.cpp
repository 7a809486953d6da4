#include "cli/run/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iterator>

namespace nvshare::cli {
namespace {

// From now on close_range fails in this process, as before Linux 5.9.
bool lose_close_range() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

constexpr int kNoFilter = 2;

// In a process of its own: 0 when only the descriptors that were to stay have stayed.
int close_and_look(bool with_close_range) {
  int fds[6];
  for (int& fd : fds) fd = ::open("/dev/null", O_RDONLY);
  if (!with_close_range && !lose_close_range()) return kNoFilter;
  close_all_but({fds[4], -1, fds[1]});
  for (int i = 0; i < 6; ++i) {
    const bool is_open = ::fcntl(fds[i], F_GETFD) >= 0;
    if (is_open != (i == 1 || i == 4)) return 1;
  }
  return ::fcntl(STDERR_FILENO, F_GETFD) >= 0 ? 0 : 1;
}

int code_of(bool with_close_range) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(close_and_look(with_close_range));
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Descriptors, AllButTheNamedOnesAreClosed) {
  EXPECT_EQ(code_of(true), 0);
}

TEST(Descriptors, AnOldKernelClosesThemToo) {
  const int code = code_of(false);
  if (code == kNoFilter) GTEST_SKIP() << "no system call can be forbidden here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace nvshare::cli
