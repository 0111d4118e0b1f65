#include "models/cpu_executor.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "models/cpu_model.hpp"
#include "models/draw_exchange.hpp"
#include "models/executor_plan.hpp"
#include "models/group_agreement.hpp"
#include "models/kept_weights.hpp"
#include "models/row_sampler.hpp"
#include "models/shard.hpp"
#include "models/slot_table.hpp"

namespace troupe {
namespace {

class cpu_executor final : public step_executor {
 public:
  cpu_executor(std::shared_ptr<const model_weights> weights, const cpu_model_shape& shape, const executor_info& info,
               const rank_context& rank, const cpu_executor_options& options)
      : info_(info),
        rank_(rank),
        slots_(info),
        draws_(rank, info.max_num_seqs),
        model_(std::move(weights), shape, rank, options.keep, options.keep_kv),
        kv_kept_(options.keep_kv && options.keep_kv->usable && model_.kv().lease().found()) {
    reached(options.start, "weights");
    if (rank_.leader()) sampler_.emplace(model_, info.vocab_size);
    const std::size_t rows = static_cast<std::size_t>(info.max_batched_tokens);
    tokens_.reserve(rows);
    positions_.reserve(rows);
    head_rows_.reserve(rows);
    spans_.reserve(static_cast<std::size_t>(info.max_num_seqs));
  }

  executor_info info() const override { return info_; }
  bool kv_kept() const override { return kv_kept_; }

  void submit(const step_plan& plan, deliver_fn deliver) override {
    step_outcome outcome;
    try {
      outcome = run(plan);
    } catch (const collective_error& e) {
      slots_.fail(e.what());
      const bool program = e.fault() == collective_fault::mismatch || e.fault() == collective_fault::failed;
      outcome = step_failure{"step " + std::to_string(plan.step) + ": " + e.what(), !program, e.fault()};
    } catch (const std::exception& e) {
      slots_.fail(e.what());
      outcome = step_failure{"step " + std::to_string(plan.step) + ": " + e.what()};
    }
    if (auto* failure = std::get_if<step_failure>(&outcome); failure != nullptr && rank_.size() > 1) {
      failure->reason = name_of(rank_) + ": " + failure->reason;
      abort_group(rank_, failure->reason);
    }
    deliver(std::move(outcome));
  }

 private:
  step_outcome run(const step_plan& plan) {
    const std::uint64_t start = now_ns();
    draws_.catch_up(plan, slots_);
    if (std::optional<std::string> breach = slots_.take(plan)) return step_failure{std::move(*breach)};
    for (const block_copy& copy : plan.copies) model_.kv().copy_block(copy.from, copy.to);
    step_result result{plan.epoch, plan.step, {}, {}};
    gather_rows(plan, result);

    const std::uint64_t compute = now_ns();
    model_.forward({tokens_, positions_, spans_});
    if (rank_.last_stage()) draw(result.outputs);

    const std::uint64_t finish = now_ns();
    draws_.finish(plan, result.outputs, slots_);
    if (!rank_.leader()) {
      for (slot_output& output : result.outputs) output = {output.slot, {}, {}, {}, false};
    }
    result.times = {compute - start, finish - compute, now_ns() - finish, start, compute, finish, {}};
    for (communicator* group : {rank_.tensor.get(), rank_.pipeline.get()}) {
      if (group == nullptr) continue;
      const collective_times times = group->take_times();
      result.times.collective_wait_ns += times.wait_ns;
      result.times.collective_move_ns += times.move_ns;
    }
    return result;
  }

  // The leader draws; the other ranks of its stage give it the logits of their ids.
  void draw(std::vector<slot_output>& outputs) {
    if (sampler_) return sampler_->run(head_rows_, slots_, outputs);
    const std::size_t room = static_cast<std::size_t>(model_.shape().head_rows);
    std::vector<std::int32_t> rows;
    for (std::size_t done = 0; done < head_rows_.size(); done += rows.size()) {
      rows.clear();
      for (std::size_t i = done; i < std::min(head_rows_.size(), done + room); ++i) rows.push_back(head_rows_[i].row);
      model_.logits(rows);
    }
  }

