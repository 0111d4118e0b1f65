#include "kernels/linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/linear/packed.hpp"
#include "tests/kernels/linear_support.hpp"

namespace troupe::cpu {
namespace {

using test::random_floats;
using test::random_weight;

constexpr float poison = 1e30F;

std::string label(const detail::kernel_set& set, dtype type) { return std::string(set.name) + " " + std::string(traits(type).name); }

std::int64_t scale_group(dtype type) { return detail::shape_of(type).super_blocks ? 256 : 32; }

struct shape {
  std::int64_t rows;
  std::int64_t columns;
};

std::vector<shape> shapes_for(dtype type) {
  if (!is_quantised(type)) return {{1, 1}, {5, 7}, {33, 31}, {16, 65}, {96, 200}};
  if (scale_group(type) == 256) return {{1, 256}, {17, 512}, {40, 768}};
  return {{1, 32}, {15, 64}, {16, 96}, {49, 576}};
}

// What sum |w x| is for one output: the scale that rounding errors are measured with.
double magnitude(const std::vector<float>& w, const float* x) {
  double sum = 0;
  for (std::size_t c = 0; c < w.size(); ++c) sum += std::abs(static_cast<double>(w[c]) * x[c]);
  return sum;
}

// What quantising the activations may change in one output: half a step of the int8 grid per element, and binary16's rounding of a block's
// scale and sum.
double quantisation_bound(const weight_view& weight, std::int64_t row, const std::vector<float>& w, const float* x) {
  const std::int64_t group = scale_group(weight.type);
  const std::byte* const stored = weight.data + static_cast<std::size_t>(row) * row_bytes(weight.type, w.size());
  double bound = 0;
  for (std::int64_t first = 0; first < weight.columns; first += group) {
    double largest = 0;
    for (std::int64_t c = first; c < first + group; ++c) largest = std::max(largest, std::abs(static_cast<double>(x[c])));
    for (std::int64_t c = first; c < first + group; ++c) {
      const detail::block32 block = detail::read_block(weight.type, stored, c / 32);
      const double minimum = std::abs(half_to_float(block.minimum) * static_cast<float>(block.minimum_factor));
      const double step = std::abs(static_cast<double>(w[static_cast<std::size_t>(c)])) + minimum;
      bound += step * (largest / 127 * 0.501 + std::abs(x[c]) / 1024);
    }
  }
  return bound;
}

class linear_kernels : public ::testing::TestWithParam<const detail::kernel_set*> {
 protected:
  std::vector<float> run(const detail::packed_linear& op, thread_pool& pool, const std::vector<float>& x, std::int64_t count) {
    std::vector<float> y(static_cast<std::size_t>(count * op.rows()), poison);
    op.apply(pool, x.data(), op.columns(), count, y.data(), op.rows(), false);
    return y;
  }

