// A device made of arithmetic: its token is a hash of the prefix, so that any stream can be checked without running it again. It
// keeps KV as the token that was written at each (block, offset), and reads the prefix back through the block table: a wrong grant,
// copy or cache hit, a block that was overwritten or a missing refill changes the token. A row of a rejected draft is poisoned. As a
// draft model it proposes what it would draw itself, but for every fourth token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/step.hpp"
#include "kvcache/block_pool.hpp"

namespace troupe::test {

inline token_id next_token(const std::vector<token_id>& prefix, std::int32_t vocab, std::uint64_t seed = 0) {
  std::uint64_t h = 1469598103934665603ULL ^ (seed << 32);
  for (token_id t : prefix) h = (h ^ static_cast<std::uint64_t>(t + 1)) * 1099511628211ULL;
  return static_cast<token_id>((h >> 20) % static_cast<std::uint64_t>(vocab));
}

class hash_device {
 public:
  explicit hash_device(executor_info limits) : info_(limits), kv_(static_cast<std::size_t>(limits.num_blocks) * limits.block_size, -1) {}

  // What the blocks of a device before this one hold.
  void adopt_kv(const hash_device& before) { kv_ = before.kv_; }

  // Ended in the midst of `plan`: its copies are made and rows of its items written in part, here with what no sequence means.
  template <class Chance>
  void tear(const step_plan& plan, Chance chance) {
    for (const slot_id closed : plan.closed) slots_.erase(closed);
    for (const slot_open& open : plan.opened) slots_[open.slot] = {{}, -1, open.prompt_tokens, open.sampling.seed, {}};
    for (const block_grant& grant : plan.grants) take_grant(grant);
    for (const block_copy& copy : plan.copies) {
      if (chance()) std::copy_n(block(copy.from), info_.block_size, block(copy.to));
    }
    for (const work_item& item : plan.items) {
      for (std::int32_t i = 0; i < item.token_count; ++i) {
        if (chance()) cell(at(item.slot), item.first_position + i) = -3;
      }
    }
  }

  step_result run(const step_plan& plan) {
    for (slot_id closed : plan.closed) require(slots_.erase(closed) == 1, "closed a slot that is not open");
    for (const slot_open& open : plan.opened) {
      require(slots_.emplace(open.slot, slot_state{{}, -1, open.prompt_tokens, open.sampling.seed, {}}).second, "opened an open slot");
    }
    for (const block_grant& grant : plan.grants) take_grant(grant);
    for (const block_copy& copy : plan.copies) std::copy_n(block(copy.from), info_.block_size, block(copy.to));
    step_result result{plan.epoch, plan.step, {}, {}};
    std::size_t next = 0;
    std::int32_t total = 0;
    for (const work_item& item : plan.items) {
      total += item.token_count;
      result.outputs.push_back(run_item(item, plan, next));
    }
    require(next == plan.tokens.size(), "tokens left over");
    require(total <= info_.max_batched_tokens, "over the token budget");
    require(static_cast<std::int32_t>(slots_.size()) <= info_.max_num_seqs, "too many slots");
    return result;
  }

