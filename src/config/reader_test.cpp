#include "config/reader.h"

#include <gtest/gtest.h>

namespace nvshare::config {
namespace {

Value text(const char* content, Place place) {
  Value value;
  value.kind = Kind::Text;
  value.place = place;
  value.text = content;
  return value;
}

Value integer(std::int64_t content, Place place) {
  Value value;
  value.kind = Kind::Integer;
  value.place = place;
  value.integer = content;
  return value;
}

// cores = 40 / memory = "4Gi" / at = "10ms" / kind = "fine", one to a line.
Value sample() {
  Value table;
  table.place = {1, 1};
  table.entries.push_back({"cores", {2, 1}, integer(40, {2, 9})});
  table.entries.push_back({"memory", {3, 1}, text("4Gi", {3, 10})});
  table.entries.push_back({"at", {4, 1}, text("10ms", {4, 6})});
  table.entries.push_back({"kind", {5, 1}, text("fine", {5, 8})});
  return table;
}

class ReaderTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines() const { return problems_.lines(); }

  Value table_ = sample();
  Problems problems_{"s.toml"};
  TableReader reader_{table_, "client", problems_};
};

TEST_F(ReaderTest, ReadsWhatIsThere) {
  EXPECT_EQ(reader_.integer("cores", 1, 100), 40);
  EXPECT_EQ(reader_.bytes("memory", Bytes{0}, gib(8)), gib(4));
  EXPECT_EQ(reader_.duration("at", 0s, 1h), 10ms);
  EXPECT_EQ(reader_.choice<int>("kind", {{"bursty", 1}, {"fine", 2}}), 2);
  EXPECT_EQ(reader_.text("name"), std::nullopt);
  reader_.finish();
  EXPECT_TRUE(problems_.empty());
}

TEST_F(ReaderTest, ReportsWrongTypesAtTheValue) {
  EXPECT_EQ(reader_.text("cores"), std::nullopt);
  EXPECT_EQ(reader_.boolean("memory"), std::nullopt);
  EXPECT_EQ(reader_.duration("cores", 0s, 1s), std::nullopt);
  EXPECT_TRUE(reader_.tables("at").empty());
  EXPECT_EQ(lines(), (std::vector<std::string>{
                         "s.toml:2:9: client.cores: is a whole number, not a text",
                         "s.toml:2:9: client.cores: is a whole number, not a text such as \"10ms\"",
                         "s.toml:3:10: client.memory: is a text, not true or false",
                         "s.toml:4:6: client.at: is a text, not a list of tables",
                     }));
}

TEST_F(ReaderTest, ReportsRangesAndUnits) {
  EXPECT_EQ(reader_.integer("cores", 50, 100), std::nullopt);
  EXPECT_EQ(reader_.duration("memory", 0s, 1s), std::nullopt);
  EXPECT_EQ(reader_.duration("at", 1s, 2s), std::nullopt);
  EXPECT_EQ(reader_.choice<int>("kind", {{"bursty", 1}, {"idle", 2}}), std::nullopt);
  EXPECT_EQ(lines(),
            (std::vector<std::string>{
                "s.toml:2:9: client.cores: 40 is not from 50 to 100",
                "s.toml:3:10: client.memory: '4Gi' has no known unit (examples: 10ms, 2s, 1h)",
                "s.toml:4:6: client.at: 10.0ms is not from 1.00s to 2.00s",
                "s.toml:5:8: client.kind: 'fine' is not one of bursty, idle",
            }));
}

TEST_F(ReaderTest, FindsUnknownKeysAndGuessesWhatWasMeant) {
  reader_.integer("core", 1, 100);
  reader_.find("memory");
  reader_.find("at");
  reader_.finish();
  EXPECT_EQ(lines(), (std::vector<std::string>{
                         "s.toml:2:1: client.cores: unknown key; did you mean 'core'?",
                         "s.toml:5:1: client.kind: unknown key (known: core, memory, at)",
                     }));
}

TEST_F(ReaderTest, PutsMissingKeysAtTheTable) {
  reader_.missing("name", "each client needs one");
  EXPECT_EQ(
      lines(),
      (std::vector<std::string>{"s.toml:1:1: client.name: is missing: each client needs one"}));
}

TEST(TableReader, RefusesWhatIsNoTable) {
  Problems problems("s.toml");
  const Value value = integer(3, {7, 4});
  TableReader reader(value, "client", problems);
  EXPECT_EQ(reader.text("name"), std::nullopt);
  reader.finish();
  EXPECT_EQ(problems.lines(),
            (std::vector<std::string>{"s.toml:7:4: client: is a whole number, not a table"}));
}

}  // namespace
}  // namespace nvshare::config