  // Lays the rows of all items one behind the other, and lists those that need the head. Which rows there are is the same on all ranks:
  // those of a slot that has failed, planned before that was known, are computed and not looked at.
  void gather_rows(const step_plan& plan, step_result& result) {
    tokens_.clear();
    positions_.clear();
    spans_.clear();
    head_rows_.clear();
    const token_id* carried = plan.tokens.data();
    result.outputs.resize(plan.items.size());
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      const work_item& item = plan.items[i];
      slot_state& slot = slots_[item.slot];
      const token_id* const mine = carried;
      carried += tokens_of(item, slot.prompt_tokens);
      result.outputs[i].slot = item.slot;
      result.outputs[i].numeric_fault = slot.faulted;
      const std::int32_t first_row = static_cast<std::int32_t>(tokens_.size());
      spans_.push_back({first_row, item.token_count, item.first_position, slot.blocks.data()});
      for (std::int32_t row = 0; row < item.token_count; ++row) {
        const bool from_sample = item.kind != work_kind::prefill && row == 0;
        tokens_.push_back(from_sample ? slot.last_token.value_or(0) : mine[item.kind == work_kind::verify ? row - 1 : row]);
        positions_.push_back(item.first_position + row);
      }
      if (!rank_.last_stage() || slot.faulted) continue;
      list_head_rows(item, i, first_row, mine);
      if (rank_.leader() && item.kind == work_kind::prefill && has_penalties(slot.sampling)) {
        for (std::int32_t row = 0; row < item.token_count; ++row) {
          slot.history.add(mine[row], item.first_position + row >= slot.prompt_tokens, info_.vocab_size);
        }
      }
    }
  }

  void list_head_rows(const work_item& item, std::size_t index, std::int32_t first_row, const token_id* tokens) {
    const std::int32_t scored = scored_rows(item, slots_[item.slot].prompt_tokens);
    for (std::int32_t row = 0; row < item.token_count; ++row) {
      head_row head;
      head.row = first_row + row;
      head.item = index;
      head.next_position = item.first_position + row + 1;
      if (row < scored) {
        head.target = tokens[row + 1];
        head.alternatives = *item.prompt_logprobs;
      }
      head.sample = item.kind == work_kind::verify || (item.sample && row == item.token_count - 1);
      if (item.kind == work_kind::verify && row > 0) {
        head.drafts = static_cast<std::size_t>(row);
        head.draft = tokens[row - 1];
      }
      if (head.target || head.sample) head_rows_.push_back(head);
    }
  }

  executor_info info_;
  rank_context rank_;
  slot_table slots_;
  draw_exchange draws_;
  cpu_model model_;
  bool kv_kept_;
  std::optional<row_sampler> sampler_; // the leader's
  // Of the running step.
  std::vector<token_id> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<attention_span> spans_;
  std::vector<head_row> head_rows_;
};

// The plan that all ranks of the group can follow: each with its own memory, all with the fewest blocks that any has room for.
executor_plan agreed_plan(const model_weights& mine, cpu_executor_options options, const rank_context& rank) {
  try {
    const auto available = cpu::available_memory();
    const executor_plan plan = plan_executor(mine, options, available_memory(mine, options, available), rank);
    const std::size_t taken = std::min<std::size_t>(plan.weight_bytes, kept_bytes(options.keep, mine.source, "cpu")) +
                              std::min<std::size_t>(plan.kv_bytes, kept_kv_bytes(options.keep_kv, mine.source, "cpu"));
    options.num_blocks = agree(plan.info, {total_bytes(plan) - taken + options.bytes_beside, available}, rank).num_blocks;
    return plan_executor(mine, options, std::nullopt, rank); // no more than was checked; others take memory by now
  } catch (const std::exception& e) {                        // a lost peer, too: those of the other communicator do not know yet
    abort_group(rank, name_of(rank) + ": " + e.what());
    throw;
  }
}

std::unique_ptr<step_executor> build(std::shared_ptr<const model_weights> weights, const cpu_executor_options& options,
                                     const rank_context& rank) {
  const executor_plan plan =
      rank.size() > 1 ? agreed_plan(*weights, options, rank) : plan_executor(*weights, options, available_memory(*weights, options));
  try {
    return std::make_unique<cpu_executor>(std::move(weights), plan.shape, plan.info, rank, options);
  } catch (const std::bad_alloc&) {
    throw load_error("out of memory: the KV cache takes " + std::to_string(plan.kv_bytes) + " bytes (" +
                     std::to_string(plan.info.num_blocks) + " blocks of " + std::to_string(plan.info.block_size) +
                     " tokens), activations and logits " + std::to_string(plan.activation_bytes) + ", the weights " +
                     std::to_string(plan.weight_bytes));
  } catch (const std::system_error& e) {
    throw load_error("cannot start " + std::to_string(plan.shape.threads) + " threads (--threads): " + e.what());
  } catch (const std::invalid_argument& e) {
    throw load_error(std::string("weights: ") + e.what());
  }
}

} // namespace

std::unique_ptr<step_executor> make_cpu_executor(std::shared_ptr<const model_weights> weights, const cpu_executor_options& options,
                                                 const rank_context& rank) {
  if (rank.size() > 1) {
    check_model(weights->config);
    cpu_executor_options mine = options;
    mine.kv_type = kv_type_of(*weights, options);
    return build(std::make_shared<const model_weights>(shard_weights(*weights, rank)), mine, rank);
  }
  return build(std::move(weights), options, rank);
}

} // namespace troupe
