#include "sim/render.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/timeline.h"

namespace nvshare::sim {
namespace {

using Json = nlohmann::json;

Scenario two_clients() {
  Scenario scenario;
  scenario.name = "pair";
  scenario.about = "A and B";
  scenario.clients.resize(2);
  scenario.clients[0].name = "A";
  scenario.clients[0].limits.core_percent = 40;
  scenario.clients[1].name = "B";
  scenario.clients[1].arrives = 500ms;
  return scenario;
}

Report made_up(core::ComputePolicy policy = core::ComputePolicy::Weighted) {
  Report report;
  report.scenario = "pair";
  report.policy = policy;
  report.lasted = 2s;
  report.events = 17;
  report.clients.resize(2);
  ClientReport& a = report.clients[0];
  a.name = "A";
  a.run = 1250ms;
  a.gpu_time = 750ms + 500us;
  a.wait = 321ms;
  a.longest_wait = 123ms;
  a.share_percent = 37.5;
  a.first_throttle = Time{1250ms};
  a.moved_in = gib(3);
  a.moved_out = gib(2);
  a.switches = 4;
  a.spans = {{Time{}, Time{1250ms}}};
  ClientReport& b = report.clients[1];
  b.name = "B";
  b.tenant = 1;
  b.gpu = 0;
  b.run = 250ms;
  b.gpu_time = 250ms;
  b.share_percent = 12.5;
  b.finished = Time{1500ms};
  b.spans = {{Time{1250ms}, Time{1500ms}}};
  report.gpus = {{gib(16), 62.5, gib(7)}};
  return report;
}

// The pair with a service: B asks for leases.
Report with_service() {
  Report report = made_up();
  ServiceReport& b = report.services.emplace_back();
  b.name = "B";
  b.tenant = 1;
  b.task_class = "NMT";
  b.requests = 12;
  b.acquired = 9;
  b.timed_out = 2;
  b.skipped = 1;
  b.revoked = 4;
  b.asked_again = 5;
  b.fell_back = 3;
  b.given_up = 6;
  b.queue_full = 7;
  b.wait_p50 = 1ms;
  b.wait_p99 = 20ms;
  b.wait_max = 300ms;
  b.leases = {{Time{500ms}, Time{1s}}};
  PressureReport& pressure = report.gpus[0].pressure;
  pressure.high = 500ms;
  pressure.unknown = 100ms;
  pressure.raised = 250ms;
  pressure.times_high = 2;
  pressure.spans = {{{Time{}, Time{100ms}}, core::Admission::Unknown, false},
                    {{Time{100ms}, Time{1s}}, core::Admission::Normal, false},
                    {{Time{1s}, Time{1500ms}}, core::Admission::High, false},
                    {{Time{1500ms}, Time{1750ms}}, core::Admission::Normal, true}};
  return report;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ToJson, HasEveryFieldExactly) {
  const Json json = Json::parse(to_json(two_clients(), {made_up()}));
  const Json expected = {{"scenario", "pair"},
                         {"policy", "weighted"},
                         {"lasted_ms", 2000.0},
                         {"utilization_percent", 62.5},
                         {"events", 17},
                         {"clients",
                          {{{"name", "A"},
                            {"tenant", "A"},
                            {"gpu", 0},
                            {"asked_percent", 40},
                            {"share_percent", 37.5},
                            {"run_ms", 1250.0},
                            {"gpu_ms", 750.5},
                            {"wait_ms", 321.0},
                            {"longest_wait_ms", 123.0},
                            {"first_throttle_ms", 1250.0},
                            {"finished_ms", nullptr},
                            {"moved_in_bytes", 3221225472},
                            {"moved_out_bytes", 2147483648},
                            {"switches", 4}},
                           {{"name", "B"},
                            {"tenant", "B"},
                            {"gpu", 0},
                            {"asked_percent", 100},
                            {"share_percent", 12.5},
                            {"run_ms", 250.0},
                            {"gpu_ms", 250.0},
                            {"wait_ms", 0.0},
                            {"longest_wait_ms", 0.0},
                            {"first_throttle_ms", nullptr},
                            {"finished_ms", 1500.0},
                            {"moved_in_bytes", 0},
                            {"moved_out_bytes", 0},
                            {"switches", 0}}}},
                         {"gpus",
                          {{{"memory_bytes", 17179869184},
                            {"utilization_percent", 62.5},
                            {"highest_resident_bytes", 7516192768},
                            {"highest_swapped_bytes", 0}}}}};
  EXPECT_EQ(json, expected) << json.dump(2);
}

TEST(ToJson, PutsSeveralPoliciesUnderTheirNames) {
  const Json json =
      Json::parse(to_json(two_clients(), {made_up(), made_up(core::ComputePolicy::Fair)}));
  EXPECT_EQ(json["scenario"], "pair");
  ASSERT_EQ(json["policies"].size(), 2u);
  EXPECT_EQ(json["policies"]["fair"]["policy"], "fair");
  EXPECT_EQ(json["policies"]["weighted"]["clients"][0]["run_ms"], 1250.0);
  EXPECT_FALSE(json.contains("clients"));
}

TEST(ToJson, SurvivesANameThatIsNotUtf8) {
  Scenario scenario = two_clients();
  scenario.name = "\xff\xfe";
  EXPECT_NO_THROW(Json::parse(to_json(scenario, {made_up()})));
}

TEST(ToTable, IsWhatPeopleRead) {
  EXPECT_EQ(
      to_table(two_clients(), {made_up()}),
      "pair\n"
      "A and B\n"
      "\n"
      "policy weighted: GPU busy 62.5 %, played 2000 ms, moved 5GiB (times in ms)\n"
      "  client     asked   share   run  gpu  wait  longest  throttled  finished  moved in  "
      "moved out\n"
      "  A           40 %  37.5 %  1250  750   321      123       1250         -      3GiB  "
      "     2GiB\n"
      "  B       no limit  12.5 %   250  250     0        0          -      1500        0B  "
      "       0B\n"
      "  A |██████████████████████████████████████████████████······························|\n"
      "  B |                    ······························██████████                    |\n"
      "    0                                                                          2000 ms\n"
      "\n"
      "  █▓▒░ holds the GPU all or part of the time   · there, but not on the GPU\n");
}

TEST(ToJson, HasWhatBecameOfServices) {
  const Json json = Json::parse(to_json(two_clients(), {with_service()}));
  EXPECT_EQ(json["services"], Json({{{"name", "B"},
                                     {"class", "NMT"},
                                     {"requests", 12},
                                     {"acquired", 9},
                                     {"timed_out", 2},
                                     {"skipped", 1},
                                     {"queue_full", 7},
                                     {"revoked", 4},
                                     {"asked_again", 5},
                                     {"fell_back", 3},
                                     {"given_up", 6},
                                     {"wait_p50_ms", 1.0},
                                     {"wait_p99_ms", 20.0},
                                     {"longest_wait_ms", 300.0}}}));
  const Json& gpu = json["gpus"][0];
  EXPECT_EQ(gpu["high_pressure_ms"], 500.0);
  EXPECT_EQ(gpu["times_high_pressure"], 2);
  EXPECT_EQ(gpu["raised_marks_ms"], 250.0);
  EXPECT_EQ(gpu["unknown_usage_ms"], 100.0);
}

TEST(ToTable, ShowsServicesAndThePressure) {
  const std::string table = to_table(two_clients(), {with_service()});
  EXPECT_TRUE(contains(
      table,
      "  service  class  requests  acquired  timed out  skipped  fell back  queue full  revoked  "
      "again  wait p50     p99  longest\n"
      "  B          NMT        12         9          2        1          3           7        4  "
      "    5     1.0ms  20.0ms  300.0ms\n"
      "  pressure    high  times  raised  unknown\n"
      "  GPU 0     25.0 %      2  12.5 %    5.0 %\n"))
      << table;
  EXPECT_TRUE(contains(
      table,
      "  B leases       |                    "
      "████████████████████········································|\n"
      "  GPU 0 pressure "
      "|????····································HHHHHHHHHHHHHHHHHHHH^^^^^^^^^^··········|\n"))
      << table;
  EXPECT_TRUE(contains(table, "H high, ^ marks are raised, ? usage unknown\n"));
}

TEST(ToTable, LeavesOutWhatNoServiceHas) {
  Report report = with_service();
  report.services[0].queue_full = report.services[0].revoked = 0;
  report.services[0].asked_again = 0;
  EXPECT_TRUE(contains(to_table(two_clients(), {report}), "skipped  fell back  wait p50"));
}

TEST(ToTable, ComparesSeveralPolicies) {
  const std::string table =
      to_table(two_clients(), {made_up(), made_up(core::ComputePolicy::Fair)});
  EXPECT_TRUE(contains(table,
                       "  policy    A run ms  B run ms  GPU busy  played ms  moved\n"
                       "  weighted      1250       250    62.5 %       2000   5GiB\n"
                       "  fair          1250       250    62.5 %       2000   5GiB\n"))
      << table;
  EXPECT_TRUE(contains(table, "policy fair:")) << table;
}

TEST(ToTable, OnlyComparesWithoutSpans) {
  Report report = made_up();
  for (ClientReport& client : report.clients) client.spans.clear();
  const std::string several = to_table(two_clients(), {report, report});
  EXPECT_TRUE(contains(several, "GPU busy  played ms")) << several;
  EXPECT_FALSE(contains(several, "policy weighted:")) << several;
  const std::string one = to_table(two_clients(), {report});
  EXPECT_TRUE(contains(one, "policy weighted:")) << one;
  EXPECT_FALSE(contains(one, "|")) << one;
}

TEST(ToTable, CountsClientsItHasNoRoomFor) {
  Report report = made_up();
  report.clients.resize(1000, report.clients[1]);
  const std::string table = to_table(two_clients(), {report});
  EXPECT_TRUE(contains(table, "and 960 more")) << table;
  EXPECT_LT(std::count(table.begin(), table.end(), '\n'), 100);
}

// Tags are closed in the order they were opened; nothing else of XML is used.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while ((at = xml.find('<', at)) != std::string::npos) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return false;
    at = end;
    if (tag.back() == '/') continue;
    if (tag.front() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty() && !contains(xml, "& ");
}

TEST(ToSvg, ShowsServicesAndThePressure) {
  const std::string without = to_svg(two_clients(), {made_up()});
  EXPECT_FALSE(contains(without, "pressure"));
  Report report = with_service();
  report.services[0].name = "<B>";
  const std::string svg = to_svg(two_clients(), {report});
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_TRUE(contains(svg, "&lt;B&gt; leases"));
  EXPECT_TRUE(contains(svg, "9 of 12"));
  EXPECT_TRUE(contains(svg, "GPU 0 pressure"));
  for (const char* style : {"high", "raised", "unknown"}) {
    EXPECT_TRUE(contains(svg, std::string("class=\"") + style + "\"")) << style;
  }
}

TEST(ToSvg, IsWellFormedAndEscapesNames) {
  Scenario scenario = two_clients();
  scenario.name = "<b> & \"x\"";
  scenario.about = "1 < 2 & 3 > 2\x01";
  Report report = made_up();
  report.clients[0].name = "<A&B>";
  const std::string svg = to_svg(scenario, {report, made_up(core::ComputePolicy::Fair)});
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_TRUE(contains(svg, "&lt;A&amp;B&gt;"));
  EXPECT_TRUE(contains(svg, "<title>&lt;b&gt; &amp; &quot;x&quot;</title>"));
  EXPECT_FALSE(contains(svg, "\x01"));
  EXPECT_TRUE(contains(svg, ">weighted<"));
  EXPECT_TRUE(contains(svg, ">fair<"));
  EXPECT_TRUE(contains(svg, ">40 %<"));
  EXPECT_TRUE(contains(svg, ">37.5 %<"));
  EXPECT_TRUE(contains(svg, ">2000ms<"));
}

TEST(ToSvg, StaysSmallWithManySpans) {
  Report report = made_up();
  report.clients[0].spans.clear();
  for (int i = 0; i < 200'000; ++i) {
    report.clients[0].spans.push_back({Time{i * 10us}, Time{i * 10us + 5us}});
  }
  const std::string svg = to_svg(two_clients(), {report});
  EXPECT_LT(svg.size(), 50'000u);
  EXPECT_TRUE(contains(svg, "opacity=\"0.50\"")) << "half of the time";
}

TEST(ToSvg, TakesAnEmptyReport) {
  EXPECT_TRUE(well_formed(to_svg(Scenario{}, {Report{}})));
  EXPECT_FALSE(to_table(Scenario{}, {Report{}}).empty());
}

TEST(Timeline, CoverageIsThePartOfEachBucket) {
  const std::vector<Span> spans{{Time{100ms}, Time{350ms}}, {Time{390ms}, Time{400ms}}};
  const auto covered = coverage(spans, 400ms, 4);
  ASSERT_EQ(covered.size(), 4u);
  EXPECT_NEAR(covered[0], 0.0, 1e-9);
  EXPECT_NEAR(covered[1], 1.0, 1e-9);
  EXPECT_NEAR(covered[2], 1.0, 1e-9);
  EXPECT_NEAR(covered[3], 0.6, 1e-9);
}

TEST(Timeline, AxisStepsAreRound) {
  EXPECT_EQ(axis_step(2s, 10), 200ms);
  EXPECT_EQ(axis_step(2200ms, 10), 500ms);
  EXPECT_EQ(axis_step(10min, 10), 1min);
  EXPECT_EQ(axis_step(366 * 24h, 10), 1536h);
  EXPECT_EQ(axis_label(1500ms, 500ms), "1500ms");
  EXPECT_EQ(axis_label(4h, 2h), "4h");
}

}  // namespace
}  // namespace nvshare::sim
