// Of which pieces a GPU's weights are made, where each lies, and what its bytes are: all of a GPU's loading that needs no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/gpu_weights.hpp"

namespace troupe {

inline constexpr std::size_t gpu_element_bytes = 2; // of bf16 and f16

enum class dummy_spread : std::uint8_t { matrix, norm, bias };

// A matrix (or a vector, as one row) and where it goes. Sources are null where there is no checkpoint.
struct weight_piece {
  std::size_t offset = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t interleaved_head = 0; // head_dim where pairs (2i, 2i + 1) become halves of a head; 0: rows stay in order
  dummy_spread dummy = dummy_spread::matrix;
  const weight_view* matrix = nullptr;
  const std::vector<float>* vector = nullptr;
  std::int64_t rows_before = 0;                       // of the whole matrix, that other GPUs hold
  std::int64_t padding_rows = 0, padding_columns = 0; // the last ones, zeros

  std::size_t bytes() const;
  // The stored row (or element) that belongs at `row`.
  std::int64_t source(std::int64_t row) const;
};

// What is not so of most pieces.
struct piece_traits {
  std::int64_t interleaved_head = 0, padding_rows = 0, padding_columns = 0;
  bool joined = false; // right behind the piece before
};

// Lays pieces one behind the other; addresses are offsets until a base is added.
class weight_layout {
 public:
  // `weights` (or null: shapes alone) and `config`, a GPU's share both, outlive the layout.
  weight_layout(const model_config& config, const gpu_ends& ends, const model_weights* weights);

  std::size_t bytes() const { return used_; }
  const std::vector<weight_piece>& pieces() const { return pieces_; }
  gpu_weights at(std::byte* base, dtype type) const;

 private:
  struct layer_offsets {
    std::size_t attention_norm = 0, qkv = 0, qkv_bias = 0, query_norm = 0, key_norm = 0, output = 0, output_bias = 0, mlp_norm = 0,
                gate_up = 0, down = 0;
  };

  std::size_t add(weight_piece p, const piece_traits& its);
  void add_places(std::int64_t rows);
  std::size_t matrix(std::int64_t rows, std::int64_t columns, const weight_view* from, const piece_traits& its = {});
  std::size_t vector(std::int64_t size, dummy_spread dummy, const std::vector<float>* from, const piece_traits& its = {});
  void add_layer(const layer_weights* w);
  void add_attention(layer_offsets& at, const layer_weights* w);

  const model_config& config_;
  const gpu_ends ends_;
  std::size_t used_ = 0;
  std::size_t embedding_ = 0, final_norm_ = 0, head_ = 0;
  std::vector<weight_piece> pieces_;
  std::vector<layer_offsets> layers_;
};

// Rows of a piece that are made and copied together.
struct upload_job {
  const weight_piece* from;
  std::int64_t first, count; // rows

  std::size_t offset() const; // of where they go
  std::size_t bytes() const;
};
std::vector<upload_job> upload_jobs(const std::vector<weight_piece>& pieces);

// The job's bytes as the GPU has them, its padding too, into `to`. `row` is room for one. Throws load_error for a value that `type` cannot
// hold.
void convert(const upload_job& job, dtype type, std::byte* to, std::vector<float>& row);

} // namespace troupe
