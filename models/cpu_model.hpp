// A dense decoder on the CPU, or one rank's part of it: packed weights, KV cache and the order of the ops. Knows rows, not sequences,
// slots or sampling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.hpp"
#include "device/cpu/aligned_buffer.hpp"
#include "device/cpu/kv_storage.hpp"
#include "device/cpu/thread_pool.hpp"
#include "kernels/attention.hpp"
#include "kernels/rope.hpp"
#include "models/cpu_weights.hpp"
#include "models/kept_kv.hpp"
#include "models/model.hpp"
#include "models/rank_context.hpp"
#include "models/shard.hpp"

namespace troupe {

struct cpu_model_shape {
  std::int32_t threads = 1;
  std::int32_t max_rows = 0;  // of one forward()
  std::int32_t head_rows = 0; // of one logits()
  std::int32_t block_size = 0;
  std::int32_t num_blocks = 0;
  dtype kv_type = dtype::f16;
};

// Rows in the order of their spans, which cover them without gaps.
struct forward_batch {
  std::span<const token_id> tokens;
  std::span<const std::int32_t> positions;
  std::span<const attention_span> spans;
  std::function<void(const float* hidden)> after_layer = {}; // sees [rows][hidden_size] behind each layer; empty: nobody looks
};

class cpu_model {
 public:
  // Packs the weights, which are those of `rank` (models/shard.hpp), or maps what `keep` has of them, and takes all memory; that of the KV
  // cache from `keep_kv`. Throws
  // std::bad_alloc, std::invalid_argument for shapes that do not fit together.
  cpu_model(std::shared_ptr<const model_weights> weights, const cpu_model_shape& shape, rank_context rank = {},
            const std::optional<keeper::access>& keep = {}, const std::optional<kv_keeping>& keep_kv = {});

  // Computes the output of every row behind the last layer that is here, and writes the rows' keys and values. Every token and block id
  // must be in range. All ranks of a group are given the same batch; throws collective_error.
  void forward(const forward_batch& batch);
  // Logits of some rows of the last forward(), at most head_rows: [rows.size()][logits_stride()], valid until the next call; what lies
  // behind the vocabulary is nothing. In a group all ranks of the last stage must call it, and the leader gets them: others get null.
  const float* logits(std::span<const std::int32_t> rows);
  std::int64_t logits_stride() const { return std::int64_t{vocab_.places} * rank_.tp_size; }

  const model_config& config() const { return weights_->config; }
  const cpu_model_shape& shape() const { return shape_; }
  cpu::thread_pool& pool() { return pool_; }
  cpu::kv_storage& kv() { return kv_; }

 private:
  void enter(const forward_batch& batch);
  void leave(std::int64_t rows);
  void embed(std::span<const token_id> tokens);
  void attention_block(const forward_batch& batch, std::size_t index);
  void mlp_block(std::int64_t rows, std::size_t index);
  void add_up(std::int64_t rows);
  const float* gather_logits(std::int64_t rows);
  collective_buffer hidden_rows(std::int64_t rows);

  std::shared_ptr<const model_weights> weights_;
  cpu_model_shape shape_;
  rank_context rank_;
  vocab_slice vocab_;
  cpu::thread_pool pool_;
  rope_table rope_;
  // Read at every step, so all of it a copy: pages of a file come late, and end the process once the file has shrunk.
  cpu_weights packed_;
  cpu::kv_storage kv_;
  std::vector<attention_unit> units_;
  std::int64_t query_width_; // heads * head_dim
  std::int64_t kv_width_;    // kv_heads * head_dim
  // Activations, [max_rows][..]
  cpu::aligned_buffer<float> hidden_, normed_, qkv_, attended_, gate_up_, gated_;
  cpu::aligned_buffer<float> head_input_, logits_; // [head_rows][..]
  cpu::aligned_buffer<float> vocab_part_;          // [head_rows][places], in a group
};

} // namespace troupe
