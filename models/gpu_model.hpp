// A dense decoder on the GPU: weights, KV cache, activations and the order of the ops. Knows rows, not plans or sampling rules.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "device/kv_layout.hpp"
#include "kernels/elementwise_gpu.hpp"
#include "kernels/linear_gpu.hpp"
#include "kernels/matmul_gpu.hpp"
#include "kernels/prefill_attention_gpu.hpp"
#include "models/gpu_weights.hpp"
#include "models/kernel_timer.hpp"
#include "models/model.hpp"
#include "transport/collective/communicator.hpp"

namespace troupe {

class gpu_copied_sums;
class gpu_rank_sums;

struct gpu_model_shape {
  dtype type = dtype::bf16;
  std::int32_t max_rows = 0;      // of one step
  std::int32_t max_head_rows = 0; // of one step
  std::int32_t decode_rows = 0;   // of one step
  std::int32_t logits_rows = 0;   // logits held at a time
  std::int32_t max_model_len = 0;
  std::int32_t block_size = 0;
  std::int32_t num_blocks = 0; // of the KV cache, padding rows' included
  bool fused = true;
  bool overlaps = true;
  bool plain_attention = false;
  gpu_ends ends;               // what is here beside layers; `ids`: of which this GPU computes logits
  std::int32_t head_parts = 1; // GPUs that hold a part of the head
  bool batch_invariant = false;
};

// The row at which `rows` rows fall into two parts of at least `least`, a multiple of 128, the first with all decode rows; none: they do
// not.
std::optional<std::int32_t> cut_in_two(std::int32_t rows, std::int32_t decode_rows, std::int32_t least);

// Tiles of the rows that are no decode rows; device memory.
struct gpu_tiles {
  const gpu::prefill_tile* first = nullptr;
  std::int32_t count = 0;
  std::int32_t end_position = 0; // behind the last position of all of them
};

// Neighbouring rows of a step that go through a layer's ops together.
struct gpu_part {
  std::int32_t first = 0;
  std::int32_t rows = 0;
  gpu_tiles tiles, sliding_tiles; // of layers that see everything, and of those with a window
};

// Rows of one step, first those that are each a sequence's next one. Tokens, positions and so on lie in the model's rows().
struct gpu_batch {
  std::int32_t rows = 0;
  std::int32_t decode_rows = 0;               // all in the first part
  std::array<gpu_part, 2> parts;              // one behind the other
  std::size_t part_count = 1;                 // 2: see gpu_model::second_part()
  const std::int32_t* block_tables = nullptr; // [slots][table_stride]
  bool embedded = false;                      // the hidden states to begin with are there: rows that start the fused chain
  bool trial = false;                         // layers of each kind alone, so that their kernels are loaded; the rows come to nothing
};

// What the head leaves of a step's rows; device memory.
struct fused_head {
  const float* logits = nullptr;        // [rows][logits_stride()]
  const gpu::logit_top* tops = nullptr; // [rows][most_logit_tops], the first tops_count of each row: see sampling_args
  std::int32_t tops_count = 0;
};

class gpu_model {
 public:
  // Where a step's rows are laid out before the layers run; device memory.
  struct row_arrays {
    token_id* tokens = nullptr;             // [max_rows]
    std::int32_t* positions = nullptr;      // [max_rows]
    std::int32_t* tables = nullptr;         // [max_rows]: slots
    std::int32_t* row_tables = nullptr;     // [decode_rows][table_stride]
    gpu::prefill_tile* row_tiles = nullptr; // [decode_rows], where the model is batch-invariant: the decode rows' tiles
    std::int32_t* last_position = nullptr;  // likewise: of all decode rows
    std::int32_t* head_rows = nullptr;      // [max_head_rows]: rows whose logits are wanted
    std::int64_t table_stride = 0;
  };
  // Called when the ops of a layer have been put on the stream.
  using after_layer_fn = std::function<void(std::int32_t layer)>;

  static std::size_t kv_bytes(const model_config& config, const gpu_model_shape& shape);         // for shape.num_blocks
  static std::size_t row_bytes(const model_config& config);                                      // of a row of hidden()
  static std::size_t activation_bytes(const model_config& config, const gpu_model_shape& shape); // and other small buffers
  // What the kernels cannot do with this model, or an empty string.
  static std::string unsupported(const model_config& config);

