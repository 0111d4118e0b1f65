#include <algorithm>
#include <cmath>
#include <numeric>

#include "device/cpu/kv_storage.hpp"
#include "kernels/attention.hpp"
#include "kernels/elementwise_gpu.hpp"
#include "kernels/embedding.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

class gpu_elementwise_test : public test::gpu_op_test {
 protected:
  static constexpr dtype types[] = {dtype::bf16, dtype::f16};

  static gpu::norm_args norm_of(dtype type, const buffer& x, const buffer& y, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                const buffer& weight) {
    gpu::norm_args args;
    args.type = type;
    args.x = x.data();
    args.y = y.data();
    args.stride = args.y_stride = stride;
    args.rows = static_cast<std::int32_t>(rows);
    args.columns = columns;
    args.weight = weight.data();
    args.epsilon = 1e-5F;
    return args;
  }
  // The first `columns` of each row; what lies behind them must be unwritten.
  void expect_rows(dtype type, const std::vector<float>& out, const std::vector<float>& right, std::int64_t stride, std::int64_t columns,
                   double slack) {
    ASSERT_EQ(out.size(), right.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool inside = static_cast<std::int64_t>(i) % stride < columns;
      ASSERT_EQ(std::isnan(out[i]), !inside) << i;
      if (inside) {
        ASSERT_NEAR(out[i], right[i], test::unit(type) * std::abs(right[i]) + slack) << columns << " columns, element " << i;
      }
    }
  }
  void expect_near(dtype type, const std::vector<float>& out, const std::vector<float>& right, double slack) {
    ASSERT_EQ(out.size(), right.size());
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(out[i], right[i], test::unit(type) * std::abs(right[i]) + slack) << "element " << i;
  }
};

TEST_F(gpu_elementwise_test, embedding_copies_rows) {
  for (const dtype type : types) {
    const std::int64_t vocab = 57, rows = 19;
    for (const std::int64_t columns : {67, 136}) {
      const test::halves table = narrow(type, normal(static_cast<std::size_t>(vocab * columns)));
      std::vector<token_id> tokens;
      for (int i = 0; i < rows; ++i) tokens.push_back(static_cast<token_id>(between(0, vocab - 1)));
      const buffer device_table = upload(table), device_tokens = upload(tokens),
                   y = poisoned_halves(static_cast<std::size_t>(rows * columns));
      gpu::embedding(stream(), {type, device_table.data(), reinterpret_cast<const token_id*>(device_tokens.data()),
                                static_cast<std::int32_t>(rows), columns, y.data(), columns, false});
      std::vector<float> right = test::poisoned(static_cast<std::size_t>(rows * columns));
      cpu::embedding(
          pool_, {{type, vocab, columns, reinterpret_cast<const std::byte*>(table.data())}, tokens.data(), rows, right.data(), columns});
      EXPECT_EQ(widen(type, download<std::uint16_t>(y)), right);
    }
  }
}

TEST_F(gpu_elementwise_test, rms_norm_equals_the_cpu_with_and_without_residual) {
  for (const dtype type : types) {
    for (const std::int64_t columns : {1, 33, 576, 4096, 4099}) {
      for (const bool with_residual : {false, true}) {
        const std::int64_t rows = 5, stride = columns % 8 == 0 ? columns + 8 : columns + 2;
        const std::size_t count = static_cast<std::size_t>(rows * stride);
        const std::vector<float> x = exact(type, count, 3.0F), residual = exact(type, count),
                                 weight = exact(type, static_cast<std::size_t>(columns));
        const buffer dx = upload(narrow(type, x)), dr = upload(narrow(type, residual)), dw = upload(narrow(type, weight));
        const buffer y = poisoned_halves(count);
        gpu::norm_args args = norm_of(type, dx, y, stride, rows, columns, dw);
        if (with_residual) args.residual = dr.data(), args.sum = dx.data(); // in place, as a layer does it
        gpu::rms_norm(stream(), args);
        std::vector<float> sum = x;
        for (std::size_t i = 0; with_residual && i < count; ++i) sum[i] = test::from_bits(type, test::to_bits(type, x[i] + residual[i]));
        std::vector<float> right = test::poisoned(count);
        cpu::rms_norm(pool_, {sum.data(), stride, right.data(), stride, rows, 1, columns, weight.data(), 1e-5F});
        expect_rows(type, widen(type, download<std::uint16_t>(y)), right, stride, columns, 1e-6);
        const std::vector<float> kept = widen(type, download<std::uint16_t>(dx));
        for (std::size_t i = 0; i < count; ++i) {
          if (static_cast<std::int64_t>(i) % stride < columns) {
            ASSERT_EQ(kept[i], sum[i]) << i;
          }
        }
      }
    }
  }
}

