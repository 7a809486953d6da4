#include "config/options.h"

#include <gtest/gtest.h>

namespace nvshare::config {
namespace {

using Words = std::vector<std::string>;

CommandSpec spec() {
  CommandSpec one;
  one.name = "play";
  one.summary = "Play something";
  one.positionals = {{"WHAT", "what to play", true}, {"WHERE", "where", false}};
  one.options = {{"policy", 'p', "P", "the policy"}, {"list", 'l', "", "list them"}};
  one.more = "example: play it";
  return one;
}

std::string error_of(const Words& words) {
  const auto parsed = parse(spec(), words);
  return parsed ? "no error" : parsed.error().message;
}

TEST(Options, TakeValuesInEveryForm) {
  for (const Words& words : {Words{"--policy", "fair", "it"}, Words{"--policy=fair", "it"},
                             Words{"-p", "fair", "it"}, Words{"it", "-pfair"}}) {
    const auto parsed = parse(spec(), words);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->value("policy"), "fair");
    EXPECT_EQ(parsed->positionals(), Words{"it"});
    EXPECT_FALSE(parsed->has("list"));
    EXPECT_EQ(parsed->value("list"), std::nullopt);
  }
}

TEST(Options, LastOneCountsAndValuesMayLookLikeOptions) {
  const auto parsed = parse(spec(), {"-l", "--policy=a", "--policy", "--list", "it", "-"});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->value("policy"), "--list");
  EXPECT_TRUE(parsed->has("list"));
  EXPECT_EQ(parsed->positionals(), (Words{"it", "-"}));
  EXPECT_EQ(parse(spec(), {"it", "--policy="})->value("policy"), "");
}

TEST(Options, EndAtTwoDashes) {
  const auto parsed = parse(spec(), {"--", "--policy", "-x"});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->positionals(), (Words{"--policy", "-x"}));
}

TEST(Options, SayInOneLineWhatIsWrong) {
  EXPECT_EQ(error_of({"--polcy", "fair"}), "unknown option --polcy; did you mean '--policy'?");
  EXPECT_EQ(error_of({"--colour=red"}), "unknown option --colour");
  EXPECT_EQ(error_of({"-x"}), "unknown option -x");
  EXPECT_EQ(error_of({"it", "--policy"}), "--policy needs a value: P");
  EXPECT_EQ(error_of({"it", "--list=3"}), "--list takes no value");
  EXPECT_EQ(error_of({"it", "-l3"}), "-l takes no value");
  EXPECT_EQ(error_of({}), "WHAT is missing");
  EXPECT_EQ(error_of({"a", "b", "c"}), "unexpected argument 'c'");
}

TEST(Options, HelpNeedsNothingElse) {
  const auto parsed = parse(spec(), {"--help"});
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->has("help"));
}

TEST(Options, LeaveAProgramItsOwnOptions) {
  CommandSpec run = spec();
  run.takes_program = true;
  const auto parsed = parse(run, {"--policy", "fair", "python", "--list", "-x", "--", "y"});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->value("policy"), "fair");
  EXPECT_FALSE(parsed->has("list"));
  EXPECT_EQ(parsed->positionals(), (Words{"python", "--list", "-x", "--", "y"}));
}

TEST(Options, WriteTheHelp) {
  EXPECT_EQ(help_of("nvshare", spec()),
            "usage: nvshare play [options] WHAT [WHERE]\n"
            "\n"
            "Play something.\n"
            "\n"
            "  WHAT            what to play\n"
            "  WHERE           where\n"
            "\n"
            "options:\n"
            "  -p, --policy P  the policy\n"
            "  -l, --list      list them\n"
            "  -h, --help      this text\n"
            "\n"
            "example: play it\n");
}

}  // namespace
}  // namespace nvshare::config
