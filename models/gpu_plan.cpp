#include "models/gpu_plan.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "kernels/step_rows_gpu.hpp"
#include "models/executor_plan.hpp"
#include "models/gpu_copied_sums.hpp"
#include "models/gpu_stages.hpp"
#include "models/gpu_transfers.hpp"
#include "models/kept_weights.hpp"

namespace troupe {
namespace {

constexpr std::size_t reserve = std::size_t{768} << 20;
constexpr std::size_t group_reserve = std::size_t{768} << 20; // for each of NCCL's groups
constexpr std::int32_t most_blocks = 1 << 22;                 // beyond that nobody has sequences to fill them

void require(bool holds, const std::string& what) {
  if (!holds) throw load_error(what);
}

void check_options(const gpu_executor_options& o) {
  const auto positive = [](std::int32_t number, const char* name) {
    require(number >= 1, std::string(name) + " is " + std::to_string(number) + ", must be at least 1");
  };
  positive(o.block_size, "block_size");
  positive(o.max_num_seqs, "max_num_seqs");
  positive(o.max_batched_tokens, "max_batched_tokens");
  require(o.max_batched_tokens >= o.max_num_seqs, "max_num_batched_tokens (" + std::to_string(o.max_batched_tokens) +
                                                      ") must be at least max_num_seqs (" + std::to_string(o.max_num_seqs) + ")");
  require(o.block_size % 16 == 0, "block_size is " + std::to_string(o.block_size) + ", must be a multiple of 16 on a GPU");
  require(!o.num_blocks || *o.num_blocks >= 1, "num_blocks is " + std::to_string(o.num_blocks.value_or(0)) + ", must be at least 1");
  require(o.memory_utilization > 0 && o.memory_utilization <= 1,
          "gpu-memory-utilization is " + std::to_string(o.memory_utilization) + ", must be above 0 and at most 1");
  require(!o.type || *o.type == dtype::bf16 || *o.type == dtype::f16, "a GPU computes in bf16 or f16");
}

// What a refusal shows.
std::string ledger_of(const gpu_plan& plan, const cuda::memory_state& device) {
  return "weights " + size_text(plan.weight_bytes) + ", activations and buffers " + size_text(plan.activation_bytes) +
         ", graphs and libraries " + size_text(plan.reserve_bytes) + "; the device has " + size_text(device.whole) + ", of which " +
         size_text(device.unused) + " are unused";
}

[[noreturn]] void refuse(const gpu_plan& plan, const cuda::memory_state& device, const std::string& why) {
  throw load_error("the model does not fit the GPU: " + ledger_of(plan, device) + "; " + why);
}

// Blocks, without the one for padding rows. `block_bytes`: of one, over all layers.
std::int32_t block_count(const gpu_plan& plan, const gpu_executor_options& o, std::size_t block_bytes, const cuda::memory_state& device) {
  const std::size_t fixed = plan.total() + block_bytes; // with the padding rows' block
  const auto fits = [&](std::size_t bytes) { return fixed <= device.unused && bytes <= device.unused - fixed; };
  if (o.num_blocks) {
    const std::size_t bytes = block_bytes * static_cast<std::size_t>(*o.num_blocks);
    if (!fits(bytes)) refuse(plan, device, "--num-kv-blocks " + std::to_string(*o.num_blocks) + " take " + size_text(bytes));
    return *o.num_blocks;
  }
  const auto share = static_cast<std::size_t>(static_cast<double>(device.whole) * o.memory_utilization);
  const std::size_t taken = device.whole - device.unused + fixed;
  const std::size_t room = o.kv_bytes.value_or(share > taken ? share - taken : 0);
  const std::string bound =
      o.kv_bytes ? "--kv-cache-memory is " + size_text(room)
                 : "--gpu-memory-utilization " + std::to_string(o.memory_utilization) + " leaves " + size_text(room) + " for the KV cache";
  if (!fits(room)) refuse(plan, device, bound);
  if (room < block_bytes) {
    refuse(plan, device, bound + ", and one block of " + std::to_string(o.block_size) + " tokens takes " + size_text(block_bytes));
  }
  return static_cast<std::int32_t>(std::min<std::size_t>(room / block_bytes, most_blocks));
}

} // namespace

rank_sum_shape sum_shape_of(const model_config& config, const gpu_model_shape& shape) {
  return {shape.type, config.hidden_size, shape.max_rows};
}

gpu_plan plan_gpu(const model_config& config, dtype stored, const gpu_executor_options& o, cuda::memory_state device,
                  const rank_context& rank) {
  check_model(config);
  check_options(o);
  const std::string unsupported = gpu_model::unsupported(config);
  require(unsupported.empty(), "the GPU cannot run this model: " + unsupported);
  gpu_plan plan;
  plan.info.block_size = o.block_size;
  plan.info.max_num_seqs = o.max_num_seqs;
  plan.info.max_batched_tokens = o.max_batched_tokens;
  plan.info.max_model_len = context_length(config, o.max_model_len);
  plan.info.vocab_size = std::min(config.vocab_size, o.tokenizer_vocab_size.value_or(config.vocab_size));
  plan.info.max_verify_tokens = o.max_batched_tokens;
  plan.info.max_proposals = o.max_proposals;
  require(plan.info.vocab_size >= 1, "tokenizer_vocab_size must be at least 1");
  gpu_model_shape& s = plan.shape;
  s.type = o.type.value_or(stored == dtype::f16 ? dtype::f16 : dtype::bf16);
  s.max_rows = std::max(o.max_batched_tokens, o.max_num_seqs); // padding rows of a decode step too
  s.max_head_rows = s.max_rows + o.max_num_seqs;
  s.decode_rows = o.max_num_seqs;
  s.logits_rows = std::min(s.max_head_rows, std::max(o.max_num_seqs, 64));
  s.max_model_len = plan.info.max_model_len;
  s.block_size = o.block_size;
  s.fused = o.fused;
  s.overlaps = o.overlapping_launches;
  s.plain_attention = o.plain_attention;
  s.batch_invariant = o.batch_invariant;
  s.ends = ends_of(config, rank);
  s.head_parts = rank.tp_size;
  plan.weight_bytes = gpu_weight_bytes(config, s.ends);
  plan.reserve_bytes = reserve;
  if (rank.tp_size > 1) plan.reserve_bytes += group_reserve;
  if (rank.stages > 1) plan.reserve_bytes += 2 * group_reserve;
  plan.activation_bytes =
      gpu_model::activation_bytes(config, s) + slot_state_bytes(plan) + steps_in_flight * (upload_bytes(plan) + download_bytes(plan));
  if (rank.stages > 1) plan.activation_bytes += gpu_stages::device_bytes(plan, gpu_model::row_bytes(config));
  if (o.own_all_reduce && !o.batch_invariant) plan.activation_bytes += gpu_rank_sums::planned_bytes(rank.tp_size, sum_shape_of(config, s));
  if (o.own_all_reduce && !o.batch_invariant && gpu_model::may_cut(s))
    plan.activation_bytes += gpu_copied_sums::planned_bytes(rank.tp_size, sum_shape_of(config, s));
  s.num_blocks = 1;
  const std::size_t block_bytes = gpu_model::kv_bytes(config, s);
  plan.info.num_blocks = block_count(plan, o, block_bytes, device);
  s.num_blocks = plan.info.num_blocks + 1;
  plan.kv_bytes = block_bytes * static_cast<std::size_t>(s.num_blocks);
  return plan;
}

std::int32_t shared_blocks(planned_model first, planned_model second, cuda::memory_state device) {
  const auto with_one_block = [&](planned_model& model) {
    model.options.num_blocks = 1;
    return plan_gpu(model.config, model.stored, model.options, device, model.rank);
  };
  const std::optional<std::size_t> kv_bytes = first.options.kv_bytes;
  const std::optional<std::int32_t> asked = first.options.num_blocks;
  const gpu_plan one = with_one_block(first), other = with_one_block(second);
  const std::size_t block_bytes = (one.kv_bytes + other.kv_bytes) / 2; // each plan has the padding rows' block beside the one
  const std::size_t fixed = one.total() + other.total();
  const auto share = static_cast<std::size_t>(static_cast<double>(device.whole) * first.options.memory_utilization);
  const std::size_t taken = device.whole - device.unused + fixed;
  const std::size_t room =
      asked ? block_bytes * static_cast<std::size_t>(std::max(*asked, 0)) : kv_bytes.value_or(share > taken ? share - taken : 0);
  if (fixed > device.unused || room > device.unused - fixed || room < block_bytes) {
    throw load_error("the two models do not fit the GPU: " + size_text(one.total()) + " and " + size_text(other.total()) +
                     " without a cache, " + size_text(room) + " for the KV cache of both; the device has " + size_text(device.whole) +
                     ", of which " + size_text(device.unused) + " are unused");
  }
  return asked ? *asked : static_cast<std::int32_t>(std::min<std::size_t>(room / block_bytes, most_blocks));
}

std::size_t slot_state_bytes(const gpu_plan& plan) {
  const std::size_t slots = static_cast<std::size_t>(plan.info.max_num_seqs) + 1;
  const std::size_t blocks = static_cast<std::size_t>((plan.info.max_model_len + plan.info.block_size - 1) / plan.info.block_size);
  const std::size_t lists = gpu::most_biased_tokens * (sizeof(token_bias) + sizeof(token_id));
  const std::size_t history = static_cast<std::size_t>(plan.info.vocab_size) * sizeof(std::uint32_t);
  const std::size_t head = 2 * sizeof(gpu::sampled_token) + sizeof(gpu::sampling_row) + sizeof(gpu::counted_token) + sizeof(token_id) +
                           gpu::most_best_tokens * sizeof(scored_token);
  return slots * (2 * sizeof(token_id) + sizeof(gpu::sampling_slot) + lists + history + blocks * sizeof(std::int32_t)) +
         static_cast<std::size_t>(plan.shape.max_head_rows) * head;
}

std::size_t upload_bytes(const gpu_plan& plan) {
  const auto rows = static_cast<std::size_t>(plan.shape.max_rows), heads = static_cast<std::size_t>(plan.shape.max_head_rows);
  const auto slots = static_cast<std::size_t>(plan.info.max_num_seqs) + 1;
  const auto room = [](std::size_t count, std::size_t each) { return upload_ring::room_for(count * each); };
  return room(slots, sizeof(gpu::opened_slot)) + room(changes_per_upload, sizeof(gpu::table_change)) +
         2 * room(changes_per_upload, sizeof(gpu::listed_token)) + room(changes_per_upload, sizeof(gpu::copied_block)) +
         room(rows, sizeof(gpu::step_row)) + room(heads, sizeof(gpu::step_head)) + room(slots, sizeof(gpu::step_item)) +
         room(rows, sizeof(gpu::counted_token)) + 4 * room(1, sizeof(gpu::prefill_tile)) + 2 * room(rows, sizeof(gpu::prefill_tile));
}

std::size_t download_bytes(const gpu_plan& plan) {
  const auto heads = static_cast<std::size_t>(plan.shape.max_head_rows), items = static_cast<std::size_t>(plan.info.max_num_seqs);
  return upload_ring::room_for(items * sizeof(gpu::item_result)) + upload_ring::room_for(heads * sizeof(gpu::sampled_token)) +
         upload_ring::room_for(heads * gpu::most_best_tokens * sizeof(scored_token));
}

} // namespace troupe
