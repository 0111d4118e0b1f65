// y = x W^T (+ bias), W in its stored type. The op behind every projection and the head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/weight_view.hpp"
#include "device/cpu/thread_pool.hpp"

namespace troupe::cpu {

// Memory for the packed weights of one linear: packed_bytes() of its views, on a 64-byte border.
struct weight_place {
  std::byte* memory = nullptr;
  bool filled = false; // a linear of the same views has packed its weights there: they are not read again, and the memory not written
};

// What weights packed by one program may be used by another for: raised with every change of the packed layout.
inline constexpr int packed_layout_version = 1;

// One or more matrices over the same input, stacked by rows (QKV, gate + up): one pass over the activations.
// Weights stay quantised; the packing may interleave rows. Quantised types multiply int8-quantised activations (32 elements share a
// scale) with int32 accumulation per block; F32/F16/BF16 weights multiply f32 activations with f32 accumulation.
class linear {
 public:
  // Views must have equal columns; `biases` is empty or has one entry (maybe empty) per view. Throws std::invalid_argument otherwise.
  // The weights are copied, with their padding; `pool`, when given, shares that work.
  explicit linear(std::span<const weight_view> views, std::span<const std::vector<float>> biases = {}, thread_pool* pool = nullptr);
  // The same in memory of the caller's, which outlives the object.
  linear(std::span<const weight_view> views, std::span<const std::vector<float>> biases, thread_pool* pool, weight_place place);
  ~linear();
  linear(linear&&) noexcept;
  linear& operator=(linear&&) noexcept;

  std::int64_t rows() const;    // outputs, summed over the views
  std::int64_t columns() const; // inputs
  std::size_t bytes() const;    // of the packed weights
  // Of a linear of such views; a multiple of 64.
  static std::size_t packed_bytes(std::span<const weight_view> views);

  // y[r * y_stride + o] = sum_c x[r * x_stride + c] W[o, c] + bias[o]; y += instead when `accumulate` (residual).
  // Each output element has one fixed order of additions, whatever `count` is and however threads split it.
  void apply(thread_pool& pool, const float* x, std::int64_t x_stride, std::int64_t count, float* y, std::int64_t y_stride,
             bool accumulate = false) const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// The plain reference: scalar, f64 accumulation, weights dequantised, activations not quantised. For tests.
void linear_reference(const weight_view& weight, const float* bias, const float* x, std::int64_t count, float* y);

// Dequantises row `row` of `weight` into out[columns].
void dequantise_row(const weight_view& weight, std::int64_t row, float* out);

// The kernel set in use on this machine: "avx512vnni", "avx2" or "portable". The environment variable TROUPE_CPU_KERNELS may name
// one that the processor supports.
const char* linear_kernel_name();

} // namespace troupe::cpu
