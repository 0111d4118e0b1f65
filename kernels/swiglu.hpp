// Gated activation (arXiv 2002.05202, SwiGLU): y = silu(gate) * up, silu(x) = x / (1 + e^-x).
#pragma once

#include <cstdint>

#include "device/cpu/thread_pool.hpp"

namespace troupe {

struct swiglu_args {
  const float* gate_up = nullptr; // [rows][2 * columns]: the gates, then the ups
  std::int64_t gate_up_stride = 0;
  float* y = nullptr; // [rows][columns]
  std::int64_t y_stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

namespace cpu {
void swiglu(thread_pool& pool, const swiglu_args& args);
}

} // namespace troupe