  const detail::kernel_set& set_ = *GetParam();
  std::mt19937 random_{std::random_device{}()};
};

TEST_P(linear_kernels, PlainTypesMatchTheReferenceWithinFloatRounding) {
  thread_pool pool(2);
  for (dtype type : {dtype::f32, dtype::f16, dtype::bf16}) {
    for (auto [rows, columns] : shapes_for(type)) {
      const auto weight = random_weight(type, rows, columns, random_);
      const std::int64_t count = 11;
      const auto x = random_floats(static_cast<std::size_t>(count * columns), 3.0F, random_);
      const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
      const auto y = run(op, pool, x, count);
      std::vector<float> expected(y.size());
      linear_reference(weight.view, nullptr, x.data(), count, expected.data());
      std::vector<float> w(static_cast<std::size_t>(columns));
      for (std::int64_t o = 0; o < rows; ++o) {
        dequantise_row(weight.view, o, w.data());
        for (std::int64_t r = 0; r < count; ++r) {
          const auto at = static_cast<std::size_t>(r * rows + o);
          ASSERT_NEAR(y[at], expected[at], 1e-6 * magnitude(w, x.data() + r * columns) + 1e-30)
              << label(set_, type) << " " << rows << "x" << columns;
        }
      }
    }
  }
}

TEST_P(linear_kernels, QuantisedTypesAreExactOnActivationsThatAreOnTheGrid) {
  thread_pool pool(2);
  for (dtype type : test::all_types) {
    if (!is_quantised(type)) continue;
    for (auto [rows, columns] : shapes_for(type)) {
      const auto weight = random_weight(type, rows, columns, random_);
      const std::int64_t count = 13;
      const auto x = test::grid_activations(count, columns, scale_group(type), random_);
      const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
      const auto y = run(op, pool, x, count);
      std::vector<float> expected(y.size());
      linear_reference(weight.view, nullptr, x.data(), count, expected.data());
      std::vector<float> w(static_cast<std::size_t>(columns));
      for (std::int64_t o = 0; o < rows; ++o) {
        dequantise_row(weight.view, o, w.data());
        for (std::int64_t r = 0; r < count; ++r) {
          const auto at = static_cast<std::size_t>(r * rows + o);
          ASSERT_NEAR(y[at], expected[at], 1e-5 * magnitude(w, x.data() + r * columns) + 1e-30)
              << label(set_, type) << " " << rows << "x" << columns;
        }
      }
    }
  }
}

TEST_P(linear_kernels, QuantisedTypesStayWithinTheActivationsQuantisationError) {
  thread_pool pool(2);
  for (float deviation : {1.0F, 1e-5F, 3000.0F}) { // binary16 scales underflow and overflow at the ends
    for (dtype type : test::all_types) {
      if (!is_quantised(type)) continue;
      const auto [rows, columns] = shapes_for(type).back();
      const auto weight = random_weight(type, rows, columns, random_);
      const std::int64_t count = 7;
      const auto x = random_floats(static_cast<std::size_t>(count * columns), deviation, random_);
      const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
      const auto y = run(op, pool, x, count);
      std::vector<float> expected(y.size());
      linear_reference(weight.view, nullptr, x.data(), count, expected.data());
      std::vector<float> w(static_cast<std::size_t>(columns));
      for (std::int64_t o = 0; o < rows; ++o) {
        dequantise_row(weight.view, o, w.data());
        for (std::int64_t r = 0; r < count; ++r) {
          const auto at = static_cast<std::size_t>(r * rows + o);
          ASSERT_NEAR(y[at], expected[at], quantisation_bound(weight.view, o, w, x.data() + r * columns))
              << label(set_, type) << " " << deviation;
        }
      }
    }
  }
}

// A row alone, in batches of every tile mix, and split over threads: the very same bits.
TEST_P(linear_kernels, ARowsResultDoesNotDependOnItsBatchOrOnThreads) {
  thread_pool one(1);
  thread_pool three(3);
  for (dtype type : test::all_types) {
    const auto [rows, columns] = shapes_for(type).back();
    const auto weight = random_weight(type, rows, columns, random_);
    const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
    const std::int64_t most = 29;
    const auto x = random_floats(static_cast<std::size_t>(most * columns), 1.0F, random_);
    std::vector<float> alone;
    for (std::int64_t r = 0; r < most; ++r) {
      const std::vector<float> row(x.begin() + r * columns, x.begin() + (r + 1) * columns);
      const auto y = run(op, one, row, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (std::int64_t count : {2, 3, 4, 5, 7, 8, 9, 15, 16, 29}) {
      for (thread_pool* pool : {&one, &three}) {
        const auto y = run(op, *pool, x, count);
        ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0) << label(set_, type) << " count " << count;
      }
    }
  }
}

// More activations than the cache budget of one block of rows: the split into blocks must not show either.
TEST_P(linear_kernels, ManyRowsEqualFewRows) {
  thread_pool pool(2);
  const auto weight = random_weight(dtype::q4_1, 20, 4096, random_);
  const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
  const std::int64_t count = 403;
  const auto x = random_floats(static_cast<std::size_t>(count * 4096), 1.0F, random_);
  const auto all = run(op, pool, x, count);
  for (std::int64_t r = 0; r < count; r += 67) {
    const std::vector<float> row(x.begin() + r * 4096, x.begin() + (r + 1) * 4096);
    const auto y = run(op, pool, row, 1);
    ASSERT_TRUE(std::equal(y.begin(), y.end(), all.begin() + r * 20)) << "row " << r;
  }
}

TEST_P(linear_kernels, StackedViewsOfDifferentTypesEqualEachAlone) {
  thread_pool pool(2);
  const std::vector<dtype> types = {dtype::q4_1, dtype::f32, dtype::q6_k, dtype::q8_0, dtype::bf16, dtype::q4_k};
  const std::vector<std::int64_t> rows = {19, 3, 33, 16, 40, 1};
  std::vector<test::stored_weight> weights;
  std::vector<weight_view> views;
  std::vector<std::vector<float>> biases;
  for (std::size_t i = 0; i < types.size(); ++i) {
    weights.push_back(random_weight(types[i], rows[i], 256, random_));
    views.push_back(weights.back().view);
    biases.push_back(i % 2 == 0 ? random_floats(static_cast<std::size_t>(rows[i]), 5.0F, random_) : std::vector<float>{});
  }
  const detail::packed_linear stacked(views, biases, set_, &pool);
  const std::int64_t count = 5;
  const auto x = random_floats(static_cast<std::size_t>(count * 256), 1.0F, random_);
  const auto y = run(stacked, pool, x, count);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const detail::packed_linear alone({&views[i], 1}, {&biases[i], 1}, set_, nullptr);
    const auto expected = run(alone, pool, x, count);
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t o = 0; o < rows[i]; ++o) {
        ASSERT_EQ(y[static_cast<std::size_t>(r * stacked.rows() + first + o)], expected[static_cast<std::size_t>(r * rows[i] + o)])
            << label(set_, types[i]);
      }
    }
    first += rows[i];
  }
  EXPECT_EQ(first, stacked.rows());
}

