#include "cli/program.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cli/testing/process.h"

namespace nvshare::cli {
namespace {

int echo(const Arguments& arguments, Streams streams) {
  streams.out << arguments.positionals().at(0) << "\n";
  return kFailed;
}

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome run(const std::vector<std::string>& words) {
  CommandSpec spec;
  spec.name = "echo";
  spec.summary = "Say it again";
  spec.positionals = {{"WORD", "what to say", true}};
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_program({{spec, echo}}, words, {out, err});
  return {code, out.str(), err.str()};
}

TEST(Program, RunsTheCommandAndPassesItsExitCodeOn) {
  const Outcome outcome = run({"echo", "hello"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(outcome.out, "hello\n");
}

TEST(Program, HelpsOnRequest) {
  EXPECT_EQ(run({"--help"}).code, kGood);
  EXPECT_NE(run({"--help"}).out.find("  echo  Say it again\n"), std::string::npos);
  EXPECT_EQ(run({"echo", "--help"}).code, kGood);
  EXPECT_NE(run({"echo", "--help"}).out.find("usage: nvshare echo"), std::string::npos);
  EXPECT_EQ(run({"--version"}).out.rfind("nvshare ", 0), 0u);
}

TEST(Program, HelpsAlsoWithoutTheDashes) {
  EXPECT_EQ(run({"help"}).code, kGood);
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "echo"}).code, kGood);
  EXPECT_EQ(run({"help", "echo"}).out, run({"echo", "--help"}).out);
  EXPECT_EQ(run({"version"}).code, kGood);
  EXPECT_EQ(run({"version"}).out, run({"--version"}).out);
  EXPECT_EQ(run({"echo", "help"}).out, "help\n") << "a command's own argument";
  EXPECT_EQ(run({"help", "ecko"}).code, kBadInput);
  EXPECT_EQ(run({"help", "ecko"}).err, run({"ecko"}).err);
  EXPECT_EQ(run({"help", "echo", "on"}).err,
            "nvshare: unexpected argument 'on' (see nvshare --help)\n");
  EXPECT_EQ(run({"version", "on"}).err, "nvshare: unexpected argument 'on' (see nvshare --help)\n");
  EXPECT_EQ(run({"hepl"}).err,
            "nvshare: unknown command 'hepl'; did you mean 'help'? (see nvshare --help)\n");
}

TEST(Program, AnswersMistakesInOneLine) {
  EXPECT_EQ(run({"ecko"}).code, kBadInput);
  EXPECT_EQ(run({"ecko"}).err,
            "nvshare: unknown command 'ecko'; did you mean 'echo'? (see nvshare --help)\n");
  EXPECT_EQ(run({"echo"}).err, "nvshare echo: WORD is missing (see nvshare echo --help)\n");
  EXPECT_EQ(run({"echo"}).code, kBadInput);
  EXPECT_EQ(run({"--quick"}).err, "nvshare: unknown option --quick (see nvshare --help)\n");
  EXPECT_EQ(run({}).code, kBadInput);
  EXPECT_EQ(run({}).out, "");
}

// The tests' own. A file of /proc cannot be read when its process has gone, though it is open.
TEST(Contents, OfAFileThatCannotBeReadAreEmpty) {
  EXPECT_EQ(testing::contents("/proc/self/mem"), "");
  EXPECT_EQ(testing::contents("/nowhere"), "");
}

}  // namespace
}  // namespace nvshare::cli
