// The tiny checkpoints of tests/fixtures/models with what transformers computed, and a hand that writes plans.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.hpp"
#include "models/checkpoint.hpp"
#include "models/cpu_executor.hpp"

namespace troupe::test {

inline constexpr const char* tiny_models[] = {"llama3-gqa", "llama-linear-tied", "mistral-window", "qwen2-bias-tied", "qwen3-yarn"};

inline std::string model_folder(const std::string& name) { return std::string(TROUPE_SOURCE_DIR) + "/tests/fixtures/models/" + name; }

inline value read_json(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return json::parse(text).value();
}

inline std::vector<token_id> tokens_in(const value& list) {
  std::vector<token_id> tokens;
  for (const value& item : list.as_array()) tokens.push_back(static_cast<token_id>(item.as_int()));
  return tokens;
}

struct expected_prompt {
  std::vector<token_id> tokens;
  std::vector<token_id> greedy; // continuation
  std::vector<float> logits;    // [tokens.size()][vocab]
};

inline std::vector<expected_prompt> expected_prompts(const std::string& name) {
  const value expected = read_json(model_folder(name) + "/expected.json");
  const std::size_t vocab = static_cast<std::size_t>(expected.find("vocab_size")->as_int());
  std::ifstream file(model_folder(name) + "/logits.bin", std::ios::binary);
  std::vector<expected_prompt> prompts;
  for (const value& p : expected.find("prompts")->as_array()) {
    expected_prompt prompt{tokens_in(*p.find("tokens")), tokens_in(*p.find("greedy")), {}};
    prompt.logits.resize(prompt.tokens.size() * vocab);
    file.seekg(static_cast<std::streamoff>(static_cast<std::size_t>(p.find("first_row")->as_int()) * vocab * sizeof(float)));
    file.read(reinterpret_cast<char*>(prompt.logits.data()), static_cast<std::streamsize>(prompt.logits.size() * sizeof(float)));
    EXPECT_TRUE(file.good()) << name;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

inline std::shared_ptr<const model_weights> tiny_weights(const std::string& name) {
  return std::make_shared<const model_weights>(open_checkpoint(model_folder(name))->load());
}

inline cpu_executor_options small_options() {
  cpu_executor_options options;
  options.threads = 2;
  options.block_size = 8;
  options.max_num_seqs = 8;
  options.max_batched_tokens = 256;
  options.num_blocks = 128;
  return options;
}

// Writes plans step by step and hands out blocks, all at once when a slot opens.
class plan_writer {
 public:
  explicit plan_writer(step_executor& executor, std::uint32_t seed = 1) : executor_(executor), info_(executor.info()) {
    for (block_id block = 0; block < info_.num_blocks; ++block) free_.push_back(block);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(seed));
    plan.epoch = 1;
  }

  void open(slot_id slot, std::int32_t prompt_tokens, const sampling_params& sampling, std::int32_t capacity) {
    plan.opened.push_back({slot, prompt_tokens, sampling});
    block_grant grant{slot, 0, {}};
    for (std::int32_t i = 0; i < capacity; i += info_.block_size) {
      grant.blocks.push_back(free_.back());
      free_.pop_back();
    }
    held_.push_back(grant);
    plan.grants.push_back(std::move(grant));
  }

  void close(slot_id slot) {
    plan.closed.push_back(slot);
    const auto grant = std::find_if(held_.begin(), held_.end(), [&](const block_grant& g) { return g.slot == slot; });
    free_.insert(free_.end(), grant->blocks.begin(), grant->blocks.end()); // the next to open takes these first
    held_.erase(grant);
  }

  void prefill(slot_id slot, std::int32_t first, const std::vector<token_id>& tokens, bool sample, std::optional<std::int32_t> scores = {},
               bool more = false) {
    plan.items.push_back({slot, work_kind::prefill, first, static_cast<std::int32_t>(tokens.size()) - (more ? 1 : 0), sample, scores});
    plan.tokens.insert(plan.tokens.end(), tokens.begin(), tokens.end());
  }

  void decode(slot_id slot, std::int32_t position) { plan.items.push_back({slot, work_kind::decode, position, 1, true, std::nullopt}); }

  void verify(slot_id slot, std::int32_t position, const std::vector<token_id>& drafts) {
    plan.items.push_back({slot, work_kind::verify, position, static_cast<std::int32_t>(drafts.size()) + 1, true, std::nullopt});
    plan.tokens.insert(plan.tokens.end(), drafts.begin(), drafts.end());
  }

  step_outcome submit() { return start().get(); }

  // Without waiting for the outcome.
  std::future<step_outcome> start() {
    ++plan.step;
    auto outcome = std::make_shared<std::promise<step_outcome>>(); // a second delivery would throw
    executor_.submit(plan, [outcome](step_outcome o) { outcome->set_value(std::move(o)); });
    plan = {plan.epoch, plan.step, {}, {}, {}, {}, {}, {}};
    return outcome->get_future();
  }

  std::vector<slot_output> run() {
    step_outcome outcome = submit();
    if (const auto* failure = std::get_if<step_failure>(&outcome)) {
      ADD_FAILURE() << failure->reason;
      return std::vector<slot_output>(8);
    }
    return std::get<step_result>(outcome).outputs;
  }

  step_plan plan; // the next one

 private:
  step_executor& executor_;
  executor_info info_;
  std::vector<block_id> free_;
  std::vector<block_grant> held_;
};

inline sampling_params greedy() {
  sampling_params params;
  params.temperature = 0;
  return params;
}

using tokens = std::vector<token_id>;

inline tokens part_of(const tokens& all, std::size_t begin, std::size_t end) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
}

// The whole prompt in one step, then `count - 1` decodes.
inline tokens generate(plan_writer& writer, slot_id slot, const tokens& prompt, const sampling_params& sampling, std::size_t count) {
  const auto length = static_cast<std::int32_t>(prompt.size());
  writer.open(slot, length, sampling, length + static_cast<std::int32_t>(count));
  writer.prefill(slot, 0, prompt, true);
  tokens drawn = writer.run()[0].tokens;
  while (drawn.size() < count && !drawn.empty()) {
    writer.decode(slot, length + static_cast<std::int32_t>(drawn.size()) - 1);
    const tokens next = writer.run()[0].tokens;
    if (next.size() != 1) break;
    drawn.push_back(next[0]);
  }
  writer.close(slot);
  return drawn;
}

} // namespace troupe::test
