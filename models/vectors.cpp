#include "models/vectors.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "models/load_check.hpp"

namespace troupe {

namespace {

template <class T>
T load_at(const std::byte* data, std::size_t index) {
  T element;
  std::memcpy(&element, data + index * sizeof(T), sizeof(T)); // the file need not align it
  return element;
}

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) { // zero or subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent - 15 + 127;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
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
      case dtype::f32: floats[i] = load_at<float>(tensor.data.data(), i); break;
      case dtype::f16: floats[i] = from_f16(load_at<std::uint16_t>(tensor.data.data(), i)); break;
      default: floats[i] = from_bf16(load_at<std::uint16_t>(tensor.data.data(), i)); break;
    }
    if (!std::isfinite(floats[i])) fail_load(file, tensor.name, "element " + std::to_string(i) + " is not a finite number");
  }
  return floats;
}

} // namespace troupe
