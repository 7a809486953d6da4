#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/commands/commands.h"

namespace nvshare::cli {
namespace {

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome sim(std::vector<std::string> words) {
  words.insert(words.begin(), "sim");
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_program({sim_command()}, words, {out, err});
  return {code, out.str(), err.str()};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A file that is gone after the test.
class TempFile {
 public:
  explicit TempFile(const std::string& content = "") {
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" +
             std::to_string(::getpid()) + ".toml");
    std::ofstream(path_) << content;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }
  std::string content() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }

 private:
  std::filesystem::path path_;
};

TEST(SimCommand, ShowsABuiltInScenarioThatCanBePlayedFromAFile) {
  const Outcome shown = sim({"--show", "seed-000-1"});
  EXPECT_EQ(shown.code, kGood);
  EXPECT_TRUE(contains(shown.out, "[[client]]"));
#if NVSHARE_HAVE_TOML
  const TempFile file(shown.out);
  EXPECT_EQ(sim({file.path()}).out, sim({"seed-000-1"}).out);
#endif
}

TEST(SimCommand, AnswersBadUsage) {
  EXPECT_EQ(sim({}).code, kBadInput);
  EXPECT_TRUE(contains(sim({}).err, "SCENARIO is missing"));
  EXPECT_EQ(sim({"--show", "seed-000-7"}).code, kBadInput);
  EXPECT_TRUE(contains(sim({"--show", "seed-00-1"}).err, "did you mean 'seed-000-1'?"));
  EXPECT_EQ(sim({"/nowhere/at-all.toml"}).code, kBadInput);
  EXPECT_EQ(sim({"/nowhere/at-all.toml"}).err,
            "nvshare sim: neither a built-in scenario nor a file that can be read: "
            "'/nowhere/at-all.toml' (nvshare sim --list shows the built-in ones)\n");
  EXPECT_TRUE(contains(sim({"seed-00-1"}).err, "did you mean 'seed-000-1'? (nvshare sim --list"));
  EXPECT_EQ(sim({"/"}).code, kBadInput);
  EXPECT_EQ(sim({"--fast", "seed-000-1"}).code, kBadInput);
}

#if NVSHARE_HAVE_TOML

TEST(SimCommand, ListsTheBuiltInScenarios) {
  const Outcome listed = sim({"--list"});
  EXPECT_EQ(listed.code, kGood);
  EXPECT_TRUE(contains(listed.out, "seed-000-3.2 "));
  EXPECT_TRUE(contains(listed.out, "section 3.2"));
}

TEST(SimCommand, PlaysTheRequirementsTableUnderEachPolicy) {
  const Outcome played = sim({"seed-000-2", "--policy", "all"});
  EXPECT_EQ(played.code, kGood) << played.err;
  EXPECT_TRUE(contains(played.out,
                       "  policy       A run ms  B run ms  GPU busy  played ms\n"
                       "  wall             1000      1200    60.0 %       2000\n"
                       "  weighted         2000      2000   100.0 %       2000\n"))
      << played.out;
  EXPECT_TRUE(contains(played.out, "  coordinated       909      1091   100.0 %       2000\n"));
  EXPECT_TRUE(contains(played.out, "  dynamic          1000      1200   100.0 %       2200\n"));
}

TEST(SimCommand, WritesJsonAndSvg) {
  EXPECT_TRUE(contains(sim({"seed-000-3.2", "-f", "json"}).out, "\"first_throttle_ms\": 800.0"));
  const TempFile file;
  const Outcome written = sim({"seed-000-3.2", "--format=svg", "-o", file.path()});
  EXPECT_EQ(written.code, kGood) << written.err;
  EXPECT_EQ(written.out, "");
  EXPECT_EQ(file.content().rfind("<svg ", 0), 0u);
  const Outcome failed = sim({"seed-000-3.2", "-o", "/nowhere/at/all.svg"});
  EXPECT_EQ(failed.code, kFailed);
  EXPECT_TRUE(contains(failed.err, "/nowhere/at/all.svg"));
}

TEST(SimCommand, LastsReplacesEveryTimeOfTheScenario) {
  const Outcome played = sim({"seed-000-2", "--policy=dynamic,wall", "--lasts", "4s", "-fjson"});
  EXPECT_EQ(played.code, kGood) << played.err;
  EXPECT_TRUE(contains(played.out, "\"lasted_ms\": 4000.0"));
  EXPECT_FALSE(contains(played.out, "\"lasted_ms\": 2200.0"));
}

TEST(SimCommand, ListsEveryErrorAndPlaysNothing) {
  const TempFile file("lasts = \"soon\"\n[[client]]\nname = \"A\"\ncores = 0\n");
  const Outcome outcome =
      sim({file.path(), "--policy", "magic", "--format", "poem", "--lasts", "3"});
  EXPECT_EQ(outcome.code, kBadInput);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            file.path() + ":1:9: lasts: 'soon' is not a duration (examples: 10ms, 2s, 1h)\n" +
                file.path() +
                ":4:9: client.cores: 0 is not from 1 to 100\n"
                "nvshare sim: --policy: 'magic' is not one of all, wall, weighted, hybrid, "
                "coordinated, dynamic, fair, metered\n"
                "nvshare sim: --format: 'poem' is not one of table, json, svg\n"
                "nvshare sim: --lasts: '3' has no known unit (examples: 10ms, 2s, 1h)\n");
}

TEST(SimCommand, PlaysNothingOfAScenarioThatCannotHaveItsMemory) {
  const TempFile file("[[client]]\nname = \"A\"\nmemory_limit = \"1Gi\"\nmemory = \"2Gi\"\n");
  const Outcome outcome = sim({file.path()});
  EXPECT_EQ(outcome.code, kBadInput);
  EXPECT_EQ(outcome.err,
            file.path() + ":4:10: client.memory: 2GiB is more than its memory_limit of 1GiB\n");
}

// Where the core places them only playing can tell; two on one GPU are one too many.
TEST(SimCommand, SaysWhyTheCoreRefusesAScenario) {
  const TempFile file(
      "[config]\nreserve_per_process = \"4Gi\"\n[[gpu]]\ncount = 2\n"
      "[[client]]\nname = \"A\"\nmemory = \"10Gi\"\nprocesses = 3\n");
  const Outcome outcome = sim({file.path()});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_TRUE(contains(outcome.err, "client A/3 does not get its memory")) << outcome.err;
}

#endif

}  // namespace
}  // namespace nvshare::cli
