#include "config/document.h"

#include <gtest/gtest.h>

namespace nvshare::config {
namespace {

#if NVSHARE_HAVE_TOML

TEST(ParseToml, KeepsValuesAndTheirPlaces) {
  const auto root = parse_toml(
      "name = \"x\"\n"
      "list = [ 1, true ]\n"
      "[[client]]\n"
      "cores = 40\n",
      "s.toml");
  ASSERT_TRUE(root);
  ASSERT_EQ(root->entries.size(), 3u);  // by key
  const Entry& client = root->entries[0];
  EXPECT_EQ(client.key, "client");
  ASSERT_EQ(client.value.kind, Kind::Array);
  ASSERT_EQ(client.value.items.size(), 1u);
  EXPECT_EQ(client.value.items[0].place.line, 3);
  const Entry& cores = client.value.items[0].entries.at(0);
  EXPECT_EQ(cores.place.line, 4);
  EXPECT_EQ(cores.place.column, 1);
  EXPECT_EQ(cores.value.place.column, 9);
  EXPECT_EQ(cores.value.integer, 40);
  EXPECT_EQ(root->entries[1].value.items.at(1).kind, Kind::Boolean);
  EXPECT_EQ(root->entries[2].value.text, "x");
}

TEST(ParseToml, TellsWhereTheSyntaxIsWrong) {
  const auto root = parse_toml("name = \"x\"\ncores = \n", "s.toml");
  ASSERT_FALSE(root);
  EXPECT_EQ(root.error().message.rfind("s.toml:2:9: ", 0), 0u) << root.error().message;
}

TEST(ParseToml, RefusesTextThatIsNotUtf8) {
  EXPECT_FALSE(parse_toml("name = \"\xff\xfe\"\n", "s.toml"));
}

TEST(ParseToml, RefusesNestingWithoutEnd) {
  EXPECT_FALSE(parse_toml("a = " + std::string(100000, '['), "s.toml"));
}

// The library's own answer to these is undefined.
TEST(ParseToml, TakesEveryCharacterInQuotesAndRefusesOddOnesOutside) {
  EXPECT_FALSE(parse_toml("nam.\xef\xbb\xbe", "s.toml"));
  EXPECT_FALSE(parse_toml("a = 1 \xef\xb8\x8f\n", "s.toml"));
  EXPECT_FALSE(parse_toml("\xc8\x82", "s.toml"));
  const std::string text = "\xef\xac\xa6 \xe2\x9a\xa0\xef\xb8\x8f \xef\xbb\xbe \xef\xac\xa5";
  const auto root = parse_toml("a = \"" + text + "\"\n\"" + text + "\" = 1\n", "s.toml");
  ASSERT_TRUE(root) << root.error().message;
  ASSERT_EQ(root->entries.size(), 2u);
  EXPECT_EQ(root->entries[0].value.text, text);
  EXPECT_EQ(root->entries[1].key, text);
}

#else

TEST(ParseToml, SaysThatTheBuildHasNone) {
  EXPECT_EQ(parse_toml("a = 1", "s.toml").error().message,
            "s.toml: this build has no TOML support");
}

#endif

}  // namespace
}  // namespace nvshare::config
