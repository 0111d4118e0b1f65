#include "models/drafting_executor.hpp"

#include <algorithm>
#include <future>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "models/draft_slots.hpp"
#include "models/executor_plan.hpp"
#include "models/kept_weights.hpp"
#include "models/shard.hpp"

namespace troupe {
namespace {

struct draft_failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What concerns the draft model of how a sequence draws: it keeps no counts for penalties, and nobody sees its scores.
slot_open without_penalties(slot_open opened) {
  sampling_params& p = opened.sampling;
  p.repetition_penalty = 1.0F;
  p.presence_penalty = p.frequency_penalty = 0.0F;
  p.top_logprobs.reset();
  return opened;
}

class drafting_executor final : public step_executor {
 public:
  drafting_executor(std::unique_ptr<step_executor> target, std::unique_ptr<step_executor> draft)
      : info_(target->info()), draft_info_(draft->info()), target_(std::move(target)), draft_(std::move(draft)), slots_(draft_info_) {
    if (info_.block_size != draft_info_.block_size || info_.num_blocks != draft_info_.num_blocks ||
        info_.max_num_seqs != draft_info_.max_num_seqs || info_.vocab_size != draft_info_.vocab_size) {
      throw std::invalid_argument("the draft model's slots, blocks and vocabulary must be the target's");
    }
    info_.max_proposals = most_proposals;
  }

  ~drafting_executor() override { target_.reset(); } // what it still delivers needs the rest

  executor_info info() const override { return info_; }
  bool kv_kept() const override { return target_->kv_kept() && draft_->kv_kept(); }

  void submit(const step_plan& plan, deliver_fn deliver) override {
    auto mine = std::make_shared<const step_plan>(plan); // the target may deliver when the caller's is gone
    step_plan theirs = plan;
    for (work_item& item : theirs.items) item.propose = 0;
    target_->submit(theirs, [this, mine, deliver = std::move(deliver)](step_outcome outcome) {
      if (auto* result = std::get_if<step_result>(&outcome)) {
        try {
          propose(*mine, *result);
        } catch (const std::exception& e) {
          outcome = step_failure{"step " + std::to_string(mine->step) + ": draft model: " + e.what()};
        }
      }
      deliver(std::move(outcome));
    });
  }

 private:
  void propose(const step_plan& plan, step_result& result) {
    if (plan.epoch != epoch_) step_ = 0;
    epoch_ = plan.epoch;
    slots_.follow(plan, result);
    catch_up(plan);
    extend(plan);
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      if (plan.items[i].propose > 0) result.outputs[i].proposals = slots_[plan.items[i].slot].guesses;
    }
  }

  // Computes what is due, in as many steps as the draft model's budget asks for; the last row of a sequence draws its first guess.
  void catch_up(const step_plan& plan) {
    step_plan next = new_plan();
    next.closed = plan.closed;
    for (const slot_open& opened : plan.opened) next.opened.push_back(without_penalties(opened));
    for (const block_grant& grant : plan.grants) {
      block_grant mine = for_draft(grant);
      if (!mine.blocks.empty()) next.grants.push_back(std::move(mine));
    }
    next.copies = plan.copies;
    std::int32_t budget = draft_info_.max_batched_tokens;
    for (const work_item& item : plan.items) {
      for (draft_slot& slot = slots_[item.slot]; slot.due > 0;) {
        if (budget == 0) {
          run(std::exchange(next, new_plan()));
          budget = draft_info_.max_batched_tokens;
        }
        budget -= add_chunk(next, item.slot, slot, budget);
      }
    }
    const bool changes = !next.closed.empty() || !next.opened.empty() || !next.grants.empty() || !next.copies.empty();
    if (changes || !next.items.empty()) run(std::move(next));
  }

  // Its context may end before the target's.
  block_grant for_draft(const block_grant& grant) const {
    const std::int32_t most = (draft_info_.max_model_len + draft_info_.block_size - 1) / draft_info_.block_size - grant.first_block;
    block_grant mine = grant;
    mine.blocks.resize(std::min(mine.blocks.size(), static_cast<std::size_t>(std::max(most, 0))));
    return mine;
  }

  static std::int32_t add_chunk(step_plan& next, slot_id id, draft_slot& slot, std::int32_t budget) {
    const std::int32_t count = std::min(slot.due, budget);
    const auto end = slot.pending.begin() + count;
    next.items.push_back({id, work_kind::prefill, slot.rows, count, count == slot.due && slot.wanted > 0, std::nullopt});
    next.tokens.insert(next.tokens.end(), slot.pending.begin(), end);
    slot.pending.erase(slot.pending.begin(), end);
    slot.rows += count;
    slot.due -= count;
    return count;
  }

