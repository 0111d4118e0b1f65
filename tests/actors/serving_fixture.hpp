// A serving side over the fake device, sinks that check the rules of token_sink, and the stream each request must give.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/serving.hpp"
#include "tests/actors/fake_device.hpp"
#include "tests/actors/fake_tokenizer.hpp"
#include "tests/eventually.hpp"

namespace troupe::test {

using namespace std::chrono_literals;

class recording_sink final : public token_sink {
 public:
  struct choice {
    std::string text;
    std::vector<token_id> tokens;
    std::vector<position_logprobs> logprobs;
    std::optional<finish_reason> finish;
    std::string stop_reason;
  };

  void on_prompt(const prompt_report& report) override {
    call([&] {
      for (std::int32_t i = 0; i < n; ++i) note(choices[report.prompt_index * n + i].tokens.empty(), "a prompt report after its output");
      prompts.push_back(report);
    });
  }
  void on_output(const output_chunk& chunk) override {
    call([&] {
      choice& c = choices[chunk.index];
      note(!c.finish, "a chunk after the choice's last");
      c.text += chunk.text;
      c.tokens.insert(c.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
      c.logprobs.insert(c.logprobs.end(), chunk.logprobs.begin(), chunk.logprobs.end());
      c.finish = chunk.finish;
      c.stop_reason = chunk.stop_reason;
      ++outputs;
    });
  }
  void on_finished(const usage_report& report) override {
    call([&] { usage = report; }, true);
  }
  void on_error(const error& failure) override {
    call([&] { failed = failure; }, true);
  }

  // True once the last call was made.
  bool wait(std::chrono::milliseconds limit = kPatience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return ended_; });
  }
  bool wait_for_outputs(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(kPatience), [&] { return ended_ || outputs >= count; });
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  std::string violation() {
    const std::lock_guard lock(mutex_);
    return violation_;
  }

  // Read after wait().
  std::int32_t n = 1;
  std::vector<prompt_report> prompts;
  std::map<std::int32_t, choice> choices;
  std::optional<usage_report> usage;
  std::optional<error> failed;
  int outputs = 0;

 private:
  template <class F>
  void call(F body, bool last = false) {
    const bool alone = !inside_.exchange(true);
    const std::lock_guard lock(mutex_);
    note(alone, "two calls at once");
    note(!ended_, "a call after the last");
    body();
    ended_ = ended_ || last;
    inside_ = false;
    changed_.notify_all();
  }
  void note(bool holds, const char* what) {
    if (!holds) violation_ = what;
  }

  std::atomic<bool> inside_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::string violation_;
};

class serving_test : public ::testing::Test {
 protected:
  void SetUp() override {
    options.served_names = {"fake"};
    options.created = 1;
    options.eos_tokens = {kEos};
  }

  void TearDown() override {
    faults->open_gate();
    tokens->open_gate();
    for (const auto& sink : sinks) EXPECT_EQ(sink->violation(), "");
    if (server == nullptr) return;
    server->stop();
    for (const auto& sink : sinks) EXPECT_TRUE(sink->ended()) << "a request without an end";
    EXPECT_EQ(server->active_requests(), 0U);
  }

  void start() {
    actors::serving_parts parts;
    parts.tokens = tokens;
    parts.templates = templates;
    parts.make_executor = [info = device, f = faults](const actors::rank_start&, const actors::publish_rendezvous&) {
      return std::make_unique<fake_device>(info, f);
    };
    parts.metrics = metrics;
    parts.timeline = timeline;
    server = actors::serving::start(options, std::move(parts));
  }

  generation_request request(prompt text, std::optional<std::int32_t> max_tokens = 16) {
    generation_request r;
    r.id = ++last_id;
    r.model = "fake";
    r.prompts = {std::move(text)};
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    return r;
  }

  std::shared_ptr<recording_sink> submit(generation_request r) {
    auto sink = std::make_shared<recording_sink>();
    sink->n = r.n;
    sinks.push_back(sink);
    server->submit(std::move(r), sink);
    return sink;
  }

  // What choice i of this text must say, its stop strings left aside.
  std::string expected_text(const std::string& text, std::int32_t max_tokens, std::int32_t i = 0, const sampling_params* sampling = nullptr,
                            std::int32_t min_tokens = 0) const {
    sampling_params p;
    p.temperature = 0;
    if (sampling != nullptr) p = *sampling;
    p.seed += static_cast<std::uint64_t>(i);
    p.min_tokens = min_tokens;
    p.suppressed = {kEos};
    stop_conditions stop;
    stop.max_tokens = max_tokens;
    stop.min_tokens = min_tokens;
    stop.stop_token_ids = {kEos};
    std::vector<token_id> prefix;
    for (const char c : text) prefix.push_back(static_cast<unsigned char>(c));
    std::string out;
    for (const token_id t : expected_tokens(prefix, p, stop)) out += static_cast<char>(t);
    return out;
  }

  void expect_stream(recording_sink& sink, const std::string& text, std::int32_t max_tokens, std::int32_t min_tokens = 0) {
    ASSERT_TRUE(sink.wait()) << "no end";
    ASSERT_FALSE(sink.failed) << sink.failed->message;
    EXPECT_EQ(sink.choices[0].text, expected_text(text, max_tokens, 0, nullptr, min_tokens));
  }

  // Value of a series, found by its name and one label.
  double metric(const std::string& name, const std::string& label = "") const {
    const std::string text = "\n" + metrics->render();
    double found = -1;
    for (std::size_t at = text.find("\n" + name); at != std::string::npos; at = text.find("\n" + name, at + 1)) {
      const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
      const char after = line.size() > name.size() ? line[name.size()] : ' ';
      if ((after == '{' || after == ' ') && line.find(label) != std::string::npos) found = std::stod(line.substr(line.rfind(' ') + 1));
    }
    return found;
  }

  // Nothing runs, waits or holds a block.
  void expect_idle() {
    EXPECT_TRUE(eventually([&] {
      return metric("troupe_requests_running") == 0 && metric("troupe_requests_waiting") == 0 && metric("troupe_kv_blocks", "used") == 0;
    })) << "running "
        << metric("troupe_requests_running") << ", waiting " << metric("troupe_requests_waiting") << ", used blocks "
        << metric("troupe_kv_blocks", "used");
    EXPECT_EQ(metric("troupe_kv_blocks", "free") + metric("troupe_kv_blocks", "cached"), device.num_blocks);
    EXPECT_EQ(server->active_requests(), 0U);
  }

  actors::serving_options options;
  executor_info device = small_device();
  std::shared_ptr<device_faults> faults = std::make_shared<device_faults>();
  std::shared_ptr<const byte_tokenizer> tokens = std::make_shared<byte_tokenizer>();
  std::shared_ptr<const chat_template> templates;
  std::shared_ptr<telemetry::metrics> metrics = std::make_shared<telemetry::metrics>("fake", "test");
  std::shared_ptr<telemetry::timeline> timeline; // null: nothing is traced
  std::unique_ptr<actors::serving> server;
  std::vector<std::shared_ptr<recording_sink>> sinks;
  request_id last_id = 0;
};

} // namespace troupe::test
