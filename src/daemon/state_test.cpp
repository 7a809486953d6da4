#include "daemon/state.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

State sample() {
  State state;
  state.boot = "b00t";
  state.scheduling = false;
  state.settings = {{"turn", "9ms"}, {"log_level", "error"}};
  state.tenants = {
      {{TenantKind::User, "user-1000", 1000}, {40, gib(8), -2}, true, 1'700'000'000},
      {{TenantKind::Container, "container-3f2a", 5}, {{}, Bytes{0}, {}}, false, 3},
      {{TenantKind::Run, "train", 1000}, {60, {}, {}}, false, 4},
  };
  KeptRun run{"train", 1000, 4711, 123456789, "user-1000", "/nvshare/train"};
  run.limits = {25, gib(4), 1};
  run.backend = wire::Backend::Managed;
  run.flags = wire::kOversubscribeSelf;
  state.runs = {run, {"part", 1000, 4712, UINT64_MAX}};
  state.leases = {
      {"5f0c", "ASR", Uuid{1, 2}, 1000, 4713, 99, true, "call 7", 9s, Time{3s}, Time{33s}},
      {"5f0d", "NMT", Uuid{1, 2}, {}, 0, 0, false, "", {}, Time{4s}, Time{34s}}};
  return state;
}

TEST(State, WhatIsWrittenIsRead) {
  for (const State& state : {State{}, sample()}) {
    const auto again = parse_state(to_text(state));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, state);
  }
}

TEST(State, OfASchedulerWithoutLeasesIsRead) {
  const std::string whole = to_text(State{});
  std::string body = whole.substr(whole.find('\n') + 1);
  const std::size_t at = body.find(",\n \"leases\": []");
  ASSERT_NE(at, body.npos) << body;
  body.erase(at, std::string(",\n \"leases\": []").size());
  const auto read = parse_state(sealed(body));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, State{});
}

TEST(State, TornAnywhereItIsNoState) {
  const std::string whole = to_text(sample());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ASSERT_FALSE(parse_state(whole.substr(0, length))) << length;
  }
  EXPECT_FALSE(parse_state(whole + "\n")) << "longer than it was";
}

TEST(State, DamagedAnywhereItIsNoState) {
  const std::string whole = to_text(sample());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    const auto read = parse_state(damaged);
    // The one number that says nothing about the rest may be smaller.
    if (read) {
      EXPECT_EQ(damaged.substr(0, 16), "nvshare-state 0 ") << at;
      EXPECT_EQ(*read, sample());
    }
  }
}

TEST(State, ALaterVersionIsNotGuessedAt) {
  std::string later = to_text(sample());
  later.replace(later.find(" 1 "), 3, " 2 ");
  const auto read = parse_state(later);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().message, "is of version 2, which this scheduler does not know");
}

TEST(State, ARecordThatMakesNoSenseIsLeftOutAlone) {
  const std::string good =
      R"({"boot":"","scheduling":true,"settings":{},"tenants":[{"kind":"user","name":"user-1",)"
      R"("uid":1,"limits":{"cores":5},"paused":false,"seen":1}],"runs":[{"name":"a","uid":1,)"
      R"("pid":7,"started":8,"parent":"","cgroup":"","limits":{"cores":1,"memory":0,)"
      R"("priority":0},"backend":0,"flags":0}],"news":[1]})";
  const auto whole = parse_state(sealed(good));
  ASSERT_TRUE(whole) << "a key that is not known is passed over";
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"\"cores\":5", "\"cores\":0"},
      {"\"cores\":5", "\"cores\":101"},
      {"\"cores\":5", "\"cores\":\"5\""},
      {"\"cores\":5", "\"cores\":5.5"},
      {"\"cores\":5", "\"cores\":-1e300"},
      {"\"cores\":5", "\"priority\":11"},
      {"\"cores\":5", "\"memory\":-1"},
      {"\"kind\":\"user\"", "\"kind\":\"planet\""},
      {"\"user-1\"", "\"\""},
      {"\"uid\":1", "\"uid\":-1"},
      {"\"uid\":1", "\"uid\":4294967296"},
      {"\"paused\":false", "\"paused\":0"},
      {"\"pid\":7", "\"pid\":0"},
      {"\"pid\":7", "\"pid\":18446744073709551615"},
      {"\"started\":8", "\"started\":-8"},
      {"\"started\":8", "\"stated\":8"},
      {"\"memory\":0,", ""},
      {"\"backend\":0", "\"backend\":99"},
      {"\"settings\":{}", "\"settings\":{\"turn\":5}"},
      {"\"runs\":[", "\"runs\":[5,"},
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    return parse_state(sealed(bad));
  };
  for (const auto& [from, to] : wrong) {
    const auto read = changed(from, to);
    ASSERT_TRUE(read) << to;
    EXPECT_EQ(read->left_out, 1) << to;
    const bool others = read->tenants == whole->tenants || read->runs == whole->runs;
    EXPECT_TRUE(others) << to;
  }
  EXPECT_FALSE(changed("\"settings\":{}", "\"settings\":[]"));
  EXPECT_FALSE(changed("\"scheduling\":true,", ""));
  EXPECT_FALSE(changed("{\"boot\"", "[{\"boot\""));
}

// A process may have any bytes in the path of its cgroup.
TEST(State, ATextThatIsTooLongHarmsNoOther) {
  State state = sample();
  state.runs.front().cgroup = std::string(5000, '\xff');
  const auto read = parse_state(to_text(state));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->left_out, 1);
  EXPECT_EQ(read->tenants, sample().tenants);
}

}  // namespace
}  // namespace nvshare::daemon