TEST_P(linear_kernels, BiasIsAddedOnceAndAccumulateAddsToWhatIsThere) {
  thread_pool pool(2);
  for (dtype type : test::all_types) {
    const std::int64_t rows = 37;
    const auto weight = random_weight(type, rows, 256, random_);
    const std::vector<float> bias = random_floats(rows, 2.0F, random_);
    const std::int64_t count = 6;
    const auto x = random_floats(static_cast<std::size_t>(count * 256), 1.0F, random_);
    const detail::packed_linear bare({&weight.view, 1}, {}, set_, nullptr);
    const detail::packed_linear biased({&weight.view, 1}, {&bias, 1}, set_, nullptr);
    const auto product = run(bare, pool, x, count);
    const auto with_bias = run(biased, pool, x, count);
    auto residual = random_floats(product.size(), 10.0F, random_);
    const auto before = residual;
    biased.apply(pool, x.data(), 256, count, residual.data(), rows, true);
    for (std::size_t i = 0; i < product.size(); ++i) {
      const float expected = product[i] + bias[i % static_cast<std::size_t>(rows)];
      ASSERT_EQ(with_bias[i], expected) << label(set_, type);
      ASSERT_EQ(residual[i], before[i] + expected) << label(set_, type);
    }
  }
}

TEST_P(linear_kernels, StridesAreKeptAndNothingElseIsWritten) {
  thread_pool pool(2);
  for (dtype type : {dtype::q4_1, dtype::q6_k, dtype::f16}) {
    const std::int64_t rows = 21, columns = 256, count = 9, x_stride = 300, y_stride = 50;
    const auto weight = random_weight(type, rows, columns, random_);
    const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
    const auto wide = random_floats(static_cast<std::size_t>(count * x_stride), 1.0F, random_);
    std::vector<float> tight;
    for (std::int64_t r = 0; r < count; ++r) tight.insert(tight.end(), wide.begin() + r * x_stride, wide.begin() + r * x_stride + columns);
    const auto expected = run(op, pool, tight, count);
    std::vector<float> y(static_cast<std::size_t>(count * y_stride), poison);
    op.apply(pool, wide.data(), x_stride, count, y.data(), y_stride, false);
    for (std::int64_t i = 0; i < count * y_stride; ++i) {
      const std::int64_t o = i % y_stride;
      ASSERT_EQ(y[static_cast<std::size_t>(i)], o < rows ? expected[static_cast<std::size_t>(i / y_stride * rows + o)] : poison)
          << label(set_, type);
    }
  }
}

