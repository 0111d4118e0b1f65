// A dense decoder on the GPU: weights, KV cache, activations and the order of the ops. Knows rows, not plans or sampling rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/ids.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "device/kv_layout.hpp"
#include "kernels/linear_gpu.hpp"
#include "models/gpu_weights.hpp"
#include "models/model.hpp"

namespace troupe {

struct gpu_model_shape {
  dtype type = dtype::bf16;
  std::int32_t max_rows = 0;   // of one step
  std::int32_t max_slots = 0;  // rows of one step that have block tables of their own
  std::int32_t head_rows = 0;  // logits held at a time
  std::int32_t max_model_len = 0;
  std::int32_t block_size = 0;
  std::int32_t num_blocks = 0; // of the KV cache; one more is made, for padding rows
  bool fused = true;
  bool overlaps = true;
};

// Rows of one sequence at neighbouring positions.
struct gpu_span {
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::int32_t first_position = 0;
  const std::int32_t* table = nullptr; // device memory: the sequence's blocks
};

// Rows of one step: first those with a block table each, then the spans without gaps. Tokens, positions and tables lie in the model's rows().
struct gpu_batch {
  std::int32_t table_rows = 0;
  std::span<const gpu_span> spans;

  std::int32_t rows() const { return spans.empty() ? table_rows : spans.back().first_row + spans.back().rows; }
};

class gpu_model {
 public:
  // Where a step's rows are laid out before the layers run; device memory.
  struct row_arrays {
    token_id* tokens = nullptr;         // [max_rows]
    std::int32_t* positions = nullptr;  // [max_rows]
    std::int32_t* row_tables = nullptr; // [max_slots][table_stride]
    std::int32_t* head_rows = nullptr;  // [max_rows]: rows whose logits are wanted
    std::int64_t table_stride = 0;
  };
  // Called when the ops of layer `index` have been put on the stream.
  using after_layer_fn = std::function<void(std::int32_t index)>;

  static std::size_t kv_block_bytes(const model_config& config, const gpu_model_shape& shape); // over all layers
  static std::size_t activation_bytes(const model_config& config, const gpu_model_shape& shape);
  // What the kernels cannot do with this model, or an empty string.
  static std::string unsupported(const model_config& config);

  // Takes KV cache and activations from `memory`. `weights` point to memory that outlives this.
  gpu_model(const model_config& config, const gpu_model_shape& shape, gpu_weights weights, cuda::caching_allocator& memory,
            const cuda::stream& on);

  // The last layer's output of every row; writes the rows' keys and values. Steps whose rows all have tables of their own may take the
  // fused chain, see fuses().
  void forward(const cuda::stream& on, const gpu_batch& batch, const after_layer_fn& after_layer = {});
  // Logits of the rows head_rows[first .. first + count - 1], count at most shape().head_rows: f32 [count][vocab], until the next call.
  const float* logits(const cuda::stream& on, std::int32_t first, std::int32_t count);

  bool fuses(const gpu_batch& batch) const;
  const row_arrays& rows() const { return rows_; }
  const void* hidden() const { return hidden_.data(); } // [rows][hidden_size], after forward() or within after_layer
  const model_config& config() const { return config_; }
  const gpu_model_shape& shape() const { return shape_; }
  std::byte* kv_data() const { return kv_.data(); }
  std::size_t kv_layer_bytes() const;

 private:
  void attention_block(const cuda::stream& on, const gpu_batch& batch, std::int32_t index);
  void mlp_block(const cuda::stream& on, std::int32_t rows, std::int32_t index);
  void norm(const cuda::stream& on, const void* x, const void* weight, std::int32_t rows, void* y);
  void product(const cuda::stream& on, const void* x, std::int32_t rows, const void* weight, std::int64_t out_rows, std::int64_t columns,
               const void* bias, const void* residual, void* y);
  void head_norms(const cuda::stream& on, std::int32_t rows, const gpu_layer_weights& w);
  void attend(const cuda::stream& on, const gpu_batch& batch, std::int32_t index);
  std::int64_t query_width() const { return std::int64_t{config_.num_heads} * config_.head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * std::int64_t{config_.num_kv_heads} * config_.head_dim; }
  kv_layer_view kv_of(std::int32_t layer) const;
  gpu::row_places row_places_of(std::int32_t first_row, const gpu_span* span) const;

  using buffer = cuda::caching_allocator::buffer;
  model_config config_;
  gpu_model_shape shape_;
  gpu_weights weights_;
  buffer kv_;
  buffer cos_, sin_;
  buffer tokens_, positions_, row_tables_, head_rows_;
  buffer hidden_, normed_, qkv_, attended_, gate_up_, gated_; // [max_rows][..]
  buffer head_input_, head_normed_, logits_;                  // [head_rows][..]
  row_arrays rows_;
};

} // namespace troupe
