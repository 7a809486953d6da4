#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "integration/process.h"

// handover_bench BUILD_DIR [--check] [--out FILE]
//
// How long the GPU stands idle when it goes from one program to the next: from the end of the last
// kernel of the one to the first launch of the other, as the software GPU's trace tells. Two
// programs that want all of it, the real library and the real scheduler. Beside it, measured in the
// same run, what a round trip between two processes over a socket costs: with --check the 99th
// percentile of the hand-overs must be at most five times that of the round trips.
namespace nvshare::bench {
namespace {

namespace fs = std::filesystem;
using integration::Process;

constexpr Duration kKernel = 200us;
constexpr Duration kEveryKernel = 2us;  // what the software GPU adds to each
constexpr int kRoundTrips = 4000;
constexpr double kMostTimes = 5;

struct Numbers {
  std::vector<double> all;  // microseconds

  double at(double part) {
    if (all.empty()) return 0;
    const auto place = static_cast<std::ptrdiff_t>(part * static_cast<double>(all.size() - 1));
    std::nth_element(all.begin(), all.begin() + place, all.end());
    return all[static_cast<std::size_t>(place)];
  }
};

double microseconds(Duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

// Says every byte back, until the other end is gone.
[[noreturn]] void echo(int socket) {
  char byte = 0;
  while (::read(socket, &byte, 1) == 1 && ::write(socket, &byte, 1) == 1) {
  }
  ::_exit(0);
}

void measure_round_trips(Numbers& trips) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    echo(ends[1]);
  }
  ::close(ends[1]);
  for (int i = 0; i < kRoundTrips; ++i) {
    char byte = 1;
    const Duration begin = integration::now();
    if (::write(ends[0], &byte, 1) != 1 || ::read(ends[0], &byte, 1) != 1) break;
    trips.all.push_back(microseconds(integration::now() - begin));
    ::usleep(200);  // programs that wait are asleep, not spinning
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
}

struct Launch {
  Duration at;
  int pid;
};

// "PID THREAD BEGIN LENGTH SYMBOL RESULT" for each call.
std::vector<Launch> launches_in(const std::string& trace) {
  std::vector<Launch> launches;
  std::ifstream file(trace);
  for (std::string line; std::getline(file, line);) {
    int pid = 0;
    long long begin = 0;
    char symbol[64] = "";
    if (std::sscanf(line.c_str(), "%d %*u %lld %*d %63s", &pid, &begin, symbol) == 3 &&
        std::string_view(symbol) == "cuLaunchKernel") {
      launches.push_back({Duration(begin), pid});
    }
  }
  std::sort(launches.begin(), launches.end(),
            [](const Launch& a, const Launch& b) { return a.at < b.at; });
  return launches;
}

// Idle times at hand-overs, from when both were there until the first was done.
Numbers handovers_in(const std::vector<Launch>& launches) {
  Numbers idle;
  for (std::size_t i = 1; i < launches.size(); ++i) {
    if (launches[i].pid == launches[i - 1].pid) continue;
    idle.all.push_back(microseconds(launches[i].at - launches[i - 1].at - kKernel - kEveryKernel));
  }
  return idle;
}

// Two programs that wait for each kernel, so that the last launch of a turn tells its end.
bool run_programs(const std::string& build, const std::string& folder) {
  const integration::Environment environment{
      {"PATH", "/usr/bin:/bin"},
      {"LD_LIBRARY_PATH", build + "/lib/softgpu"},
      {"NVSHARE_RUN_DIR", folder + "/run"},
      {"NVSHARE_SOFTGPU_CARD", fs::path(folder).filename().string()},
      {"NVSHARE_SOFTGPU_TRACE", folder + "/trace"},
  };
  const auto program = [&](const std::string& name) {
    return Process({build + "/bin/nvshare", "run", "--name", name, "--", build + "/bin/gpu-job",
                    "--pattern", "sync", "--queue", "1", "--kernel",
                    std::to_string(kKernel.count()) + "ns", "--seconds", "5", "--quiet"},
                   environment, folder + "/" + name);
  };
  Process one = program("one");
  Process two = program("two");
  const auto first = one.wait(60s);
  const auto second = two.wait(60s);
  if (first && first->code == 0 && second && second->code == 0) return true;
  fmt::print(stderr, "handover_bench: a program failed\n{}{}", one.output(), two.output());
  return false;
}

std::string json(Numbers& idle, Numbers& trips, double ratio) {
  return fmt::format(
      "{{\n"
      "  \"command\": \"build/dev/bin/handover_bench build/dev --out "
      "bench/results/handover.json\",\n"
      "  \"what\": \"microseconds between the last kernel of one program and the first launch of "
      "the next\",\n"
      "  \"handovers\": {{\"count\": {}, \"p50\": {:.1f}, \"p99\": {:.1f}}},\n"
      "  \"socket_round_trip\": {{\"count\": {}, \"p50\": {:.1f}, \"p99\": {:.1f}}},\n"
      "  \"ratio_p50\": {:.2f},\n"
      "  \"ratio_p99\": {:.2f},\n"
      "  \"limit\": {}\n"
      "}}\n",
      idle.all.size(), idle.at(0.5), idle.at(0.99), trips.all.size(), trips.at(0.5), trips.at(0.99),
      idle.at(0.5) / trips.at(0.5), ratio, kMostTimes);
}

int run(const std::string& build, bool check, const std::string& out) {
  std::string folder = "/tmp/nvshare-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  Numbers trips;
  measure_round_trips(trips);
  const bool good = run_programs(build, folder);
  measure_round_trips(trips);
  Numbers idle = handovers_in(launches_in(folder + "/trace"));
  fs::remove_all(folder);
  if (!good) return 1;
  const double ratio = idle.at(0.99) / trips.at(0.99);
  const bool kept =
      idle.all.size() >= 100 && idle.at(0.0) > -microseconds(kKernel) && ratio <= kMostTimes;
  fmt::print(
      "{}  a hand-over leaves the GPU idle for {:.0f} us (p50 {:.0f}), {:.1f} times a socket round "
      "trip of {:.0f} us (p50 {:.0f}), at most {}; {} hand-overs\n",
      kept ? "ok    " : "MISSED", idle.at(0.99), idle.at(0.5), ratio, trips.at(0.99), trips.at(0.5),
      kMostTimes, idle.all.size());
  if (!out.empty()) std::ofstream(out) << json(idle, trips, ratio);
  return check && !kept ? 1 : 0;
}

}  // namespace
}  // namespace nvshare::bench

int main(int count, char** words) {
  const std::vector<std::string> all(words + 1, words + count);
  std::string build;
  std::string out;
  bool check = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == "--check") {
      check = true;
    } else if (all[i] == "--out" && i + 1 < all.size()) {
      out = all[++i];
    } else if (build.empty() && !all[i].starts_with("-")) {
      build = nvshare::bench::fs::absolute(all[i]).string();
    } else {
      build.clear();
      break;
    }
  }
  if (build.empty()) {
    std::fputs("usage: handover_bench BUILD_DIR [--check] [--out FILE]\n", stderr);
    return 2;
  }
  return nvshare::bench::run(build, check, out);
}
