// A step_executor made of arithmetic, with faults to switch on. Its token is a hash of the slot's whole prefix, which it reads back
// through the block table (a wrong grant or a missing refill changes the token), so any stream can be checked without a second run.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/step.hpp"

namespace troupe::test {

constexpr token_id kBos = 256;
constexpr token_id kEos = 257;
constexpr std::int32_t kVocab = 258;

inline std::uint64_t hash_of(const std::vector<token_id>& prefix) {
  std::uint64_t h = 1469598103934665603ULL;
  for (const token_id t : prefix) h = (h ^ static_cast<std::uint64_t>(t + 1)) * 1099511628211ULL;
  return h ^ (h >> 29);
}

// The token after `prefix`: a letter, or now and then EOS. Greedy choices ignore the seed.
inline token_id choose(const std::vector<token_id>& prefix, std::int32_t prompt_tokens, const sampling_params& p) {
  std::uint64_t h = hash_of(prefix);
  if (p.temperature >= 1e-5F) h = (h ^ (p.seed + 0x9E3779B97F4A7C15ULL)) * 0xBF58476D1CE4E5B9ULL, h ^= h >> 31;
  const bool early = static_cast<std::int32_t>(prefix.size()) - prompt_tokens < p.min_tokens;
  const bool suppressed = early && std::find(p.suppressed.begin(), p.suppressed.end(), kEos) != p.suppressed.end();
  if (!suppressed && (h >> 40) % 64 == 0) return kEos;
  return static_cast<token_id>('a' + (h >> 8) % 26);
}

// What a sequence must produce, a stop token left out.
inline std::vector<token_id> expected_tokens(std::vector<token_id> prefix, const sampling_params& p, const stop_conditions& stop) {
  const auto prompt = static_cast<std::int32_t>(prefix.size());
  std::vector<token_id> out;
  for (std::int32_t made = 0; made < stop.max_tokens; ++made) {
    const token_id t = choose(prefix, prompt, p);
    const bool ends = std::find(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), t) != stop.stop_token_ids.end();
    if (ends && made >= stop.min_tokens) break;
    prefix.push_back(t);
    out.push_back(t);
  }
  return out;
}

// Switches; shared by all executors of one test.
struct device_faults {
  std::atomic<int> made{0};              // executors
  std::atomic<int> gone{0};              // of them, destroyed
  std::atomic<std::int64_t> steps{0};    // of all executors
  std::atomic<std::int64_t> fail_at{-1}; // the step that throws, once
  std::atomic<int> poison{-1};           // a prefix that holds this token makes every step throw
  std::atomic<int> numeric_fault{-1};    // ... makes its own row's logits NaN
  std::atomic<int> step_us{0};
  std::atomic<int> starts_to_fail{0};

  // Steps wait in front of a closed gate; `hang_executor` limits that to one executor (from 1), 0: all.
  void close_gate(int hang_executor = 0) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    which_ = hang_executor;
  }
  void open_gate() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    opened_.notify_all();
  }
  void pass_gate(int executor) {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return !closed_ || (which_ != 0 && which_ != executor); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool closed_ = false;
  int which_ = 0;
};

class fake_device final : public step_executor {
 public:
  fake_device(executor_info limits, std::shared_ptr<device_faults> faults) : info_(limits), faults_(std::move(faults)) {
    number_ = ++faults_->made;
    if (faults_->starts_to_fail > 0) {
      --faults_->starts_to_fail;
      throw std::runtime_error("the fake device does not start");
    }
    kv_.assign(static_cast<std::size_t>(info_.num_blocks) * static_cast<std::size_t>(info_.block_size), -1);
  }
  ~fake_device() override { ++faults_->gone; }

  executor_info info() const override { return info_; }

