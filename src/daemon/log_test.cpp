#include "daemon/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/unique_fd.h"

namespace nvshare::daemon {
namespace {

struct Lines {
  std::vector<std::string> all;
  Log log{Level::Info, [this](std::string_view line) { all.emplace_back(line); }};
};

TEST(Log, WritesKeysAndValues) {
  Lines t;
  t.log.info("client_registered", {{"client", 3}, {"tenant", "train"}, {"why", "two words"}});
  ASSERT_EQ(t.all.size(), 1u);
  EXPECT_EQ(t.all[0],
            "level=info event=client_registered client=3 tenant=train why=\"two words\"\n");
}

TEST(Log, AValueCannotForgeALine) {
  EXPECT_EQ(logfmt_value("a\nlevel=error event=x"), "\"a\\nlevel=error event=x\"");
  EXPECT_EQ(logfmt_value("say \"hi\" \\ \x1b"), "\"say \\\"hi\\\" \\\\ \\x1b\"");
  EXPECT_EQ(logfmt_value(""), "\"\"");
  EXPECT_EQ(logfmt_value("a=b"), "\"a=b\"");
  Lines t;
  t.log.info("x", {{"long", std::string(100'000, 'y')}});
  EXPECT_LE(t.all.at(0).size(), Log::kLongestLine);
  EXPECT_EQ(t.all[0].back(), '\n');
}

TEST(Log, KeepsToItsLevel) {
  Lines t;
  t.log.set_level(Level::Error);
  t.log.warn("a");
  EXPECT_TRUE(t.all.empty());
  t.log.error("a");
  EXPECT_EQ(t.all.size(), 1u);
  for (const char* name : {"info", "warning", "error"}) {
    EXPECT_EQ(name_of(*level_by_name(name)), name);
  }
  EXPECT_FALSE(level_by_name("loud"));
}

TEST(Log, AFloodIsBoundedAndCounted) {
  Lines t;
  for (int i = 0; i < 1000; ++i) t.log.warn("flood");
  t.log.warn("other");
  EXPECT_EQ(t.all.size(), static_cast<std::size_t>(Log::kLinesPerSecond) + 1);
  t.log.set_time(Time{2s});
  t.log.warn("flood");
  EXPECT_EQ(t.all.back(), "level=warning event=flood suppressed=" +
                              std::to_string(1000 - Log::kLinesPerSecond) + "\n");
  t.log.warn("flood");
  EXPECT_EQ(t.all.back(), "level=warning event=flood\n");
}

TEST(Log, ALineBeginsWithTheTime) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd reader(fds[0]);
  const UniqueFd writer(fds[1]);
  write_to(writer.get())("level=info event=started\n");
  char line[200]{};
  ASSERT_GT(::read(reader.get(), line, sizeof line - 1), 0);
  std::string shape(line);
  std::replace_if(
      shape.begin(), shape.end(), [](char c) { return c >= '0' && c <= '9'; }, '0');
  EXPECT_EQ(shape, "time=0000-00-00T00:00:00.000000Z level=info event=started\n") << line;
}

TEST(Log, AReaderThatDoesNotReadDoesNotBlockIt) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd reader(fds[0]);
  const UniqueFd writer(fds[1]);
  const Log::Sink sink = write_to(writer.get());
  for (int i = 0; i < 10'000; ++i) sink(std::string(1000, 'x'));
  SUCCEED();
}

}  // namespace
}  // namespace nvshare::daemon
