#include <fmt/format.h>
#include <signal.h>

#include <cstdio>
#include <thread>

#include "programs/job.h"

// A program as users write them: keeps a GPU busy through the CUDA driver API, knows nothing of
// nvshare, and counts what it got done.
namespace nvshare::programs {
namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

int mistake(const std::string& what, int code) {
  fmt::print(stderr, "gpu-job: {}\n", what);
  return code;
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// The threads, and the count of those that have finished.
struct Threads {
  explicit Threads(Job& job) : running(job.options().threads) {
    for (int i = 0; i < job.options().threads; ++i) {
      all.emplace_back([this, &job] {
        job.work();
        running.fetch_sub(1);
        ::kill(::getpid(), SIGUSR1);
      });
    }
  }
  ~Threads() {
    for (std::thread& one : all) one.join();
  }
  std::atomic<int> running;
  std::vector<std::thread> all;
};

// Sleeps until a signal comes (a thread that has finished, or somebody who wants an end) or it is
// time to say how far the work is. A second SIGTERM ends the program as it stands: a thread that is
// held back in the driver does not come to look at the first.
void watch(Job& job, Threads& threads, const sigset_t& signals) {
  const Duration every = job.options().progress.value_or(1h);
  std::int64_t next = now_ns() + every.count();
  while (threads.running.load() > 0) {
    const std::int64_t left = std::max<std::int64_t>(next - now_ns(), 0);
    const timespec wait{left / 1'000'000'000, left % 1'000'000'000};
    const int signal = ::sigtimedwait(&signals, nullptr, &wait);
    if (signal == SIGTERM || signal == SIGINT) {
      job.stop();
      sigset_t ends;
      ::sigemptyset(&ends);
      ::sigaddset(&ends, SIGTERM);
      ::sigaddset(&ends, SIGINT);
      ::pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
    }
    if (now_ns() < next) continue;
    next += every.count();
    if (job.options().progress) say(fmt::format("progress at={} kernels={}", now_ns(), job.done()));
  }
}

int run(const std::vector<std::string>& words) {
  const auto options = parse_job(words);
  if (!options) return mistake(options.error().message, kBadInput);
  if (options->help) return fmt::print("{}", job_help()), 0;

  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int one : {SIGTERM, SIGINT, SIGUSR1}) ::sigaddset(&signals, one);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Job job(*options);
  if (!job.begin()) return mistake(job.error(), kFailed);
  const std::int64_t begin = now_ns();
  {
    Threads threads(job);
    watch(job, threads, signals);
  }
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  std::uint64_t checksum = 0;
  if (options->check && job.error().empty()) job.verify(checksum);
  if (!job.error().empty()) return mistake(job.error(), kFailed);
  if (options->quiet) return 0;
  const double busy =
      static_cast<double>(job.done()) * static_cast<double>(job.operation().count());
  say(fmt::format("kernels={} busy_ms={:.3f} seconds={:.4f} share={:.2f} checksum={:016x}",
                  job.done(), busy / 1e6, seconds, busy / 1e7 / seconds, checksum));
  return 0;
}

}  // namespace
}  // namespace nvshare::programs

int main(int count, char** words) {
  return nvshare::programs::run({words + 1, words + count});
}