TEST_P(linear_kernels, NoRowsWriteNothing) {
  thread_pool pool(2);
  const auto weight = random_weight(dtype::q8_0, 16, 32, random_);
  const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
  float y = poison;
  op.apply(pool, nullptr, 32, 0, &y, 16, false);
  EXPECT_EQ(y, poison);
}

TEST_P(linear_kernels, ANumberThatIsNotFiniteSpoilsItsOwnRowOnly) {
  thread_pool pool(2);
  for (dtype type : test::all_types) {
    const auto weight = random_weight(type, 18, 512, random_);
    const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
    const auto clean = random_floats(std::size_t{3 * 512}, 1.0F, random_);
    const auto expected = run(op, pool, clean, 3);
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      auto x = clean;
      x[512 + random_() % 512] = bad;
      const auto y = run(op, pool, x, 3);
      for (std::size_t o = 0; o < 18; ++o) {
        ASSERT_EQ(y[o], expected[o]) << label(set_, type);
        ASSERT_FALSE(std::isfinite(y[18 + o])) << label(set_, type);
        ASSERT_EQ(y[36 + o], expected[36 + o]) << label(set_, type);
      }
    }
  }
}

TEST_P(linear_kernels, ZerosAndVanishingActivationsGiveZeroOrNearIt) {
  thread_pool pool(2);
  for (dtype type : test::all_types) {
    const auto weight = random_weight(type, 18, 256, random_);
    const detail::packed_linear op({&weight.view, 1}, {}, set_, nullptr);
    for (float value : {0.0F, 1e-42F, -1e-36F}) {
      const auto y = run(op, pool, std::vector<float>(256, value), 1);
      for (float v : y) ASSERT_LE(std::abs(v), 1e-30F) << label(set_, type) << " " << value;
    }
  }
}

// A view of `stored` rows and columns of `wide` with padding, and the same matrix with its zeros written down.
struct padded_weight {
  padded_weight(const test::stored_weight& wide, shape stored, std::int64_t padding_rows, std::int64_t padding_columns) {
    const dtype type = wide.view.type;
    const std::int64_t rows = stored.rows + padding_rows, columns = stored.columns + padding_columns;
    view = {type,         rows,           columns, wide.view.data, row_bytes(type, static_cast<std::size_t>(wide.view.columns)),
            padding_rows, padding_columns};
    const std::size_t width = row_bytes(type, static_cast<std::size_t>(columns));
    written.bytes.resize(static_cast<std::size_t>(rows) * width);
    for (std::int64_t r = 0; r < stored.rows; ++r) {
      std::copy_n(wide.view.row(r), row_bytes(type, static_cast<std::size_t>(stored.columns)),
                  written.bytes.begin() + r * static_cast<std::ptrdiff_t>(width));
    }
    written.view = {type, rows, columns, written.bytes.data()};
  }

  weight_view view;
  test::stored_weight written;
};

