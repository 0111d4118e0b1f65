// Stored vectors (norms, biases, frequency divisors) as floats.
#pragma once

#include <string>
#include <vector>

#include "models/tensor_file.hpp"

namespace troupe {

// All elements of an F32, F16 or BF16 tensor; throws load_error for another type or a value that is not finite.
std::vector<float> to_floats(const file_tensor& tensor, const std::string& file);

} // namespace troupe
