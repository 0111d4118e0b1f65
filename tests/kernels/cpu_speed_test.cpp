// That ops use the vectors of the processor, on any: their time beside that of something else in the same run. One that goes through
// memory element by element, or is not vectors at all, takes several times what is allowed here.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "device/cpu/kv_storage.hpp"
#include "kernels/attention.hpp"
#include "kernels/linear.hpp"
#include "kernels/swiglu.hpp"
#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

class cpu_speed_test : public test::op_test {
 protected:
  void SetUp() override {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "this build is not made for speed";
#endif
  }

  // The least of some runs, in turns: a machine's other work falls on both. Seconds.
  template <class Tested, class Other>
  static std::pair<double, double> least_times(const Tested& tested, const Other& other) {
    std::pair<double, double> least{1e9, 1e9};
    for (int i = 0; i < 12; ++i) {
      least.first = std::min(least.first, seconds(tested));
      least.second = std::min(least.second, seconds(other));
    }
    return least;
  }

  cpu::thread_pool pool_{1};

 private:
  template <class Work>
  static double seconds(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

TEST_F(cpu_speed_test, attention_takes_a_few_times_what_a_product_of_as_many_operations_takes) {
  constexpr std::int32_t heads = 9, kv_heads = 3, head_dim = 64, positions = 768, rows = 64, first = positions - rows;
  constexpr std::int64_t width = heads * head_dim;
  cpu::kv_storage kv({dtype::f16, 16, kv_heads, head_dim}, 1, positions / 16);
  std::vector<block_id> blocks(positions / 16);
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::vector<float> keys = normal(positions * kv_heads * head_dim), query = normal(rows * width);
  const std::vector<attention_span> all = {{0, positions, 0, blocks.data()}}, last = {{0, rows, first, blocks.data()}};
  cpu::kv_write(pool_, {keys.data(), keys.data(), kv_heads * head_dim, all, kv.layer(0)});
  std::vector<attention_unit> units;
  cpu::split_attention(last, heads, kv_heads, units);
  std::vector<float> out(rows * width);
  constexpr std::int64_t size = 256, x_rows = 128;
  const std::vector<float> weights = normal(size * size), x = normal(x_rows * size);
  const weight_view view{dtype::f32, size, size, reinterpret_cast<const std::byte*>(weights.data())};
  const cpu::linear product(std::span(&view, 1));
  std::vector<float> y(x_rows * size);
  const auto [time, of_product] = least_times(
      [&] {
        cpu::attention(pool_, {query.data(), width, out.data(), width, heads, 0.125F, 0, last, units, kv.layer(0)});
      },
      [&] { product.apply(pool_, x.data(), size, x_rows, y.data(), size); });
  const double as_much = 4.0 * width * rows * (first + rows / 2.0) / (2.0 * size * size * x_rows); // operations beside the product's
  EXPECT_LT(time, 6 * as_much * of_product) << time / (as_much * of_product) << " times";
}

TEST_F(cpu_speed_test, exponentials_take_less_than_half_of_what_they_take_one_by_one) {
  constexpr std::int64_t columns = 1536, rows = 32;
  const std::vector<float> gate_up = normal(rows * 2 * columns);
  std::vector<float> y(rows * columns), plain(rows * columns);
  const auto plainly = [&] {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const float* const gate = gate_up.data() + i / columns * 2 * columns + i % columns;
      plain[static_cast<std::size_t>(i)] = *gate / (1.0F + std::exp(-*gate)) * gate[columns];
    }
  };
  const auto [time, one_by_one] = least_times(
      [&] {
        cpu::swiglu(pool_, {gate_up.data(), 2 * columns, y.data(), columns, rows, columns});
      },
      plainly);
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], plain[i], 1e-5F * (1.0F + std::abs(plain[i])));
  EXPECT_LT(time, 0.5 * one_by_one) << time / one_by_one << " of it";
}

} // namespace
} // namespace troupe
