#include "integration/world.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "integration/machine.h"
#include "wire/channel.h"

namespace nvshare::integration {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The children of this process, among them what children of children left behind.
std::vector<pid_t> children() {
  std::vector<pid_t> all;
  std::error_code failed;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", failed)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t pid = 0; file >> pid;) all.push_back(pid);
  }
  return all;
}

// Ends whatever this process or its descendants started and that is still there.
void end_children() {
  for (int i = 0; i < 1000; ++i) {
    const std::vector<pid_t> left = children();
    if (left.empty()) return;
    for (const pid_t pid : left) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
}

// The end of what a program said, without how far it was.
std::string last_words(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("progress")) text += line + "\n";
  }
  return text.size() <= 4000 ? text : "...\n" + text.substr(text.size() - 4000);
}

}  // namespace

std::vector<std::string> answers_of(const Process& probe) {
  std::vector<std::string> lines;
  std::istringstream text(probe.output());
  for (std::string line; std::getline(text, line);) {
    if (!text.eof() && !line.starts_with("nvshare")) lines.push_back(line);
  }
  return lines;
}

std::string gpu_job() {
  return NVSHARE_GPU_JOB;
}
std::string probe_program() {
  return NVSHARE_PROBE;
}
std::string nvshare_program() {
  return NVSHARE_PROGRAM;
}
std::string scheduler_program() {
  return NVSHARE_SCHEDULER;
}

std::vector<Sample> Job::samples() const {
  std::vector<Sample> all;
  std::istringstream lines(process.output());
  for (std::string line; std::getline(lines, line);) {
    long long at = 0;
    long long kernels = 0;
    if (std::sscanf(line.c_str(), "progress at=%lld kernels=%lld", &at, &kernels) != 2) continue;
    all.push_back({Duration(at), static_cast<double>(kernels)});
  }
  return all;
}

double Job::kernels_at(Duration time) const {
  const std::vector<Sample> all = samples();
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].at < time) continue;
    const double part = std::chrono::duration<double>(time - all[i - 1].at) /
                        std::chrono::duration<double>(all[i].at - all[i - 1].at);
    return all[i - 1].kernels + part * (all[i].kernels - all[i - 1].kernels);
  }
  return all.empty() ? 0 : all.back().kernels;
}

double Job::share(Duration from, Duration to) const {
  const double done = kernels_at(to) - kernels_at(from);
  return 100 * done * static_cast<double>(kernel.count()) /
         static_cast<double>((to - from).count());
}

std::string Job::result(const std::string& key) const {
  const std::string text = process.output();
  std::size_t at = text.rfind("kernels=");
  if (key != "kernels") at = text.find(key + "=", at == std::string::npos ? 0 : at);
  if (at == std::string::npos) return "";
  at += key.size() + 1;
  return text.substr(at, text.find_first_of(" \n", at) - at);
}

Interval when_all_ran(const std::vector<Job>& jobs) {
  Interval interval{Duration::min(), Duration::max()};
  for (const Job& job : jobs) {
    const std::vector<Sample> all = job.samples();
    if (all.empty()) return {};
    interval.from = std::max(interval.from, all.front().at + 500ms);
    interval.to = std::min(interval.to, all.back().at);
  }
  return interval;
}

std::vector<double> shares(const std::vector<Job>& jobs) {
  const Interval interval = when_all_ran(jobs);
  std::vector<double> all;
  EXPECT_GT(interval.to - interval.from, 2s) << "the jobs did not run at the same time";
  for (const Job& job : jobs) {
    all.push_back(interval.to > interval.from ? job.share(interval.from, interval.to) : 0);
    std::cout << job.name << ": " << all.back() << " %\n";
  }
  return all;
}

void expect_all_good(std::vector<Job>& jobs, Duration limit) {
  const Duration end = now() + limit;
  for (Job& job : jobs) {
    const auto ending = job.process.wait(std::max<Duration>(end - now(), 0s));
    ASSERT_TRUE(ending) << job.name << " has not ended:\n" << job.process.output();
    EXPECT_EQ(ending->code, 0) << job.name << ":\n" << job.process.output();
  }
}

void World::SetUp() {
  begun_ = now();
  waited_before_ = waited_for_processors();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::string pattern = "/tmp/nvshare-test-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  folder_ = pattern;
  environment_ = {
      {"PATH", "/usr/bin:/bin"},
      {"HOME", folder_},
      {"XDG_RUNTIME_DIR", folder_},
      {"LD_LIBRARY_PATH", NVSHARE_SOFTGPU_FOLDER},
      {"NVSHARE_RUN_DIR", run_directory()},
      {"NVSHARE_HTTP_LISTEN", "off"},  // tests run side by side
      {"NVSHARE_SOFTGPU_CARD", fs::path(folder_).filename().string()},
      {"NVSHARE_SOFTGPU_MEMORY", "4Gi"},
  };
  prepare();
}

void World::TearDown() {
  end_children();
  if (HasFailure()) {
    for (const auto& file : fs::directory_iterator(folder_)) {
      if (!file.is_regular_file()) continue;
      std::cout << "--- " << file.path().filename().string() << "\n" << last_words(file.path());
    }
  }
  std::error_code failed;
  fs::remove_all(folder_, failed);
}

void World::sleep(Duration length) {
  const Duration end = now() + length;
  while (now() < end) nap();
}

double World::waited() const {
  return std::chrono::duration<double>(waited_for_processors() - waited_before_) /
         std::chrono::duration<double>(now() - begun_);
}