  // Takes activations from `memory` and clears the KV cache, kv_bytes() at `kv`, unless it is kept; like the weights it outlives this.
  gpu_model(const model_config& config, const gpu_model_shape& shape, gpu_weights weights, std::byte* kv, bool kv_kept,
            cuda::caching_allocator& memory, const cuda::stream& on, std::filesystem::path tuning_cache,
            std::function<void(const std::string&)> log);

  // Before the first step: the weights are one rank's of a tensor parallel group. What each layer adds is summed up over `tensor`, on `sums`
  // where that overlaps other work. Both outlive this.
  void share_layers(communicator* tensor, const cuda::stream& sums);
  // Few rows are summed up by it instead, in the fused chain together with residual and norm; outlives this. Null: by `tensor` alone.
  void sum_few_rows_with(const gpu_rank_sums* sums) { few_sums_ = sums; }
  // Measures which algorithms products of many rows take, unless the cache knows; overwrites activations. `first`: of its group's ranks,
  // which the products of the first one add the rows of before to.
  void tune(const cuda::stream& on, bool first);

  // Whether forward() takes the fused chain: five launches a layer (six with QK-norm).
  bool fuses(const gpu_batch& batch) const;
  // Before a first step with rows enough to be cut, in a group: their sums go this way, not through NCCL. Outlives this.
  void sum_parts_with(gpu_copied_sums* sums) { part_sums_ = sums; }
  // Whether there are steps with rows enough.
  static bool may_cut(const gpu_model_shape& shape);
  // The row at which a step is cut in two, so that in a group the sums of each part overlap the other part's work; none: it stays whole.
  std::optional<std::int32_t> second_part(std::int32_t rows, std::int32_t decode_rows) const;
  // The last layer's output of every row; writes the rows' keys and values.
  void forward(const cuda::stream& on, const gpu_batch& batch, const after_layer_fn& after_layer = {});
  // Logits of rows head_rows[first .. first + count - 1] of the last forward(), count at most shape().logits_rows: f32
  // [count][logits_stride()], until the next call.
  const float* logits(const cuda::stream& on, std::int32_t first, std::int32_t count);
  // The same of all rows in order, after a forward() that fuses.
  fused_head fused_logits(const cuda::stream& on, std::int32_t rows);
  // Marks groups of kernels from now on; null: no longer.
  void time_with(kernel_timer* timer) { timer_ = timer; }

  std::int64_t logits_stride() const { return std::int64_t{shape_.ends.ids.places} * shape_.head_parts; }
  const row_arrays& rows() const { return rows_; }
  // [rows][hidden_size]: before forward() of a batch that is `embedded`, or where there is no embedding; of all after it, or in
  // after_layer.
  std::byte* hidden() const { return hidden_.data(); }
  const std::byte* embedding() const { return static_cast<const std::byte*>(weights_.embedding); } // [vocab][hidden_size]
  const model_config& config() const { return config_; }
  const gpu_model_shape& shape() const { return shape_; }
  std::byte* kv_data() const { return kv_; }
  std::size_t kv_layer_bytes() const;

 private:
  using buffer = cuda::caching_allocator::buffer;

