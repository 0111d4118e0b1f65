// Every parameter of a decoder: what it is called in either format, its shape, and where it goes.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "models/model.hpp"

namespace troupe {

struct parameter {
  std::string hugging_face;
  std::string gguf;
  std::int64_t rows = 1; // 1 for vectors
  std::int64_t columns = 0;
  std::variant<weight_view*, std::vector<float>*> target; // a matrix, or a vector kept as floats

  bool is_matrix() const { return target.index() == 0; }
};

// Sizes weights.layers by weights.config and lists all parameters that the config asks for, embedding first. Targets point into
// `weights`, which must stay where it is. A tied head is no parameter: point it at the embedding afterwards.
std::vector<parameter> list_parameters(model_weights& weights);

} // namespace troupe