TEST_P(linear_kernels, PaddingThatIsNowhereStoredIsZeros) {
  thread_pool pool(2);
  for (dtype type : test::all_types) {
    const std::int64_t block = is_quantised(type) ? scale_group(type) : 5;
    const auto wide = random_weight(type, 40, 4 * block, random_);
    for (const auto& [rows, columns] : {std::pair{0, 0}, {19, 0}, {0, 2}, {30, 1}, {40, 3}}) { // of padding; columns in blocks
      const padded_weight padded(wide, {40 - rows, (3 - columns) * block}, rows, columns * block);
      const auto x = random_floats(static_cast<std::size_t>(9 * padded.view.columns), 1.0F, random_);
      const detail::packed_linear op({&padded.view, 1}, {}, set_, &pool), expected({&padded.written.view, 1}, {}, set_, &pool);
      EXPECT_EQ(run(op, pool, x, 9), run(expected, pool, x, 9)) << label(set_, type) << " " << rows << " " << columns;
      std::vector<float> row(static_cast<std::size_t>(padded.view.columns), poison), zeros = row;
      for (std::int64_t r = 0; r < padded.view.rows; ++r) {
        dequantise_row(padded.view, r, row.data());
        dequantise_row(padded.written.view, r, zeros.data());
        EXPECT_EQ(row, zeros) << label(set_, type) << " " << rows << " " << columns;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EverySupportedSet, linear_kernels,
                         ::testing::ValuesIn(detail::supported_kernels().begin(), detail::supported_kernels().end()),
                         [](const auto& param) { return std::string(param.param->name); });

TEST(Linear, SetsQuantiseActivationsToTheSameBits) {
  std::mt19937 random{std::random_device{}()};
  const detail::kernel_set& portable = *detail::portable_kernels();
  for (const detail::kernel_set* set : detail::supported_kernels()) {
    for (bool per_256 : {false, true}) {
      for (float deviation : {1.0F, 1e-4F, 1e5F}) {
        const auto x = random_floats(std::size_t{4 * 512}, deviation, random);
        std::vector<unsigned char> expected(4 * 16 * detail::activation_bytes_per_row, 1);
        std::vector<unsigned char> actual(expected.size(), 2);
        portable.quantise({x.data(), 512, 4, 512, per_256, expected.data()});
        set->quantise({x.data(), 512, 4, 512, per_256, actual.data()});
        EXPECT_EQ(actual, expected) << set->name << " " << per_256 << " " << deviation;
      }
    }
  }
}

TEST(Linear, TheClassGivesWhatTheChosenKernelsGive) {
  std::mt19937 random{std::random_device{}()};
  thread_pool pool(2);
  const auto weight = random_weight(dtype::q5_1, 50, 64, random);
  linear made({&weight.view, 1});
  linear op = std::move(made);
  const detail::packed_linear packed({&weight.view, 1}, {}, detail::chosen_kernels(), nullptr);
  EXPECT_EQ(op.rows(), 50);
  EXPECT_EQ(op.columns(), 64);
  EXPECT_STREQ(linear_kernel_name(), detail::chosen_kernels().name);
  const auto x = random_floats(64, 1.0F, random);
  std::vector<float> y(50, poison);
  std::vector<float> expected(50, -poison);
  op.apply(pool, x.data(), 64, 1, y.data(), 50);
  packed.apply(pool, x.data(), 64, 1, expected.data(), 50, false);
  EXPECT_EQ(y, expected);
}

TEST(Linear, PackedWeightsTakeAboutTheirStoredSize) {
  std::mt19937 random{1};
  for (dtype type : test::all_types) {
    const auto weight = random_weight(type, 64, 512, random);
    const double ratio = static_cast<double>(linear({&weight.view, 1}).bytes()) / static_cast<double>(weight.bytes.size());
    EXPECT_GE(ratio, 0.99) << traits(type).name;
    EXPECT_LE(ratio, 1.03) << traits(type).name;
  }
}

TEST(Linear, ImpossibleWeightsAreRefused) {
  std::mt19937 random{1};
  const auto a = random_weight(dtype::q4_0, 4, 64, random);
  const auto b = random_weight(dtype::f32, 4, 96, random);
  const auto make = [](std::vector<weight_view> views, std::vector<std::vector<float>> biases = {}) { linear op(views, biases); };
  EXPECT_NO_THROW(make({a.view}));
  EXPECT_THROW(make({}), std::invalid_argument);
  EXPECT_THROW(make({a.view, b.view}), std::invalid_argument);                    // columns differ
  EXPECT_THROW(make({{dtype::q4_k, 4, 64, a.view.data}}), std::invalid_argument); // not whole blocks
  EXPECT_THROW(make({{dtype::i8, 4, 64, a.view.data}}), std::invalid_argument);   // no weight type
  EXPECT_THROW(make({{dtype::f32, 4, 64, nullptr}}), std::invalid_argument);
  EXPECT_THROW(make({{dtype::f32, 0, 64, a.view.data}}), std::invalid_argument);
  EXPECT_THROW(make({{dtype::f32, 4, -64, a.view.data}}), std::invalid_argument);
  EXPECT_THROW(make({{dtype::q4_0, std::int64_t{1} << 40, std::int64_t{1} << 40, a.view.data}}), std::invalid_argument); // size overflows
  EXPECT_THROW(make({a.view}, {{}, {}}), std::invalid_argument);       // one bias too many
  EXPECT_THROW(make({a.view}, {{1.0F, 2.0F}}), std::invalid_argument); // bias of another length
}

} // namespace
} // namespace troupe::cpu