  void mark(const cuda::stream& on, kernel_group group) const {
    if (timer_ != nullptr) timer_->mark(on, group);
  }
  void fused_layer(const cuda::stream& on, std::int32_t rows, std::int32_t index);
  void fused_attention_input(const cuda::stream& on, std::int32_t rows, std::int32_t index);
  gpu::linear_args few_rows(const void* x, std::int32_t rows, const void* norm_weight, const void* weight, std::int64_t out_rows,
                            std::int64_t columns, void* y) const;
  gpu::rope_kv_args turning(const gpu_layer_weights& w, std::int32_t rows, std::int32_t index) const;
  template <class Args>
  Args attention_args(std::int32_t rows, std::int32_t index, std::int64_t query_stride) const;
  void attend_decode(const cuda::stream& on, std::int32_t rows, std::int32_t index, std::int64_t query_stride, bool overlaps);
  void layer(const cuda::stream& on, const gpu_batch& batch, std::int32_t index);
  void attention_block(const cuda::stream& on, const gpu_batch& batch, std::size_t part, std::int32_t index);
  void mlp_block(const cuda::stream& on, const gpu_batch& batch, std::size_t part, std::int32_t index);
  void* from_row(const buffer& rows, std::int32_t first, std::int64_t width) const;
  void invariant_attention_block(const cuda::stream& on, const gpu_batch& batch, std::size_t part, std::int32_t index);
  void invariant_mlp_block(const cuda::stream& on, const gpu_batch& batch, std::size_t part, std::int32_t index);
  void invariant_attention_input(const cuda::stream& on, const gpu_batch& batch, const gpu_part& part, std::int32_t index);
  gpu::linear_args any_rows(const void* x, std::int32_t rows, const void* weight, std::int64_t out_rows, std::int64_t columns,
                            void* y) const;
  void add_in_place(const cuda::stream& on, const gpu::linear_args& product) const;
  void sum_in_order_of_ranks(const cuda::stream& on, std::byte* rows, std::size_t count);
  // Of a group's ranks the first alone brings the rows of before into the sum.
  const void* residual_of_rank() const { return residual_of_rank(hidden_.data()); }
  const void* residual_of_rank(const void* rows) const { return tensor_ == nullptr || tensor_->rank() == 0 ? rows : nullptr; }
  void add_to_hidden(const cuda::stream& on, gpu::linear_args product, const void* next_norm);
  gpu::linear_args few_hidden_rows(bool summed, std::int32_t rows, const void* norm_weight, const void* weight, std::int64_t out_rows,
                                   void* y) const;
  bool takes_few_sums(std::int32_t rows) const;
  bool normalises_few_sums(std::int32_t rows) const;
  void sum_over_ranks(const cuda::stream& on, std::int32_t rows);
  void sum_by_library(const cuda::stream& on, std::int32_t first, std::int32_t rows);
  void begin_sum(const cuda::stream& on, const gpu_batch& batch, std::size_t part);
  void norm_sum(const cuda::stream& on, const gpu_batch& batch, std::size_t part, const void* weight, kernel_group group);
  float* own_logits(std::int32_t rows) const;
  const float* whole_logits(const cuda::stream& on, std::int32_t rows);
  void norm(const cuda::stream& on, const void* x, const void* weight, std::int32_t rows, void* y, const std::int32_t* from = nullptr);
  gpu::matmul_args product(const void* x, std::int32_t rows, const void* weight, std::int64_t out_rows, std::int64_t columns,
                           void* y) const;
  void attend(const cuda::stream& on, const gpu_batch& batch, const gpu_part& part, std::int32_t index);
  void attend_tiles(const cuda::stream& on, const gpu_batch& batch, std::int32_t index, const gpu_tiles& tiles);
  gpu::attention_shares shares_of(const gpu_tiles& tiles) const;
  bool slides(std::int32_t index) const { return config_.sliding_window && index >= config_.first_sliding_layer; }
  std::int64_t query_width() const { return std::int64_t{config_.num_heads} * config_.head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * std::int64_t{config_.num_kv_heads} * config_.head_dim; }
  kv_layer_view kv_of(std::int32_t layer) const;

  model_config config_;
  gpu_model_shape shape_;
  gpu_weights weights_;
  std::byte* kv_;
  gpu::matmul matmul_;
  buffer cos_, sin_;
  buffer tokens_, positions_, tables_, row_tables_, row_tiles_, last_position_, head_rows_;
  buffer hidden_, normed_, qkv_, attended_, gate_up_, gated_; // [max_rows][..]
  buffer head_normed_, logits_;                               // [logits_rows][..]
  buffer tops_;                                               // of logits of few rows
  buffer gathered_;                                           // [head_parts][rows][places], in a group
  buffer linear_workspace_, share_workspace_;
  row_arrays rows_;
  kernel_timer* timer_ = nullptr;
  communicator* tensor_ = nullptr; // null: the layers are whole
  const cuda::stream* sums_ = nullptr;
  gpu_copied_sums* part_sums_ = nullptr;
  std::array<cuda::event, 2> computed_, summed_; // by part: its rows' share of a sum, and the sum
  std::array<bool, 2> summing_{};                // likewise: a sum was begun
  const gpu_rank_sums* few_sums_ = nullptr;      // or null
};

} // namespace troupe
