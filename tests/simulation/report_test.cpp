#include "simulation/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/json.hpp"

namespace troupe::simulation {
namespace {

sweep example() {
  sweep s;
  s.title = "a model & more";
  s.wanted = {100e6, 10e6};
  s.price_per_gpu_hour = 2;
  for (const std::int32_t nodes : {1, 2, 4}) {
    fleet_report r;
    r.nodes = nodes;
    r.gpus = nodes * 8;
    r.offered = 100;
    r.span_s = 10;
    r.busy = 0.5;
    for (int i = 0; i < 10 * nodes; ++i) r.total.finish(0, (i + 1) * 1e7, 1e9, 100, 51, s.wanted);
    r.total.itl.add(19e6, 500);
    s.points.push_back(r);
  }
  return s;
}

TEST(Outcomes, QuantilesAreExactToABucketAndGoodputToTheRequest) {
  const sweep s = example();
  const outcomes& t = s.points.back().total; // first tokens after 10, 20 .. 400 ms
  EXPECT_NEAR(t.ttft.quantile(0.5) / 1e6, 200, 4.4);
  EXPECT_NEAR(t.ttft.mean() / 1e6, 205, 1e-6);
  EXPECT_EQ(t.good, 0U); // 50 tokens after the first take more than 10 ms each
  outcomes o;
  o.finish(0, 99e6, 99e6 + 500e6, 10, 51, {100e6, 10e6}); // both met, the second exactly
  o.finish(0, 101e6, 200e6, 10, 51, {100e6, 10e6});
  o.finish(0, 50e6, 50e6, 10, 1, {100e6, 10e6}); // one token has no pace
  EXPECT_EQ(o.good, 2U);
  EXPECT_EQ(time_histogram().quantile(0.5), 0);
}

TEST(Report, TheTableHasARowForEachFleet) {
  const std::string text = text_report(example());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
  EXPECT_NE(text.find("cost/Mtok"), std::string::npos);
  sweep free = example();
  free.price_per_gpu_hour = 0;
  EXPECT_EQ(text_report(free).find("cost"), std::string::npos);
}

TEST(Report, JsonHasTheFigures) {
  const auto parsed = json::parse(json::dump(json_report(example())));
  ASSERT_TRUE(parsed);
  const auto& points = parsed->find("points")->as_array();
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[2].find("nodes")->as_int(), 4);
  EXPECT_EQ(points[2].find("requests_finished")->as_int(), 40);
  EXPECT_NEAR(points[2].find("output_tokens_per_second")->as_double(), 40 * 51 / 10.0, 1e-9);
  // 32 GPUs for 10 s at 2 an hour, over 40 x 151 tokens.
  EXPECT_NEAR(points[2].find("cost_per_million_tokens")->as_double(), 32 * 10.0 / 3600 * 2 / (40 * 151) * 1e6, 1e-9);
}

TEST(Report, ThePlotIsWellFormedAndDrawsEachCurve) {
  const std::string svg = svg_report(example());
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a model &amp; more"), std::string::npos);
  for (const char* name : {"output tokens/s", "proportional to nodes", "time to first token, p99"}) {
    EXPECT_NE(svg.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  sweep one = example();
  one.points.resize(1); // a single point, and curves without any
  one.points[0].total = {};
  EXPECT_EQ(svg_report(one).find("nan"), std::string::npos);
}

} // namespace
} // namespace troupe::simulation