double World::slack() const {
  return 2 + 4 * std::clamp((waited() - 0.2) / 0.8, 0.0, 1.0);
}

std::string World::wrong_share(double share, double expected, const std::string& whose) const {
  if (share <= expected + 2 && share >= expected - slack()) return "";
  return fmt::format(
      "{} had {:.2f} % and not {} (somebody waited for a processor {:.0f} % of the time)", whose,
      share, expected, 100 * waited());
}

std::string World::wrong_number(double number, double expected, double within,
                                const std::string& what) {
  if (std::abs(number - expected) <= within) return "";
  return fmt::format("{} is {:.3f} and not {} +- {}", what, number, expected, within);
}

void World::expect_share_for(const Job& job, Duration length, double expected) {
  measure([&] { return share_for(job, length); },
          [&](double one) { return wrong_share(one, expected, job.name); });
}

double World::share_for(const Job& job, Duration length) {
  const Duration from = now();
  sleep(length + 200ms);  // until the next of its reports
  return job.share(from, from + length);
}

std::string World::run_directory() const {
  return folder_ + "/run";
}

std::string World::control_socket() const {
  return run_directory() + "/" + wire::kControlSocket;
}

std::string World::new_log() {
  return folder_ + "/" + std::to_string(logs_++) + ".log";
}

Process World::start(const std::vector<std::string>& words) {
  const std::string log = new_log();
  std::ofstream(log) << "";
  return Process(words, environment_, log);
}

Process World::start_scheduler(const std::vector<std::string>& options) {
  fs::create_directories(run_directory());
  std::vector<std::string> words{scheduler_program(), "--run-dir", run_directory()};
  words.insert(words.end(), options.begin(), options.end());
  Process process = start(words);
  const std::string path = run_directory() + "/" + wire::kProgramSocket;
  EXPECT_TRUE(eventually(
      [&] {
        const int socket = wire::connect_to(path.c_str());
        if (socket >= 0) ::close(socket);
        return socket >= 0 || !process.running();
      },
      20s));
  EXPECT_TRUE(process.running()) << process.output();
  return process;
}

Outcome World::finish(const std::vector<std::string>& words, Duration limit) {
  Process process = start(words);
  const auto ending = process.wait(limit);
  return {ending.value_or(Ending{}), ending.has_value(), process.output()};
}

Outcome World::nvshare(const std::vector<std::string>& words, Duration limit) {
  std::vector<std::string> all{nvshare_program()};
  all.insert(all.end(), words.begin(), words.end());
  return finish(all, limit);
}

Process World::run(const std::vector<std::string>& options,
                   const std::vector<std::string>& program) {
  std::vector<std::string> words{nvshare_program(), "run"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.insert(words.end(), program.begin(), program.end());
  return start(words);
}

Job World::job(const std::string& name, const std::vector<std::string>& run_options,
               const std::vector<std::string>& job_options, Duration kernel) {
  std::vector<std::string> options{"--name", name};
  options.insert(options.end(), run_options.begin(), run_options.end());
  std::vector<std::string> program{gpu_job(), "--progress", "50ms", "--kernel",
                                   std::to_string(kernel.count()) + "ns"};
  program.insert(program.end(), job_options.begin(), job_options.end());
  return Job{run(options, program), name, kernel};
}

Process World::probe(const std::string& name, const std::vector<std::string>& run_options) {
  std::vector<std::string> options{"--name", name};
  options.insert(options.end(), run_options.begin(), run_options.end());
  return run(options, {probe_program()});
}

std::string World::ask(Process& probe, const std::string& line) {
  const std::size_t before = answers_of(probe).size();
  probe.say(line);
  std::vector<std::string> answers;
  const bool answered = eventually(
      [&] {
        answers = answers_of(probe);
        return answers.size() > before || !probe.running();
      },
      30s);
  EXPECT_TRUE(answered) << "no answer to: " << line;
  return answers.size() > before ? answers.back() : "no answer";
}

Json World::status() {
  const Outcome outcome = nvshare({"status", "--json"});
  const Json parsed = Json::parse(outcome.output, nullptr, false);
  return parsed.is_object() ? parsed : Json::object();
}

Json World::tenant(const std::string& name) {
  const Json all = status();
  if (!all.contains("tenants")) return nullptr;
  for (const Json& one : all["tenants"]) {
    if (one.value("name", "") == name) return one;
  }
  return nullptr;
}

std::vector<pid_t> World::processes(const std::string& name) {
  std::vector<pid_t> all;
  const Json found = tenant(name);
  if (!found.is_object() || !found.contains("processes")) return all;
  for (const Json& one : found["processes"]) all.push_back(one.value("pid", 0));
  return all;
}

bool World::has_tenant(const std::string& name) {
  return !tenant(name).is_null();
}

std::size_t World::runs() {
  const Json all = status();
  if (!all.contains("tenants")) return 0;
  return static_cast<std::size_t>(
      std::count_if(all["tenants"].begin(), all["tenants"].end(),
                    [](const Json& one) { return one.value("kind", "") == "run"; }));
}

std::string World::user() {
  return "user-" + std::to_string(::geteuid());
}

void World::allow_priorities() {
  const Outcome outcome = nvshare({"limit", user(), "--priority", "10"});
  EXPECT_EQ(outcome.ending.code, 0) << outcome.output;
}

}  // namespace nvshare::integration