  // One guess more for everybody who wants more and has the one before.
  void extend(const step_plan& plan) {
    while (true) {
      step_plan next = new_plan();
      for (const work_item& item : plan.items) {
        const draft_slot& slot = slots_[item.slot];
        const auto guesses = static_cast<std::int32_t>(slot.guesses.size());
        if (guesses == 0 || guesses >= slot.wanted) continue;
        next.items.push_back({item.slot, work_kind::decode, slot.rows + guesses - 1, 1, true, std::nullopt});
      }
      if (next.items.empty() || run(std::move(next)) == 0) return;
    }
  }

  step_plan new_plan() const {
    step_plan plan;
    plan.epoch = epoch_;
    return plan;
  }

  // The draft model's next step; how many guesses it gave. One whose logits are not numbers gives none, and its sequence no more.
  std::size_t run(step_plan plan) {
    plan.step = ++step_;
    std::promise<step_outcome> promised;
    draft_->submit(plan, [&](step_outcome outcome) { promised.set_value(std::move(outcome)); });
    const step_outcome outcome = promised.get_future().get();
    if (const auto* failed = std::get_if<step_failure>(&outcome)) throw draft_failure(failed->reason);
    std::size_t guesses = 0;
    for (const slot_output& output : std::get<step_result>(outcome).outputs) {
      draft_slot& slot = slots_[output.slot];
      if (output.numeric_fault) slot.wanted = 0;
      slot.guesses.insert(slot.guesses.end(), output.tokens.begin(), output.tokens.end());
      guesses += output.tokens.size();
    }
    return guesses;
  }

  executor_info info_, draft_info_;
  std::unique_ptr<step_executor> target_, draft_;
  draft_slots slots_;
  epoch_number epoch_ = 0;
  step_number step_ = 0; // of the draft model
};

std::size_t block_bytes(const executor_plan& plan) { return plan.kv_bytes / static_cast<std::size_t>(plan.info.num_blocks); }

void check_memory(std::size_t target, std::size_t draft, std::optional<std::uint64_t> available) {
  if (available && target + draft > *available) {
    throw load_error("not enough memory: the model takes " + std::to_string(target) + " bytes and the draft model " +
                     std::to_string(draft) + ", but " + std::to_string(*available) + " are available");
  }
}

} // namespace

std::unique_ptr<step_executor> make_drafting_executor(std::unique_ptr<step_executor> target, std::unique_ptr<step_executor> draft) {
  return std::make_unique<drafting_executor>(std::move(target), std::move(draft));
}

std::unique_ptr<step_executor> make_drafting_cpu_executor(std::shared_ptr<const model_weights> target,
                                                          std::shared_ptr<const model_weights> draft, cpu_executor_options options,
                                                          const rank_context& rank) {
  cpu_executor_options drafts = options;
  drafts.start = nullptr;
  drafts.max_model_len = std::min(options.max_model_len.value_or(target->config.max_position), draft->config.max_position);
  options.max_proposals = most_proposals;
  if (!rank.leader()) return make_cpu_executor(std::move(target), options, rank);
  if (!options.num_blocks) {
    const std::size_t both = block_bytes(plan_rank(*target, options, rank)) + block_bytes(plan_rank(*draft, drafts, {}));
    if (options.kv_bytes < both)
      throw load_error("kv_bytes is " + std::to_string(options.kv_bytes) + ", too few for a block of both models");
    options.num_blocks = static_cast<std::int32_t>(options.kv_bytes / both);
  }
  drafts.num_blocks = options.num_blocks;
  if (drafts.keep_kv) drafts.keep_kv->owner += ", draft model";
  const executor_plan beside = plan_rank(*draft, drafts, {});
  const std::size_t taken = std::min<std::size_t>(beside.weight_bytes, kept_bytes(options.keep, draft->source, "cpu")) +
                            std::min<std::size_t>(beside.kv_bytes, kept_kv_bytes(drafts.keep_kv, draft->source, "cpu"));
  options.bytes_beside = total_bytes(beside) - taken;
  const auto available = available_memory(shard_weights(*target, rank), options);
  check_memory(total_bytes(plan_rank(*target, options, rank)), options.bytes_beside, available);
  auto executor = make_cpu_executor(std::move(target), options, rank);
  drafts.num_blocks = executor->info().num_blocks;
  return make_drafting_executor(std::move(executor), make_cpu_executor(std::move(draft), drafts));
}

} // namespace troupe
