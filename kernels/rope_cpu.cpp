#include <cmath>

#include "kernels/parallel.hpp"
#include "kernels/rope.hpp"
#include "kernels/simd.hpp"

namespace troupe {

rope_table::rope_table(std::vector<double> frequencies, double magnitude) : frequencies_(std::move(frequencies)), magnitude_(magnitude) {}

void rope_table::reserve(std::int64_t count) {
  if (count <= positions_) return;
  const std::size_t pairs = frequencies_.size();
  cos_.resize(static_cast<std::size_t>(count) * pairs);
  sin_.resize(cos_.size());
  for (std::int64_t position = positions_; position < count; ++position) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      const std::size_t at = static_cast<std::size_t>(position) * pairs + i;
      cos_[at] = static_cast<float>(std::cos(angle) * magnitude_);
      sin_[at] = static_cast<float>(std::sin(angle) * magnitude_);
    }
  }
  positions_ = count;
}

rope_table_view rope_table::view() const { return {cos_.data(), sin_.data(), static_cast<std::int64_t>(frequencies_.size())}; }

namespace cpu {
namespace {

TROUPE_CLONES void turn_halves(float* x, const float* cos, const float* sin, std::int64_t pairs) {
  float* low = x;
  float* high = x + pairs;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cos[i] - b * sin[i];
    high[i] = b * cos[i] + a * sin[i];
  }
}

TROUPE_CLONES void turn_interleaved(float* x, const float* cos, const float* sin, std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

} // namespace

void rope(thread_pool& pool, const rope_args& args) {
  const auto turn = args.pairing == rope_pairing::halves ? turn_halves : turn_interleaved;
  for_rows(pool, args.rows, args.heads * args.head_dim, [&args, turn](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t at = args.positions[row] * args.table.pairs;
      for (std::int64_t head = 0; head < args.heads; ++head) {
        turn(args.x + row * args.x_stride + head * args.head_dim, args.table.cos + at, args.table.sin + at, args.table.pairs);
      }
    }
  });
}

} // namespace cpu
} // namespace troupe
