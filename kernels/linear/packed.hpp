// A weight matrix in the layout of layout.hpp, and the products with it. What the class linear is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "core/weight_view.hpp"
#include "device/cpu/thread_pool.hpp"
#include "kernels/linear.hpp"
#include "kernels/linear/layout.hpp"

namespace troupe::cpu::detail {

struct aligned_delete {
  std::size_t alignment = 64;
  void operator()(unsigned char* bytes) const noexcept { ::operator delete[](bytes, std::align_val_t{alignment}); }
};
using aligned_bytes = std::unique_ptr<unsigned char[], aligned_delete>;
// At least 64-byte aligned, not initialised; large ones on huge pages where the system has them.
aligned_bytes allocate_aligned(std::size_t size);

// Where the parts of a matrix's packed form lie.
struct packed_layout {
  explicit packed_layout(const weight_view& view);

  std::int64_t panel_rows;
  std::int64_t panels;
  std::size_t weights_stride = 0; // bytes of one panel's quants or elements
  std::size_t scales_stride = 0;
  std::size_t scales_offset = 0; // all panels' scales lie behind all panels' quants
  std::size_t size = 0;          // of all, a multiple of 64
};

class packed_matrix {
 public:
  // Copies `view` into panels, into `place` or, where that is null, into memory of its own. `bias` is empty or has view.rows entries. The
  // view has been checked by the caller.
  packed_matrix(const weight_view& view, std::span<const float> bias, thread_pool* pool, weight_place place);

  dtype type() const { return type_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t panels() const { return at_.panels; }
  std::int64_t panel_rows() const { return at_.panel_rows; }
  std::size_t bytes() const { return at_.size; }
  // Fills in the weights, bias and outputs of `job` for panel `index`.
  void describe_panel(std::int64_t index, tile_job& job) const;

 private:
  void pack_panel(const weight_view& view, std::int64_t index, unsigned char* to) const;

  dtype type_;
  std::int64_t rows_;
  packed_layout at_;
  aligned_bytes own_; // null: the memory is the caller's
  const unsigned char* data_;
  std::vector<float> bias_; // padded to whole panels, or empty
};

// Several matrices over one input, with a fixed kernel set.
class packed_linear {
 public:
  // Throws std::invalid_argument as class linear says.
  packed_linear(std::span<const weight_view> views, std::span<const std::vector<float>> biases, const kernel_set& kernels,
                thread_pool* pool, weight_place place = {});

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::size_t bytes() const;
  static std::size_t bytes_of(std::span<const weight_view> views);
  void apply(thread_pool& pool, const float* x, std::int64_t x_stride, std::int64_t count, float* y, std::int64_t y_stride,
             bool accumulate) const;

 private:
  struct part {
    packed_matrix matrix;
    std::int64_t first_output; // in y
    std::int64_t first_panel;  // among all parts' panels
  };
  struct call;

  void run_panel(const call& args, std::int64_t panel, std::int64_t first_row, std::int64_t end_row) const;

  const kernel_set* kernels_;
  std::vector<part> parts_;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t panels_ = 0;
  bool needs_[2] = {false, false}; // activations quantised per 32, per 256
};

// The sets that this processor can run, best first; the last is "portable".
std::span<const kernel_set* const> supported_kernels();
// The best of them, or the one that the environment variable TROUPE_CPU_KERNELS names when it is supported.
const kernel_set& chosen_kernels();

} // namespace troupe::cpu::detail
