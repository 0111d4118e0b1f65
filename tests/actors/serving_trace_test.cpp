// What a serving side's trace says of its requests, steps and lost devices.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "core/json.hpp"
#include "tests/actors/serving_fixture.hpp"

namespace troupe {
namespace {

class serving_trace_test : public test::serving_test {
 protected:
  void SetUp() override {
    serving_test::SetUp();
    path_ = std::filesystem::temp_directory_path() / ("serving_trace_" + std::to_string(::getpid()) + ".json");
    timeline = std::make_shared<telemetry::timeline>(path_);
  }
  void TearDown() override {
    serving_test::TearDown();
    timeline.reset();
    std::filesystem::remove(path_);
  }

  // Events by kind, "b:queued" and the like for phases; tracks' names apart.
  std::map<std::string, std::vector<value>> events() {
    server->stop();
    timeline->describe(); // flushes
    std::ifstream file(path_, std::ios::binary);
    const auto whole = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    std::map<std::string, std::vector<value>> out;
    if (!whole) return out;
    for (const value& e : whole->find("traceEvents")->as_array()) {
      const std::string kind = e.find("ph")->as_string();
      if (kind != "M") out[kind + ":" + e.find("name")->as_string()].push_back(e);
    }
    return out;
  }

  std::filesystem::path path_;
};

TEST_F(serving_trace_test, every_request_has_its_phases_and_every_step_its_stages) {
  options.prefix_caching = false; // each prompt is computed whole
  start();
  for (int i = 0; i < 12; ++i) submit(request("prompt " + std::to_string(i), 20));
  for (const auto& sink : sinks) ASSERT_TRUE(sink->wait());
  expect_idle();
  auto trace = events();
  for (const char* phase : {"queued", "prefill", "decode"}) {
    EXPECT_EQ(trace[std::string("b:") + phase].size(), 12U) << phase;
    EXPECT_EQ(trace[std::string("e:") + phase].size(), 12U) << phase;
  }
  const std::size_t steps = trace["X:prefill"].size() + trace["X:decode"].size() + trace["X:decode + prefill"].size();
  EXPECT_GE(steps, 20U);
  EXPECT_EQ(trace["X:prepare"].size(), steps);
  EXPECT_EQ(trace["X:deliver"].size(), steps);
  std::int64_t prompt_tokens = 0, rows = 0;
  for (const auto& [name, list] : trace) {
    if (!name.starts_with("X:")) continue;
    for (const value& e : list) {
      if (const value* args = e.find("args"); args && args->find("decode_rows")) {
        rows += args->find("decode_rows")->as_int();
        prompt_tokens += args->find("prefill_tokens")->as_int();
      }
    }
  }
  std::int64_t prompts = 0, outputs = 0;
  for (const auto& sink : sinks) {
    prompts += sink->usage->prompt_tokens;
    outputs += sink->usage->completion_tokens;
  }
  EXPECT_EQ(prompt_tokens, prompts);
  EXPECT_GE(rows, outputs - 12); // the first output comes from the prefill; rows planned ahead of an end are there too
}

TEST_F(serving_trace_test, ends_say_how_and_a_lost_device_is_marked) {
  faults->fail_at = 5;
  start();
  auto whole = submit(request("lost on the way", 30));
  ASSERT_TRUE(whole->wait());
  faults->close_gate();
  auto cancelled = submit(request("never scheduled to the end", 30));
  server->cancel(last_id);
  ASSERT_TRUE(cancelled->wait());
  faults->open_gate();
  auto trace = events();
  EXPECT_EQ(trace["i:device lost, epoch 2"].size(), 1U);
  EXPECT_EQ(trace["i:device up again, epoch 2"].size(), 1U);
  EXPECT_EQ(trace["n:finished: length"].size() + trace["n:finished: stop"].size(), 1U);
}

} // namespace
} // namespace troupe
