#include "programs/job_options.h"

#include <gtest/gtest.h>

namespace nvshare::programs {
namespace {

std::string error_of(const std::vector<std::string>& words) {
  const auto options = parse_job(words);
  return options ? "" : options.error().message;
}

TEST(JobOptions, AreWhatTheyAreCalled) {
  const auto options = parse_job({"--seconds", "1.5", "--kernel=20us", "--memory", "512Mi",
                                  "--pattern", "graph", "--threads", "3", "--queue", "5", "--check",
                                  "--fill", "--progress", "50ms", "--device", "1"});
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->length, 1500ms);
  EXPECT_EQ(options->kernel, 20us);
  EXPECT_EQ(options->memory, mib(512));
  EXPECT_EQ(options->pattern, Pattern::Graph);
  EXPECT_EQ(options->threads, 3);
  EXPECT_EQ(options->queue, 5);
  EXPECT_EQ(options->device, 1);
  EXPECT_EQ(options->progress, 50ms);
  EXPECT_TRUE(options->check);
  EXPECT_TRUE(options->fill);
  EXPECT_FALSE(options->quiet);
}

TEST(JobOptions, ATimeMayHaveItsUnit) {
  EXPECT_EQ(parse_job({"--seconds", "250ms"})->length, 250ms);
  EXPECT_EQ(parse_job({"--kernel", "0ns"})->kernel, 0ns);
}

TEST(JobOptions, WhatIsWrongIsSaidInOneLine) {
  EXPECT_EQ(error_of({"--sconds", "1"}), "--sconds: no such option (see --help)");
  EXPECT_EQ(error_of({"--seconds"}), "--seconds: S is missing");
  EXPECT_EQ(error_of({"--check=yes"}), "--check: takes no value");
  EXPECT_EQ(
      error_of({"--pattern", "slow"}),
      "--pattern: 'slow' is none of saturate, bursty, sync, graph, copy, memset, train, infer");
  EXPECT_EQ(error_of({"--streams", "2", "--per-thread-stream"}),
            "--streams and --per-thread-stream: only one of the two");
  for (const auto& [name, value] : {std::pair{"--seconds", "0"},
                                    {"--seconds", "-1"},
                                    {"--kernel", "5"},
                                    {"--memory", "lots"},
                                    {"--threads", "0"},
                                    {"--queue", "0"},
                                    {"--launches", "0"},
                                    {"--progress", "1us"}}) {
    EXPECT_NE(error_of({name, value}), "") << name << " " << value;
  }
}

TEST(JobOptions, WhoUsesItsMemoryHasSomeAndUsesItFromOneThread) {
  for (const std::string pattern : {"train", "infer"}) {
    EXPECT_EQ(error_of({"--pattern", pattern}), "--pattern " + pattern + ": needs --memory");
    EXPECT_EQ(error_of({"--pattern", pattern, "--memory", "1Gi", "--threads", "2"}),
              "--pattern " + pattern + ": one thread and one stream");
    EXPECT_EQ(error_of({"--pattern", pattern, "--memory", "1Gi"}), "");
  }
}

TEST(JobOptions, TheThreadsOwnStreamIsTheOnlyOne) {
  EXPECT_EQ(parse_job({"--per-thread-stream"})->streams, 0);
}

}  // namespace
}  // namespace nvshare::programs
