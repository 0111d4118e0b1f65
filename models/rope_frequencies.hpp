// From a rope_config to the angles of a rope_table.
#pragma once

#include <vector>

#include "models/model.hpp"

namespace troupe {

struct rope_spectrum {
  std::vector<double> frequencies; // radians per position, rotary_dim / 2 of them
  double magnitude = 1.0;          // scales cos and sin
};

// Formulas: transformers/modeling_rope_utils.py; GGUF's frequency divisors: ggml_rope_ext. All in double.
rope_spectrum rope_frequencies(const rope_config& config);

} // namespace troupe
