// Groups of threads, and what their collectives must give.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/half.hpp"
#include "transport/collective/communicator.hpp"

namespace troupe {

using ends = std::vector<std::unique_ptr<communicator>>;
using bytes = std::vector<std::byte>;

// Makes a group of so many ranks with this deadline.
using group_maker = std::function<ends(int, std::chrono::milliseconds)>;

constexpr std::chrono::milliseconds kAmple{20'000}; // for what must succeed, on a busy machine

struct outcome {
  std::optional<collective_fault> fault;
  int peer = -1;
  std::string text;
  std::chrono::milliseconds took{0};
};

inline outcome attempt(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  outcome got;
  try {
    call();
  } catch (const collective_error& e) {
    got = {e.fault(), e.peer(), e.what(), {}};
  }
  got.took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  return got;
}

// Runs `rank_does` for each rank on a thread of its own and says how each ended.
inline std::vector<outcome> run_ranks(ends& group, const std::function<void(communicator&)>& rank_does) {
  std::vector<outcome> outcomes(group.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank] = attempt([&] { rank_does(*group[rank]); }); });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

inline void expect_success(const std::vector<outcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_FALSE(outcomes[rank].fault) << "rank " << rank << ": " << outcomes[rank].text;
}

template <class T>
collective_buffer buffer_of(std::vector<T>& values, dtype type) {
  return {values.data(), values.size() * sizeof(T) / row_bytes(type, 1), type};
}

// `count` random numbers as elements of F32, F16 or BF16, of very different sizes so that the order of additions shows.
inline bytes random_elements(std::mt19937& random, dtype type, std::size_t count) {
  bytes out(row_bytes(type, count));
  std::normal_distribution<float> mantissa;
  std::uniform_int_distribution<int> exponent(-8, 8);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = std::ldexp(mantissa(random), exponent(random));
    const std::uint16_t half = type == dtype::f16 ? float_to_half(value) : float_to_bfloat16(value);
    if (type == dtype::f32) std::memcpy(out.data() + 4 * i, &value, 4);
    if (type != dtype::f32) std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out;
}

inline float element(const bytes& from, dtype type, std::size_t i) {
  float value = 0;
  std::uint16_t half = 0;
  if (type == dtype::f32) std::memcpy(&value, from.data() + 4 * i, 4);
  if (type != dtype::f32) std::memcpy(&half, from.data() + 2 * i, 2);
  if (type == dtype::f16) value = half_to_float(half);
  if (type == dtype::bf16) value = bfloat16_to_float(half);
  return value;
}

// One element after the other, added up from rank 0 in f32.
inline bytes plain_sum(const std::vector<bytes>& inputs, dtype type) {
  bytes out(inputs[0].size());
  for (std::size_t i = 0; i < out.size() / row_bytes(type, 1); ++i) {
    float sum = element(inputs[0], type, i);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) sum += element(inputs[rank], type, i);
    const std::uint16_t half = type == dtype::f16 ? float_to_half(sum) : float_to_bfloat16(sum);
    if (type == dtype::f32) std::memcpy(out.data() + 4 * i, &sum, 4);
    if (type != dtype::f32) std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out;
}

} // namespace troupe
