#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "integration/machine.h"
#include "integration/process.h"

// Real programs, a real scheduler and the software GPU, in a folder that each test has for itself.
namespace nvshare::integration {

// What a command that was waited for said, and how it ended.
struct Outcome {
  Ending ending;
  bool ended = false;
  std::string output;
};

// How far a gpu-job was, as its --progress tells.
struct Sample {
  Duration at;
  double kernels;
};

// gpu-job under `nvshare run`.
struct Job {
  std::vector<Sample> samples() const;
  // Kernels done at a time, in between two samples as if they went by evenly.
  double kernels_at(Duration time) const;
  // Percent of the GPU's time from one time to another.
  double share(Duration from, Duration to) const;
  // A value of the line that it prints at the end; empty when it is not there.
  std::string result(const std::string& key) const;

  Process process;
  std::string name;
  Duration kernel;
};

// From when all of them were well under way until the first was done.
struct Interval {
  Duration from;
  Duration to;
};
Interval when_all_ran(const std::vector<Job>& jobs);

// Shares of all, over when_all_ran().
std::vector<double> shares(const std::vector<Job>& jobs);

class World : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  // Settings of a kind of tests, for all that they start. SetUp() calls it last.
  virtual void prepare() {}

  // Measures until nothing is wrong with what was measured, three times at most. `wrong` says in
  // words what is. A machine that is too busy spoils a measurement, hardly all of them; what is
  // wrong spoils all. One during which the host took the processors away says nothing and does not
  // count, up to a limit; where there was hardly another, the test says so and judges nothing.
  template <typename Measure, typename Wrong>
  static void measure(Measure measurement, Wrong wrong) {
    constexpr int kCounted = 3;
    constexpr int kAtMost = 6;
    for (int counted = 0, all = 1;; ++all) {
      const Duration begin = now();
      const Duration stolen_before = stolen_from_processors();
      const std::string complaint = wrong(measurement());
      const double stolen = stolen_part(stolen_before, now() - begin);
      if (complaint.empty()) return;
      counted += stolen < kStolenTooMuch ? 1 : 0;
      if (counted == kCounted) FAIL() << complaint;
      if (all < kAtMost) continue;
      GTEST_SKIP() << complaint << ", but the host took the processors away in all but " << counted
                   << " of " << all << " tries, lately " << 100 * stolen << " % of their time";
    }
  }
  // Measures a job's share for that long, again where it is not as expected.
  void expect_share_for(const Job& job, Duration length, double expected);
  // What is wrong with a share; empty when nothing is. At most two points more than expected, and
  // at most two less. On a machine that keeps programs waiting for a processor, up to six less:
  // work that is seen late to be done is billed until then.
  std::string wrong_share(double share, double expected, const std::string& whose) const;
  // Of a number that should be as near to another as that.
  static std::string wrong_number(double number, double expected, double within,
                                  const std::string& what);

  static void sleep(Duration length);
  // A job's share from now on, for that long.
  static double share_for(const Job& job, Duration length);

  // The part of the test's time in which somebody on this machine waited for a processor.
  double waited() const;

  // Settings for everything that is started from now on.
  void set(const std::string& name, const std::string& value) { environment_[name] = value; }
  const Environment& environment() const { return environment_; }
  std::string folder() const { return folder_; }
  std::string run_directory() const;
  std::string control_socket() const;

  // A scheduler that serves run_directory(); returns when it does.
  Process start_scheduler(const std::vector<std::string>& options = {});
  // One that does not have to work.
  Process start(const std::vector<std::string>& words);
  Outcome finish(const std::vector<std::string>& words, Duration limit = 30s);
  // `nvshare WORDS`, waited for.
  Outcome nvshare(const std::vector<std::string>& words, Duration limit = 30s);
  // `nvshare run OPTIONS -- PROGRAM`, started.
  Process run(const std::vector<std::string>& options, const std::vector<std::string>& program);
  // gpu-job in a tenant of this name. Says how far it is every 50 ms.
  Job job(const std::string& name, const std::vector<std::string>& run_options,
          const std::vector<std::string>& job_options, Duration kernel = 1ms);

  // The probe (probe.cpp) in a tenant of this name.
  Process probe(const std::string& name, const std::vector<std::string>& run_options = {});
  // Tells it a line, and waits for the answer.
  std::string ask(Process& probe, const std::string& line);

  // `nvshare status --json`; an empty object when there is none.
  nlohmann::json status();
  // A tenant of the status; null when it is not there.
  nlohmann::json tenant(const std::string& name);
  bool has_tenant(const std::string& name);
  // Tenants that `nvshare run` has made.
  std::size_t runs();
  // The tenant of the user that runs the tests.
  static std::string user();
  // Lets the user's runs have any priority, as only an operator can.
  void allow_priorities();
  // Process ids of a tenant's programs that use a GPU.
  std::vector<pid_t> processes(const std::string& name);

 private:
  std::string new_log();
  // How far below its share a program may be, on a machine as busy as this was.
  double slack() const;

  std::string folder_;
  Environment environment_;
  Duration begun_{};
  Duration waited_before_{};
  int logs_ = 0;
};

// Waits until all have ended with code 0.
void expect_all_good(std::vector<Job>& jobs, Duration limit);

// What a probe has answered, without what `nvshare run` says beside it.
std::vector<std::string> answers_of(const Process& probe);

// The programs that tests start.
std::string gpu_job();
std::string probe_program();
std::string nvshare_program();
std::string scheduler_program();

}  // namespace nvshare::integration