TEST_F(gpu_elementwise_test, layer_norm_equals_a_reference_in_double) {
  for (const dtype type : types) {
    for (const std::int64_t columns : {1, 33, 768, 4099}) {
      for (const bool with_bias : {false, true}) {
        const std::int64_t rows = 4, stride = columns % 8 == 0 ? columns + 8 : columns + 2;
        const std::size_t count = static_cast<std::size_t>(rows * stride), width = static_cast<std::size_t>(columns);
        std::vector<float> x = exact(type, count, 3.0F);
        for (float& v : x) v = test::from_bits(type, test::to_bits(type, v + 20)); // a mean that must not swallow the rest
        const std::vector<float> residual = exact(type, count), weight = exact(type, width), bias = exact(type, width);
        const buffer dx = upload(narrow(type, x)), dr = upload(narrow(type, residual)), dw = upload(narrow(type, weight)),
                     db = upload(narrow(type, bias)), y = poisoned_halves(count), sum = poisoned_halves(count);
        gpu::norm_args args = norm_of(type, dx, y, stride, rows, columns, dw);
        args.residual = dr.data(), args.sum = sum.data();
        if (with_bias) args.bias = db.data();
        gpu::layer_norm(stream(), args);
        std::vector<float> right = test::poisoned(count), sums = right;
        for (std::int64_t r = 0; r < rows; ++r) {
          double mean = 0, variance = 0;
          const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(r * stride + i); };
          for (std::int64_t i = 0; i < columns; ++i) {
            sums[at(i)] = test::from_bits(type, test::to_bits(type, x[at(i)] + residual[at(i)]));
            mean += static_cast<double>(sums[at(i)]) / static_cast<double>(columns);
          }
          for (std::int64_t i = 0; i < columns; ++i)
            variance += std::pow(static_cast<double>(sums[at(i)]) - mean, 2) / static_cast<double>(columns);
          for (std::int64_t i = 0; i < columns; ++i) {
            const std::size_t c = static_cast<std::size_t>(i);
            right[at(i)] = static_cast<float>((static_cast<double>(sums[at(i)]) - mean) / std::sqrt(variance + 1e-5)) * weight[c] +
                           (with_bias ? bias[c] : 0.0F);
          }
        }
        expect_rows(type, widen(type, download<std::uint16_t>(y)), right, stride, columns, 2e-5);
        expect_rows(type, widen(type, download<std::uint16_t>(sum)), sums, stride, columns, 0);
      }
    }
  }
}

TEST_F(gpu_elementwise_test, norms_of_chosen_rows) {
  const std::int64_t columns = 72, stride = 80;
  const dtype type = dtype::bf16;
  const std::vector<float> x = exact(type, 9 * 80), weight = exact(type, 72);
  const std::vector<std::int32_t> chosen = {8, 0, 3, 3};
  std::vector<float> gathered;
  for (const std::int32_t r : chosen) gathered.insert(gathered.end(), x.begin() + r * stride, x.begin() + (r + 1) * stride);
  const buffer dx = upload(narrow(type, x)), dg = upload(narrow(type, gathered)), dw = upload(narrow(type, weight)), from = upload(chosen);
  for (const auto norm : {gpu::rms_norm, gpu::layer_norm}) {
    const buffer y = poisoned_halves(gathered.size()), right = poisoned_halves(gathered.size());
    norm(stream(), norm_of(type, dg, right, stride, 4, columns, dw));
    gpu::norm_args args = norm_of(type, dx, y, stride, 4, columns, dw);
    args.from = reinterpret_cast<const std::int32_t*>(from.data());
    norm(stream(), args);
    EXPECT_EQ(download<std::uint16_t>(y), download<std::uint16_t>(right));
  }
}

struct rope_case {
  std::int32_t heads, kv_heads, head_dim, block_size, first_rows; // rows of the first of two sequences
  bool norms, shared_tables;                                      // tables per sequence, not per row
};

