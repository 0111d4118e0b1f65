// Times y = x W^T: GB/s of stored weights and GOP/s (a multiplication and an addition are two), per weight type, shape and number of rows.
// Usage: linear_bench [THREADS] [KERNEL SET] [TYPE]. The best of several runs counts: machines are shared.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "core/half.hpp"
#include "kernels/linear/blocks.hpp"
#include "kernels/linear/packed.hpp"

namespace {

using namespace troupe;
using namespace troupe::cpu;

struct matrix_shape {
  std::int64_t rows;
  std::int64_t columns;
};

// Random bytes with small scales, so that nothing is infinite or subnormal.
std::vector<std::byte> random_weights(dtype type, const matrix_shape& shape) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(static_cast<std::size_t>(shape.rows) * row_bytes(type, static_cast<std::size_t>(shape.columns)));
  for (std::size_t at = 0; at < bytes.size(); at += 4) {
    const std::uint32_t word = is_quantised(type) ? random() : type == dtype::f32 ? 0x3c000000U | (random() & 0xffffffU) : 0x3c003c00U;
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(4, bytes.size() - at));
  }
  if (!is_quantised(type)) return bytes;
  const std::uint16_t scale = float_to_half(0.01F);
  for (std::size_t at = 0; at < bytes.size(); at += traits(type).block_bytes) {
    std::memcpy(bytes.data() + at + (type == dtype::q6_k ? 208 : 0), &scale, 2);
    if (detail::shape_of(type).has_minimum) std::memcpy(bytes.data() + at + 2, &scale, 2);
  }
  return bytes;
}

// Seconds for one product. Enough copies of the matrix to cycle through 64 MB in decoding, as a model does.
double best_seconds(const std::vector<detail::packed_linear>& copies, thread_pool& pool, std::int64_t count) {
  const std::int64_t columns = copies.front().columns();
  const std::int64_t rows = copies.front().rows();
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count * columns));
  for (float& v : x) v = normal(random);
  std::vector<float> y(static_cast<std::size_t>(count * rows));
  double best = 1e9;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  for (int run = 0; run < 3 || std::chrono::steady_clock::now() < limit; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (const auto& op : copies) op.apply(pool, x.data(), columns, count, y.data(), rows, false);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count() / static_cast<double>(copies.size()));
  }
  return best;
}

void bench_shape(dtype type, const matrix_shape& shape, const detail::kernel_set& set, thread_pool& pool) {
  const auto bytes = random_weights(type, shape);
  const weight_view view{type, shape.rows, shape.columns, bytes.data()};
  const std::size_t copies = std::max<std::size_t>(1, (std::size_t{64} << 20) / bytes.size());
  std::vector<detail::packed_linear> many;
  for (std::size_t i = 0; i < copies; ++i) many.emplace_back(std::span(&view, 1), std::span<const std::vector<float>>{}, set, &pool);
  for (std::int64_t count : {1, 4, 64, 512}) {
    std::vector<detail::packed_linear> one;
    if (count > 4) one.emplace_back(std::span(&view, 1), std::span<const std::vector<float>>{}, set, &pool);
    if (count > 4 && shape.rows > 20000) continue; // heads see few rows
    const double seconds = best_seconds(one.empty() ? many : one, pool, count);
    std::printf("%-10s %-5s %6lld x %5lld rows %4lld: %9.1f us %7.2f GB/s %8.1f GOP/s\n", set.name, traits(type).name.data(),
                static_cast<long long>(shape.rows), static_cast<long long>(shape.columns), static_cast<long long>(count), seconds * 1e6,
                static_cast<double>(bytes.size()) / seconds / 1e9,
                2e-9 * static_cast<double>(shape.rows * shape.columns * count) / seconds);
    std::fflush(stdout);
  }
}

} // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string_view wanted_set = argc > 2 ? argv[2] : "";
  const std::string_view wanted_type = argc > 3 ? argv[3] : "";
  thread_pool pool(threads);
  for (const detail::kernel_set* set : detail::supported_kernels()) {
    if (!wanted_set.empty() && wanted_set != set->name) continue;
    for (dtype type : {dtype::f32, dtype::f16, dtype::bf16, dtype::q8_0, dtype::q4_0, dtype::q4_1, dtype::q5_0, dtype::q5_1, dtype::q4_k,
                       dtype::q5_k, dtype::q6_k}) {
      if (!wanted_type.empty() && wanted_type != traits(type).name) continue;
      // SmolLM2-135M: q and o, k, gate, down, head; then a 1B-class feed-forward.
      for (const matrix_shape& shape : {matrix_shape{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}, {8192, 2048}}) {
        if (static_cast<std::size_t>(shape.columns) % traits(type).block_elems == 0) bench_shape(type, shape, *set, pool);
      }
    }
  }
}
