#include "kernels/linear.hpp"

#include <algorithm>

#include "core/half.hpp"
#include "kernels/linear/blocks.hpp"
#include "kernels/linear/packed.hpp"

namespace troupe::cpu {

struct linear::impl {
  detail::packed_linear packed;
};

linear::linear(std::span<const weight_view> views, std::span<const std::vector<float>> biases, thread_pool* pool)
    : impl_(new impl{detail::packed_linear(views, biases, detail::chosen_kernels(), pool)}) {}

linear::linear(std::span<const weight_view> views, std::span<const std::vector<float>> biases, thread_pool* pool, weight_place place)
    : impl_(new impl{detail::packed_linear(views, biases, detail::chosen_kernels(), pool, place)}) {}

linear::~linear() = default;
linear::linear(linear&&) noexcept = default;
linear& linear::operator=(linear&&) noexcept = default;

std::int64_t linear::rows() const { return impl_->packed.rows(); }
std::int64_t linear::columns() const { return impl_->packed.columns(); }
std::size_t linear::bytes() const { return impl_->packed.bytes(); }
std::size_t linear::packed_bytes(std::span<const weight_view> views) { return detail::packed_linear::bytes_of(views); }

void linear::apply(thread_pool& pool, const float* x, std::int64_t x_stride, std::int64_t count, float* y, std::int64_t y_stride,
                   bool accumulate) const {
  impl_->packed.apply(pool, x, x_stride, count, y, y_stride, accumulate);
}

void dequantise_row(const weight_view& weight, std::int64_t row, float* out) {
  const std::int64_t stored = weight.stored_columns(row);
  std::fill(out + stored, out + weight.columns, 0.0F);
  if (stored == 0) return;
  const std::byte* const from = weight.row(row);
  if (!is_quantised(weight.type)) {
    detail::read_floats(weight.type, from, 0, stored, out);
    return;
  }
  const detail::block_shape shape = detail::shape_of(weight.type);
  for (std::int64_t b = 0; b < stored / 32; ++b) {
    const detail::block32 block = detail::read_block(weight.type, from, b);
    const float scale = half_to_float(block.scale);
    const float minimum =
        static_cast<float>(shape.minimum_sign) * (half_to_float(block.minimum) * static_cast<float>(block.minimum_factor));
    for (int half = 0; half < 2; ++half) {
      const float step = scale * static_cast<float>(block.factor[half]);
      float* const to = out + 32 * b + 16 * half;
      for (int i = 0; i < 16; ++i) to[i] = step * static_cast<float>(block.quants[16 * half + i] - shape.zero) + minimum;
    }
  }
}

void linear_reference(const weight_view& weight, const float* bias, const float* x, std::int64_t count, float* y) {
  std::vector<float> row(static_cast<std::size_t>(weight.columns));
  for (std::int64_t o = 0; o < weight.rows; ++o) {
    dequantise_row(weight, o, row.data());
    for (std::int64_t r = 0; r < count; ++r) {
      double sum = bias == nullptr ? 0.0 : bias[o];
      const float* const input = x + r * weight.columns;
      for (std::int64_t c = 0; c < weight.columns; ++c) sum += static_cast<double>(input[c]) * row[static_cast<std::size_t>(c)];
      y[r * weight.rows + o] = static_cast<float>(sum);
    }
  }
}

const char* linear_kernel_name() { return detail::chosen_kernels().name; }

} // namespace troupe::cpu