TEST_F(gpu_elementwise_test, rope_and_kv_write_equal_the_cpu) {
  const rope_case cases[] = {{6, 2, 48, 5, 4, false, false}, {4, 4, 128, 16, 37, true, true}, {3, 1, 64, 16, 1, true, false},
                             {2, 1, 2, 3, 5, false, true},   {7, 3, 64, 16, 40, true, true},  {5, 1, 128, 32, 3, false, true},
                             {1, 2, 256, 16, 9, true, true}, {8, 2, 16, 16, 45, true, true}};
  for (const dtype type : types) {
    for (const rope_case& c : cases) {
      SCOPED_TRACE(::testing::Message() << traits(type).name << ", head_dim " << c.head_dim << ", norms " << c.norms);
      // Two sequences: a chunk from position 3, one of 3 rows from position 11.
      const std::int32_t rows = c.first_rows + 3, per_sequence = 64 / c.block_size;
      const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, stride = q + 2 * kv + (c.shared_tables ? 8 : 1);
      std::vector<std::int32_t> positions, sequences, blocks(static_cast<std::size_t>(2 * per_sequence)), tables;
      std::iota(blocks.begin(), blocks.end(), 0);
      std::shuffle(blocks.begin(), blocks.end(), random_);
      for (std::int32_t r = 0; r < rows; ++r) {
        sequences.push_back(r < c.first_rows ? 0 : 1);
        positions.push_back(r < c.first_rows ? 3 + r : 11 + r - c.first_rows);
        const auto own = blocks.begin() + sequences.back() * per_sequence;
        if (!c.shared_tables) tables.insert(tables.end(), own, own + per_sequence);
      }
      if (c.shared_tables) tables = blocks;
      std::vector<float> qkv = exact(type, static_cast<std::size_t>(rows * stride));
      const std::vector<float> query_norm = exact(type, static_cast<std::size_t>(c.head_dim)), key_norm = exact(type, query_norm.size());
      std::vector<double> frequencies;
      for (int i = 0; i < c.head_dim / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / c.head_dim));
      rope_table table(frequencies, 1.5);
      table.reserve(64);
      const std::vector<attention_span> spans = {{0, c.first_rows, 3, blocks.data()}, {c.first_rows, 3, 11, blocks.data() + per_sequence}};
      const kv_layout layout{type, c.block_size, c.kv_heads, c.head_dim};
      cpu::kv_storage cache(layout, 1, static_cast<std::int32_t>(blocks.size()));
      cache.fill(0xff);
      const buffer device_qkv = upload(narrow(type, qkv)), device_cache = poisoned_halves(blocks.size() * layout.block_bytes() / 2);
      const std::size_t angles = static_cast<std::size_t>(table.size() * table.view().pairs);
      const buffer cos = upload(std::vector<float>(table.view().cos, table.view().cos + angles));
      const buffer sin = upload(std::vector<float>(table.view().sin, table.view().sin + angles));
      const buffer device_positions = upload(positions), device_tables = upload(tables), device_sequences = upload(sequences);
      const buffer dq = upload(narrow(type, query_norm)), dk = upload(narrow(type, key_norm));
      gpu::rope_kv_args args;
      args.qkv = device_qkv.data();
      args.stride = stride;
      args.rows = rows;
      args.heads = c.heads;
      args.places = {reinterpret_cast<const std::int32_t*>(device_positions.data()),
                     reinterpret_cast<const std::int32_t*>(device_tables.data()), per_sequence};
      args.table = {reinterpret_cast<const float*>(cos.data()), reinterpret_cast<const float*>(sin.data())};
      args.kv = {layout, device_cache.data()};
      if (c.shared_tables) args.tables = reinterpret_cast<const std::int32_t*>(device_sequences.data());
      if (c.norms) args.query_norm = dq.data(), args.key_norm = dk.data(), args.epsilon = 1e-5F;
      gpu::rope_and_kv_write(stream(), args);

      std::vector<float> turned = qkv;
      if (c.norms) {
        cpu::rms_norm(pool_, {qkv.data(), stride, qkv.data(), stride, rows, c.heads, c.head_dim, query_norm.data(), 1e-5F});
        cpu::rms_norm(pool_, {turned.data() + q, stride, turned.data() + q, stride, rows, c.kv_heads, c.head_dim, key_norm.data(), 1e-5F});
      }
      cpu::rope(pool_, {qkv.data(), stride, rows, c.heads, c.head_dim, positions.data(), table.view(), rope_pairing::halves});
      cpu::rope(pool_, {turned.data() + q, stride, rows, c.kv_heads, c.head_dim, positions.data(), table.view(), rope_pairing::halves});
      cpu::kv_write(pool_, {turned.data() + q, turned.data() + q + kv, stride, spans, cache.layer(0)});
      // A normed element is rounded before it turns: a unit of the pair that it turns with.
      const double slack = c.norms ? test::unit(type) * 6 : 1e-6;
      expect_near(type, widen(type, download<std::uint16_t>(device_qkv)), qkv, slack); // keys and values stay as they were
      const auto* bits = reinterpret_cast<const std::uint16_t*>(cache.layer(0).data);
      const test::halves got = download<std::uint16_t>(device_cache);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float a = test::from_bits(type, got[i]), b = test::from_bits(type, bits[i]);
        ASSERT_EQ(std::isnan(a), std::isnan(b)) << i;
        if (!std::isnan(b)) {
          ASSERT_NEAR(a, b, test::unit(type) * std::abs(b) + slack) << i;
        }
      }
    }
  }
}

