#include "models/executor_plan.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "models/kept_weights.hpp"
#include "models/shard.hpp"

namespace troupe {
namespace {

constexpr std::int32_t head_rows = 32; // logits held at a time

void require(bool holds, const std::string& what) {
  if (!holds) throw load_error(what);
}

void require_positive(std::int32_t number, const std::string& name) {
  require(number >= 1, name + " is " + std::to_string(number) + ", must be at least 1");
}

std::size_t product(std::size_t a, std::size_t b, const char* what) {
  std::size_t result = 0;
  require(!__builtin_mul_overflow(a, b, &result),
          std::string(what) + " does not fit in memory: " + std::to_string(a) + " times " + std::to_string(b) + " bytes");
  return result;
}

std::int32_t block_count(const cpu_executor_options& options, std::size_t block_bytes) {
  if (options.num_blocks) {
    require_positive(*options.num_blocks, "num_blocks");
    return *options.num_blocks;
  }
  const std::size_t fit = options.kv_bytes / block_bytes;
  require(fit >= 1, "kv_bytes is " + std::to_string(options.kv_bytes) + ", but one block of " + std::to_string(options.block_size) +
                        " tokens takes " + std::to_string(block_bytes) + " bytes");
  return static_cast<std::int32_t>(std::min<std::size_t>(fit, std::numeric_limits<std::int32_t>::max()));
}

// Packed matrices are as large as stored ones, but for the padding. A tied head is packed beside the embedding.
std::size_t copied_bytes(const model_weights& weights) {
  std::size_t total = bytes_of(weights.embedding) + bytes_of(weights.head);
  for (const layer_weights& w : weights.layers) {
    for (const weight_view* view : {&w.query, &w.key, &w.value, &w.output, &w.gate, &w.up, &w.down}) total += bytes_of(*view);
  }
  return total;
}

// Floats that a row takes at the head.
std::size_t logit_row(const model_config& c, const rank_context& rank) {
  if (!rank.last_stage()) return 0;
  const std::size_t places = static_cast<std::size_t>(slice_of_vocab(c.vocab_size, rank.tp_rank, rank.tp_size).places);
  const std::size_t all = rank.leader() ? places * static_cast<std::size_t>(rank.tp_size) : 0;
  return all + (rank.tp_size > 1 ? places : 0) + static_cast<std::size_t>(c.hidden_size);
}

void check_memory(const executor_plan& plan, std::size_t block_bytes, std::uint64_t available) {
  std::size_t fixed = 0, needed = 0;
  const bool countable =
      !__builtin_add_overflow(plan.weight_bytes, plan.activation_bytes, &fixed) && !__builtin_add_overflow(fixed, plan.kv_bytes, &needed);
  if (countable && needed <= available) return;
  const bool fits_with_less = countable && fixed <= available && available - fixed >= block_bytes;
  throw load_error("not enough memory: the weights take " + std::to_string(plan.weight_bytes) + " bytes, activations and logits " +
                   std::to_string(plan.activation_bytes) + ", the KV cache " + std::to_string(plan.kv_bytes) + ", but " +
                   std::to_string(available) + " are available" +
                   (fits_with_less
                        ? "; a KV cache of up to " + std::to_string(available - fixed) + " bytes fits (--kv-cache-memory, --num-kv-blocks)"
                        : std::string()));
}

} // namespace

void check_model(const model_config& c) {
  require_positive(c.vocab_size, "vocab_size");
  require_positive(c.hidden_size, "hidden_size");
  require_positive(c.intermediate_size, "intermediate_size");
  require_positive(c.num_layers, "num_layers");
  require_positive(c.num_kv_heads, "num_kv_heads");
  require_positive(c.head_dim, "head_dim");
  require(c.num_heads >= 1 && c.num_heads % c.num_kv_heads == 0,
          std::to_string(c.num_heads) + " heads cannot share " + std::to_string(c.num_kv_heads) + " KV heads evenly");
  require(c.rope.rotary_dim >= 0 && c.rope.rotary_dim % 2 == 0 && c.rope.rotary_dim <= c.head_dim,
          "rotary_dim is " + std::to_string(c.rope.rotary_dim) + ", must be even and at most head_dim " + std::to_string(c.head_dim));
  require(!c.sliding_window || *c.sliding_window >= 1, "sliding_window must be at least 1");
}

std::int32_t context_length(const model_config& c, std::optional<std::int32_t> wanted) {
  const std::int32_t length = wanted.value_or(c.max_position);
  require_positive(length, "max_model_len");
  require(length <= c.max_position,
          "max_model_len is " + std::to_string(length) + ", but the model was made for " + std::to_string(c.max_position) + " positions");
  return length;
}

std::size_t kv_bytes_per_token(const model_config& config, dtype kv_type) {
  return 2 * static_cast<std::size_t>(config.num_layers) * static_cast<std::size_t>(config.num_kv_heads) *
         static_cast<std::size_t>(config.head_dim) * traits(kv_type).block_bytes;
}

// F16 cannot hold the range that a model in BF16 was trained with.
dtype kv_type_of(const model_weights& whole, const cpu_executor_options& options) {
  const dtype stored = whole.layers.front().query.type;
  return options.kv_type.value_or(stored == dtype::f32 || stored == dtype::bf16 ? stored : dtype::f16);
}

std::optional<std::uint64_t> available_memory(const model_weights& weights, const cpu_executor_options& options,
                                              std::optional<std::uint64_t> available) {
  if (!available) return std::nullopt;
  return *available + kept_bytes(options.keep, weights.source, "cpu") + kept_kv_bytes(options.keep_kv, weights.source, "cpu");
}

executor_plan plan_executor(const model_weights& weights, const cpu_executor_options& options, std::optional<std::uint64_t> available,
                            const rank_context& rank) {
  const model_config& c = weights.config;
  check_model(c);
  require(options.threads >= 0, "threads is " + std::to_string(options.threads) + ", must be 0 or more");
  require_positive(options.block_size, "block_size");
  require_positive(options.max_num_seqs, "max_num_seqs");
  require_positive(options.max_batched_tokens, "max_batched_tokens");
  require(weights.layers.size() == static_cast<std::size_t>(c.num_layers), "the weights hold another number of layers than the config");
  const dtype kv_type = kv_type_of(weights, options);
  require(kv_type == dtype::f32 || kv_type == dtype::f16 || kv_type == dtype::bf16,
          "the KV cache cannot be of type " + std::string(traits(kv_type).name) + ", only F32, F16 or BF16");

  executor_plan plan;
  const std::size_t block_bytes = product(kv_bytes_per_token(c, kv_type), static_cast<std::size_t>(options.block_size), "a KV block");
  plan.info = {options.block_size,
               block_count(options, block_bytes),
               options.max_num_seqs,
               options.max_batched_tokens,
               context_length(c, options.max_model_len),
               std::min(c.vocab_size, options.tokenizer_vocab_size.value_or(c.vocab_size)),
               options.max_batched_tokens,
               options.max_proposals};
  require_positive(plan.info.vocab_size, "tokenizer_vocab_size");
  plan.shape = {options.threads > 0 ? options.threads : static_cast<std::int32_t>(cpu::usable_cores()),
                options.max_batched_tokens,
                std::min(head_rows, options.max_batched_tokens),
                options.block_size,
                plan.info.num_blocks,
                kv_type};
  plan.kv_bytes = product(block_bytes, static_cast<std::size_t>(plan.info.num_blocks), "the KV cache");
  const std::size_t heads = static_cast<std::size_t>(2 * (c.num_heads + c.num_kv_heads)) * static_cast<std::size_t>(c.head_dim);
  const std::size_t row = 2 * static_cast<std::size_t>(c.hidden_size) + heads + 3 * static_cast<std::size_t>(c.intermediate_size);
  plan.activation_bytes = product(row * sizeof(float), static_cast<std::size_t>(options.max_batched_tokens), "the activations") +
                          sizeof(float) * static_cast<std::size_t>(plan.shape.head_rows) * logit_row(c, rank);
  plan.weight_bytes = copied_bytes(weights);
  if (available) check_memory(plan, block_bytes, *available);
  return plan;
}

executor_plan plan_rank(const model_weights& whole, cpu_executor_options options, const rank_context& rank) {
  check_model(whole.config);
  if (rank.size() == 1) return plan_executor(whole, options, std::nullopt);
  options.kv_type = kv_type_of(whole, options);
  return plan_executor(shard_weights(whole, rank), options, std::nullopt, rank);
}

} // namespace troupe