 private:
  struct slot_state {
    std::vector<block_id> blocks;
    token_id last = -1;
    std::int32_t prompt_tokens = 0;
    std::uint64_t seed = 0;
    std::optional<std::int32_t> position; // of the next row
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }
  slot_state& at(slot_id id) {
    auto found = slots_.find(id);
    require(found != slots_.end(), "slot is not open");
    return found->second;
  }
  std::vector<token_id>::iterator block(block_id id) { return kv_.begin() + std::ptrdiff_t{id} * info_.block_size; }
  void take_grant(const block_grant& grant) {
    auto& blocks = at(grant.slot).blocks;
    const auto first = static_cast<std::size_t>(grant.first_block);
    require(first <= blocks.size(), "grant leaves a gap");
    blocks.resize(std::max(blocks.size(), first + grant.blocks.size()));
    std::copy(grant.blocks.begin(), grant.blocks.end(), blocks.begin() + grant.first_block);
  }
  // No row may be written where another sequence reads.
  void write(slot_id slot, std::int32_t position, token_id token) {
    token_id& written = cell(at(slot), position);
    const block_id mine = at(slot).blocks[static_cast<std::size_t>(position / info_.block_size)];
    for (const auto& [other, state] : slots_) {
      require(other == slot || std::find(state.blocks.begin(), state.blocks.end(), mine) == state.blocks.end(), "writes a shared block");
    }
    written = token;
  }
  std::vector<token_id> prefix_of(slot_state& s, std::int32_t length) {
    std::vector<token_id> prefix;
    for (std::int32_t p = 0; p < length; ++p) prefix.push_back(cell(s, p));
    return prefix;
  }
  token_id& cell(slot_state& s, std::int32_t position) {
    const auto block = static_cast<std::size_t>(position / info_.block_size);
    require(block < s.blocks.size(), "position without a block");
    return kv_[static_cast<std::size_t>(s.blocks[block]) * info_.block_size + static_cast<std::size_t>(position % info_.block_size)];
  }

  slot_output run_item(const work_item& item, const step_plan& plan, std::size_t& next) {
    slot_state& s = at(item.slot);
    require(item.first_position == s.position.value_or(item.first_position), "an item does not follow the one before");
    require(item.kind != work_kind::verify || item.token_count <= info_.max_verify_tokens, "verifies more than it can");
    for (std::int32_t i = 0; i < item.token_count; ++i) {
      const bool own = item.kind != work_kind::prefill && i == 0;
      write(item.slot, item.first_position + i, own ? s.last : plan.tokens.at(next++));
    }
    slot_output out;
    out.slot = item.slot;
    const std::int32_t end = item.first_position + item.token_count;
    s.position = end;
    if (item.prompt_logprobs) score(item, s, plan, next, out);
    if (item.sample) draw(item, s, out);
    return out;
  }

  void draw(const work_item& item, slot_state& s, slot_output& out) {
    const std::int32_t end = item.first_position + item.token_count;
    s.position = item.kind == work_kind::verify ? item.first_position + 1 : end;
    while (true) {
      out.tokens.push_back(next_token(prefix_of(s, *s.position), info_.vocab_size, s.seed));
      if (*s.position == end || cell(s, *s.position) != out.tokens.back()) break;
      ++*s.position;
    }
    s.last = out.tokens.back();
    for (std::int32_t p = *s.position; p < end; ++p) cell(s, p) = -2;
    require(item.propose <= info_.max_proposals, "is to propose more than it can");
    if (item.propose > 0) cell(s, end + item.propose - 1); // has a block
    if (item.kind == work_kind::verify || item.propose > 0) {
      s.blocks.resize(static_cast<std::size_t>(blocks_for(*s.position + item.propose, info_.block_size)));
    }
    auto guess = prefix_of(s, *s.position);
    guess.push_back(s.last);
    for (std::int32_t i = 0; i < item.propose; ++i) {
      const token_id next = next_token(guess, info_.vocab_size, s.seed);
      const bool wrong = next_token(guess, 4, ~s.seed) == 0;
      guess.push_back(wrong ? (next + 1) % info_.vocab_size : next);
      out.proposals.push_back(guess.back());
    }
  }

  // The score of a token is a number made of its prefix.
  void score(const work_item& item, slot_state& s, const step_plan& plan, std::size_t& next, slot_output& out) {
    const std::int32_t end = item.first_position + item.token_count;
    for (std::int32_t p = item.first_position + 1; p <= end && p < s.prompt_tokens; ++p) {
      const token_id target = p < end ? cell(s, p) : plan.tokens.at(next++);
      out.prompt_scores.push_back({{target, static_cast<float>(next_token(prefix_of(s, p), 1 << 20))}, {}});
    }
  }

  executor_info info_;
  std::vector<token_id> kv_;
  std::map<slot_id, slot_state> slots_;
};

} // namespace troupe::test
