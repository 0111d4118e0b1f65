#include "models/gpu_slots.hpp"

#include "device/cuda/pinned_ring.hpp"

namespace troupe {
gpu_slots::gpu_slots(const gpu_plan& plan, cuda::caching_allocator& memory, const cuda::stream& on)
    : spare_(plan.info.max_num_seqs),
      table_stride_((std::int64_t{plan.info.max_model_len} + plan.info.block_size - 1) / plan.info.block_size) {
  const std::size_t slots = static_cast<std::size_t>(spare_) + 1, heads = static_cast<std::size_t>(plan.shape.max_head_rows);
  const auto take = [&](std::size_t count, std::size_t each) {
    buffer made = memory.allocate(count * each, "slots");
    cuda::clear(on, made.data(), made.size());
    return made;
  };
  last_token_ = take(slots, sizeof(token_id));
  faulted_ = take(slots, sizeof(std::int32_t));
  slot_sampling_ = take(slots, sizeof(gpu::sampling_slot));
  biases_ = take(slots * gpu::most_biased_tokens, sizeof(token_bias));
  suppressed_ = take(slots * gpu::most_biased_tokens, sizeof(token_id));
  tables_ = take(slots * static_cast<std::size_t>(table_stride_), sizeof(std::int32_t));
  history_ = take(slots * static_cast<std::size_t>(plan.info.vocab_size), sizeof(std::uint32_t));
  sampling_ = take(heads, sizeof(gpu::sampling_row));
  sampled_ = take(heads, sizeof(gpu::sampled_token));
  best_ = take(heads * gpu::most_best_tokens, sizeof(scored_token));
  head_inputs_ = take(heads, sizeof(token_id));
  counted_ = take(heads, sizeof(gpu::counted_token));
}

gpu::slot_arrays gpu_slots::arrays() const {
  return {last_token_.as<token_id>(),
          faulted_.as<std::int32_t>(),
          slot_sampling_.as<gpu::sampling_slot>(),
          biases_.as<token_bias>(),
          suppressed_.as<token_id>(),
          tables_.as<std::int32_t>(),
          table_stride_};
}

std::uint32_t* gpu_slots::history() const { return history_.as<std::uint32_t>(); }
gpu::sampling_row* gpu_slots::sampling() const { return sampling_.as<gpu::sampling_row>(); }
gpu::sampled_token* gpu_slots::sampled() const { return sampled_.as<gpu::sampled_token>(); }
scored_token* gpu_slots::best() const { return best_.as<scored_token>(); }
token_id* gpu_slots::head_inputs() const { return head_inputs_.as<token_id>(); }
gpu::counted_token* gpu_slots::counted() const { return counted_.as<gpu::counted_token>(); }

} // namespace troupe
