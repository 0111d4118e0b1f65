// Root-mean-square normalisation (arXiv 1910.07467): y = x / sqrt(mean(x^2) + epsilon) * weight.
#pragma once

#include <cstdint>

#include "device/cpu/thread_pool.hpp"

namespace troupe {

// Row r holds `groups` vectors of `columns` elements side by side, each normalised by itself with the same weight: 1 for a
// hidden state, the number of heads for a norm per head. x and y may be the same memory with the same stride.
struct rms_norm_args {
  const float* x = nullptr;
  std::int64_t x_stride = 0; // elements from row to row
  float* y = nullptr;
  std::int64_t y_stride = 0;
  std::int64_t rows = 0;
  std::int64_t groups = 1;
  std::int64_t columns = 0;
  const float* weight = nullptr; // [columns]
  float epsilon = 0;
};

namespace cpu {
void rms_norm(thread_pool& pool, const rms_norm_args& args);
}

} // namespace troupe