TEST_F(gpu_elementwise_test, parts_are_summed_in_order_and_rounded_once) {
  for (const dtype type : types) {
    for (const std::int64_t count : {1, 333, 4096, 70000}) {
      for (const std::int32_t parts : {1, 2, 3, 8}) {
        const std::vector<float> values = exact(type, static_cast<std::size_t>(parts * count), 5.0F);
        const buffer in = upload(narrow(type, values)), y = poisoned_halves(static_cast<std::size_t>(count));
        gpu::sum_parts(stream(), {type, in.data(), parts, count, y.data(), false});
        std::vector<float> sums(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
        EXPECT_EQ(download<std::uint16_t>(y), narrow(type, sums)) << parts << " parts of " << count;
      }
    }
  }
}

TEST_F(gpu_elementwise_test, swiglu_equals_the_cpu) {
  for (const dtype type : types) {
    for (const std::int64_t columns : {1, 257, 1536, 2056}) {
      const std::int64_t rows = 3;
      std::vector<float> x = exact(type, static_cast<std::size_t>(rows * 2 * columns), 4.0F);
      x[0] = -200.0F; // e^200 overflows
      const buffer dx = upload(narrow(type, x)), y = poisoned_halves(static_cast<std::size_t>(rows * columns));
      gpu::swiglu(stream(), {type, dx.data(), 2 * columns, y.data(), columns, static_cast<std::int32_t>(rows), columns, false});
      std::vector<float> right = test::poisoned(static_cast<std::size_t>(rows * columns));
      cpu::swiglu(pool_, {x.data(), 2 * columns, right.data(), columns, rows, columns});
      expect_near(type, widen(type, download<std::uint16_t>(y)), right, 1e-5);
    }
  }
}

TEST_F(gpu_elementwise_test, parts_side_by_side_are_whole_rows) {
  for (const std::int32_t parts : {1, 2, 3}) {
    for (const std::int64_t columns : {4, 1004, 1024}) {
      const std::int32_t rows = static_cast<std::int32_t>(between(1, 9));
      const auto count = static_cast<std::size_t>(parts * rows * columns);
      const std::vector<float> from = normal(count);
      const buffer device = upload(from), y = upload(test::poisoned(count));
      gpu::join_parts(stream(), {device.as<float>(), parts, rows, columns, y.as<float>(), false});
      const std::vector<float> out = download<float>(y);
      for (std::size_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::int64_t>(i), row = at / (parts * columns), part = at / columns % parts;
        ASSERT_EQ(out[i], from[static_cast<std::size_t>((part * rows + row) * columns + at % columns)]) << parts << " parts, element " << i;
      }
    }
  }
  const buffer odd = upload(std::vector<float>(8));
  EXPECT_THROW(gpu::join_parts(stream(), {odd.as<float>(), 2, 1, 3, odd.as<float>(), false}), std::invalid_argument);
}

} // namespace
} // namespace troupe