  void submit(const step_plan& plan, deliver_fn deliver) override {
    faults_->pass_gate(number_);
    if (const int us = faults_->step_us; us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    if (faults_->steps++ == faults_->fail_at) throw device_error("the fake device failed on demand");
    step_result result{plan.epoch, plan.step, {}, {1, 2, 3, 0, 0, 0, {}}};
    try {
      run(plan, result);
    } catch (const std::logic_error& broken) {
      return deliver(step_failure{broken.what()});
    }
    deliver(std::move(result));
  }

 private:
  struct slot_state {
    slot_open open;
    std::vector<block_id> blocks;
    std::optional<std::int32_t> length; // none before the first item, which says how much is there already
    token_id last = -1;
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }

  void run(const step_plan& plan, step_result& result) {
    for (const slot_id closed : plan.closed) require(slots_.erase(closed) == 1, "closed a slot that is not open");
    for (const slot_open& o : plan.opened)
      require(slots_.emplace(o.slot, slot_state{o, {}, std::nullopt, -1}).second, "opened an open slot");
    for (const block_grant& g : plan.grants) {
      auto& blocks = at(g.slot).blocks;
      const auto first = static_cast<std::size_t>(g.first_block);
      require(first <= blocks.size(), "a grant leaves a gap");
      blocks.resize(std::max(blocks.size(), first + g.blocks.size()));
      std::copy(g.blocks.begin(), g.blocks.end(), blocks.begin() + g.first_block);
    }
    for (const block_copy& c : plan.copies) std::copy_n(block(c.from), info_.block_size, block(c.to));
    std::size_t next = 0;
    for (const work_item& item : plan.items) result.outputs.push_back(run_item(item, plan, next));
    require(next == plan.tokens.size(), "tokens are left over");
  }

  slot_state& at(slot_id id) {
    auto found = slots_.find(id);
    require(found != slots_.end(), "the slot is not open");
    return found->second;
  }
  std::vector<token_id>::iterator block(block_id id) { return kv_.begin() + std::ptrdiff_t{id} * info_.block_size; }
  token_id& cell(slot_state& s, std::int32_t position) {
    const auto block = static_cast<std::size_t>(position / info_.block_size);
    require(block < s.blocks.size(), "a position has no block");
    return kv_.at(static_cast<std::size_t>(s.blocks[block]) * static_cast<std::size_t>(info_.block_size) +
                  static_cast<std::size_t>(position % info_.block_size));
  }

  slot_output run_item(const work_item& item, const step_plan& plan, std::size_t& next) {
    slot_state& s = at(item.slot);
    require(item.first_position == s.length.value_or(item.first_position), "an item does not follow on");
    require(item.kind != work_kind::verify || item.token_count <= info_.max_verify_tokens, "more is to be verified than can be");
    for (std::int32_t i = 0; i < item.token_count; ++i) {
      cell(s, item.first_position + i) = item.kind != work_kind::prefill && i == 0 ? s.last : plan.tokens.at(next++);
    }
    const std::int32_t end = item.first_position + item.token_count;
    s.length = item.kind == work_kind::verify ? item.first_position + 1 : end;
    slot_output out;
    out.slot = item.slot;
    while (true) { // a draft that is what was drawn stays a row
      const std::vector<token_id> prefix = prefix_of(s);
      if (contains(prefix, faults_->poison)) throw device_error("the fake device was poisoned");
      if (item.sample) sample(prefix, s, out);
      if (out.numeric_fault || *s.length == end || cell(s, *s.length) != s.last) break;
      ++*s.length;
    }
    score_prompt(item, plan, next, s, out);
    if (!out.numeric_fault) propose(item, s, out);
    return out;
  }

  // What it would draw itself, but for every fourth token.
  void propose(const work_item& item, slot_state& s, slot_output& out) {
    require(item.propose <= info_.max_proposals, "more is to be proposed than can be");
    std::vector<token_id> guess = prefix_of(s);
    if (item.propose > 0) guess.push_back(s.last);
    for (std::int32_t i = 0; i < item.propose; ++i) {
      guess.push_back(hash_of(guess) % 4 == 0 ? 'z' : choose(guess, s.open.prompt_tokens, s.open.sampling));
      out.proposals.push_back(guess.back());
    }
  }

  std::vector<token_id> prefix_of(slot_state& s) {
    std::vector<token_id> prefix;
    for (std::int32_t p = 0; p < *s.length; ++p) prefix.push_back(cell(s, p));
    return prefix;
  }

  static bool contains(const std::vector<token_id>& prefix, token_id t) {
    return t >= 0 && std::find(prefix.begin(), prefix.end(), t) != prefix.end();
  }

  // Each row scores the token after it; a chunk that ends the prompt has none for its last row.
  void score_prompt(const work_item& item, const step_plan& plan, std::size_t& next, slot_state& s, slot_output& out) {
    if (!item.prompt_logprobs) return;
    for (std::int32_t p = item.first_position + 1; p < *s.length; ++p)
      out.prompt_scores.push_back(score(cell(s, p), *item.prompt_logprobs));
    if (*s.length < s.open.prompt_tokens) out.prompt_scores.push_back(score(plan.tokens.at(next++), *item.prompt_logprobs));
  }

  static token_scores score(token_id t, std::int32_t best) {
    token_scores scores{{t, -0.25F * static_cast<float>(t % 7)}, {}};
    for (std::int32_t i = 0; i < best; ++i) scores.top.push_back({static_cast<token_id>('A' + i), -1.0F - static_cast<float>(i)});
    return scores;
  }

  void sample(const std::vector<token_id>& prefix, slot_state& s, slot_output& out) {
    if (contains(prefix, faults_->numeric_fault)) {
      out.numeric_fault = true;
      return;
    }
    s.last = choose(prefix, s.open.prompt_tokens, s.open.sampling);
    out.tokens.push_back(s.last);
    if (s.open.sampling.top_logprobs) out.scores.push_back(score(s.last, *s.open.sampling.top_logprobs));
  }

  executor_info info_;
  std::shared_ptr<device_faults> faults_;
  int number_ = 0;
  std::vector<token_id> kv_;
  std::map<slot_id, slot_state> slots_;
};

inline executor_info small_device() {
  executor_info info;
  info.block_size = 4;
  info.num_blocks = 256;
  info.max_num_seqs = 8;
  info.max_batched_tokens = 64;
  info.max_model_len = 512;
  info.vocab_size = kVocab;
  info.max_verify_tokens = info.max_proposals = 8;
  return info;
}

} // namespace troupe::test
