// Random weights and inputs for the tests of linear.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/half.hpp"
#include "core/weight_view.hpp"
#include "kernels/linear/blocks.hpp"

namespace troupe::cpu::test {

inline const std::vector<dtype> all_types = {dtype::f32,  dtype::f16,  dtype::bf16, dtype::q4_0, dtype::q4_1, dtype::q5_0,
                                             dtype::q5_1, dtype::q8_0, dtype::q4_k, dtype::q5_k, dtype::q6_k};

struct stored_weight {
  std::vector<std::byte> bytes;
  weight_view view;
};

inline void put_half(std::byte* to, float value) {
  const std::uint16_t bits = float_to_half(value);
  std::memcpy(to, &bits, 2);
}

inline void fill_plain(stored_weight& weight, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, 0.5F);
  for (std::int64_t i = 0; i < weight.view.rows * weight.view.columns; ++i) {
    const float value = normal(random);
    if (weight.view.type == dtype::f32) {
      std::memcpy(weight.bytes.data() + 4 * i, &value, 4);
    } else {
      const std::uint16_t bits = weight.view.type == dtype::f16 ? float_to_half(value) : float_to_bfloat16(value);
      std::memcpy(weight.bytes.data() + 2 * i, &bits, 2);
    }
  }
}

// Every quant, factor and sign is drawn; scales and minimums are moderate numbers.
inline stored_weight random_weight(dtype type, std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  stored_weight weight;
  weight.bytes.resize(static_cast<std::size_t>(rows) * row_bytes(type, static_cast<std::size_t>(columns)));
  weight.view = {type, rows, columns, weight.bytes.data()};
  if (!is_quantised(type)) {
    fill_plain(weight, random);
    return weight;
  }
  std::uniform_int_distribution<int> byte(0, 255);
  std::uniform_real_distribution<float> scale(-0.1F, 0.1F);
  for (std::byte& b : weight.bytes) b = static_cast<std::byte>(byte(random));
  const std::size_t size = traits(type).block_bytes;
  for (std::size_t at = 0; at < weight.bytes.size(); at += size) {
    put_half(weight.bytes.data() + at + (type == dtype::q6_k ? 208 : 0), scale(random));
    if (detail::shape_of(type).has_minimum) put_half(weight.bytes.data() + at + 2, scale(random));
  }
  return weight;
}

inline std::vector<float> random_floats(std::size_t count, float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Activations that quantisation leaves unchanged: in every `group` columns, a power of two times integers of which one is 127 and the
// sum of any 32 has at most 11 bits.
inline std::vector<float> grid_activations(std::int64_t rows, std::int64_t columns, std::int64_t group, std::mt19937& random) {
  std::uniform_int_distribution<int> quant(-40, 40);
  std::uniform_int_distribution<int> exponent(-8, 2);
  std::vector<float> x(static_cast<std::size_t>(rows * columns));
  for (std::size_t first = 0; first < x.size(); first += static_cast<std::size_t>(group)) {
    const float d = std::ldexp(1.0F, exponent(random));
    for (std::size_t i = 0; i < static_cast<std::size_t>(group); ++i) x[first + i] = d * static_cast<float>(quant(random));
    const auto place = std::uniform_int_distribution<std::size_t>(0, static_cast<std::size_t>(group) - 1)(random);
    x[first + place] = random() % 2 == 0 ? 127.0F * d : -127.0F * d;
  }
  return x;
}

} // namespace troupe::cpu::test
