#include "models/vectors.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/half.hpp"
#include "models/load_check.hpp"

namespace troupe {

namespace {

template <class T>
T load_at(const std::byte* data, std::size_t index) {
  T element;
  std::memcpy(&element, data + index * sizeof(T), sizeof(T)); // the file need not align it
  return element;
}

} // namespace

std::vector<float> to_floats(const file_tensor& tensor, const std::string& file) {
  const auto count = element_count(tensor.shape);
  if (!tensor.type || (*tensor.type != dtype::f32 && *tensor.type != dtype::f16 && *tensor.type != dtype::bf16)) {
    fail_load(file, tensor.name, "type " + tensor.type_name + ", expected F32, F16 or BF16 for a vector");
  }
  std::vector<float> floats(count.value_or(0));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    switch (*tensor.type) {
      case dtype::f32:
        floats[i] = load_at<float>(tensor.data.data(), i);
        break;
      case dtype::f16:
        floats[i] = half_to_float(load_at<std::uint16_t>(tensor.data.data(), i));
        break;
      default:
        floats[i] = bfloat16_to_float(load_at<std::uint16_t>(tensor.data.data(), i));
        break;
    }
    if (!std::isfinite(floats[i])) fail_load(file, tensor.name, "element " + std::to_string(i) + " is not a finite number");
  }
  return floats;
}

} // namespace troupe
