// step_plan -> ops -> step_result on the CPU: the reference device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/dtype.hpp"
#include "core/step.hpp"
#include "device/keeper/client.hpp"
#include "models/kept_kv.hpp"
#include "models/model.hpp"
#include "models/rank_context.hpp"
#include "models/start_times.hpp"

namespace troupe {

struct cpu_executor_options {
  std::int32_t threads = 0;     // 0: one per core that the process may use
  std::int32_t block_size = 16; // tokens per KV block
  std::int32_t max_num_seqs = 64;
  std::int32_t max_batched_tokens = 512;
  std::optional<std::int32_t> max_model_len; // none: the model's max_position
  std::optional<std::int32_t> num_blocks;    // none: from kv_bytes
  std::size_t kv_bytes = std::size_t{1} << 30;
  std::optional<dtype> kv_type; // f32, f16 or bf16; none: as the weights where they are f32 or bf16, else f16
  // Logits beyond this many ids (padding rows of the head) are masked. none: config.vocab_size.
  std::optional<std::int32_t> tokenizer_vocab_size;
  std::optional<keeper::access> keep; // who keeps the weights beyond this process; none: nobody
  std::optional<kv_keeping> keep_kv;  // likewise the KV cache
  std::int32_t max_proposals = 0; // that plans may ask of a draft model beside this one (models/drafting_executor.hpp)
  std::size_t bytes_beside = 0;   // that such a model will take
  start_times* start = nullptr;   // told what the start has reached, until the executor is made
};

// Throws load_error when the options cannot work together (with the numbers).
// Results do not depend on the batch: a row's arithmetic is the same alone, in a chunk or beside others.
//
// `weights` are the whole model's, of which a rank of a group takes its part. All ranks must be made at once: they agree on the number of
// KV blocks before any takes memory, and throw collective_error when another does not come. `options` are each rank's own.
std::unique_ptr<step_executor> make_cpu_executor(std::shared_ptr<const model_weights> weights, const cpu_executor_options& options,
                                                 const rank_context& rank = {});

// Bytes of KV per token over all layers, both K and V.
std::size_t kv_bytes_per_token(const model_config& config, dtype kv_type);

} // namespace troupe
