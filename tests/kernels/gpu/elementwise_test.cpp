#include <algorithm>

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

  void expect_near(dtype type, const std::vector<float>& out, const std::vector<float>& right, double slack) {
    ASSERT_EQ(out.size(), right.size());
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(out[i], right[i], test::unit(type) * std::abs(right[i]) + slack) << "element " << i;
  }
};

TEST_F(gpu_elementwise_test, embedding_copies_rows) {
  for (const dtype type : types) {
    const std::int64_t vocab = 57, columns = 67, rows = 19;
    const test::halves table = narrow(type, normal(static_cast<std::size_t>(vocab * columns)));
    std::vector<token_id> tokens;
    for (int i = 0; i < rows; ++i) tokens.push_back(static_cast<token_id>(between(0, vocab - 1)));
    const buffer device_table = upload(table), device_tokens = upload(tokens),
                 y = poisoned_halves(static_cast<std::size_t>(rows * columns));
    gpu::embedding(stream(), {type, device_table.data(), reinterpret_cast<const token_id*>(device_tokens.data()),
                              static_cast<std::int32_t>(rows), columns, y.data(), columns, false});
    std::vector<float> right = test::poisoned(static_cast<std::size_t>(rows * columns));
    cpu::embedding(pool_,
                   {{type, vocab, columns, reinterpret_cast<const std::byte*>(table.data())}, tokens.data(), rows, right.data(), columns});
    EXPECT_EQ(widen(type, download<std::uint16_t>(y)), right);
  }
}

TEST_F(gpu_elementwise_test, rms_norm_equals_the_cpu_with_and_without_residual) {
  for (const dtype type : types) {
    for (const std::int64_t columns : {1, 33, 576, 4099}) {
      for (const bool with_residual : {false, true}) {
        const std::int64_t rows = 5, stride = columns + 2;
        const std::size_t count = static_cast<std::size_t>(rows * stride);
        const std::vector<float> x = exact(type, count, 3.0F), residual = exact(type, count),
                                 weight = exact(type, static_cast<std::size_t>(columns));
        const buffer dx = upload(narrow(type, x)), dr = upload(narrow(type, residual)), dw = upload(narrow(type, weight));
        const buffer y = poisoned_halves(count);
        gpu::rms_norm_args args{type,    dx.data(), nullptr, nullptr, y.data(), stride, static_cast<std::int32_t>(rows),
                                columns, dw.data(), 1e-5F,   false};
        if (with_residual) args.residual = dr.data(), args.sum = dx.data(); // in place, as a layer does it
        gpu::rms_norm(stream(), args);
        std::vector<float> sum = x;
        for (std::size_t i = 0; with_residual && i < count; ++i) sum[i] = test::from_bits(type, test::to_bits(type, x[i] + residual[i]));
        std::vector<float> right = test::poisoned(count);
        cpu::rms_norm(pool_, {sum.data(), stride, right.data(), stride, rows, 1, columns, weight.data(), 1e-5F});
        const std::vector<float> out = widen(type, download<std::uint16_t>(y)), kept = widen(type, download<std::uint16_t>(dx));
        for (std::size_t i = 0; i < count; ++i) {
          const bool inside = static_cast<std::int64_t>(i) % stride < columns;
          ASSERT_EQ(std::isnan(out[i]), !inside) << i;
          if (!inside) continue;
          ASSERT_NEAR(out[i], right[i], test::unit(type) * std::abs(right[i]) + 1e-6) << columns << " columns, element " << i;
          ASSERT_EQ(kept[i], sum[i]) << i;
        }
      }
    }
  }
}

TEST_F(gpu_elementwise_test, rope_and_kv_write_equal_the_cpu) {
  for (const dtype type : types) {
    const std::int32_t rows = 7, heads = 6, kv_heads = 2, head_dim = 48, block_size = 5;
    const std::int64_t q = heads * head_dim, kv = kv_heads * head_dim, stride = q + 2 * kv + 1;
    std::vector<float> qkv = exact(type, static_cast<std::size_t>(rows * stride));
    const buffer device_qkv = upload(narrow(type, qkv));
    rope_table table({1.0, 0.5, 0.1, 0.03, 0.01, 0.001, 1e-4, 1e-5, 0.9,  0.8,  0.7,  0.6,
                      0.4, 0.3, 0.2, 0.15, 0.12, 0.11,  0.09, 0.08, 0.07, 0.06, 0.05, 0.04},
                     1.5);
    table.reserve(40);
    // Two sequences: a chunk of 4 rows from position 3, one of 3 rows from position 11.
    const std::vector<std::int32_t> positions = {3, 4, 5, 6, 11, 12, 13}, blocks = {7, 2, 0, 4, 1, 6};
    std::vector<std::int32_t> tables;
    for (int r = 0; r < rows; ++r) tables.insert(tables.end(), blocks.begin() + (r < 4 ? 0 : 3), blocks.begin() + (r < 4 ? 3 : 6));
    const std::vector<attention_span> spans = {{0, 4, 3, blocks.data()}, {4, 3, 11, blocks.data() + 3}};
    const kv_layout layout{type, block_size, kv_heads, head_dim};
    cpu::kv_storage cache(layout, 1, 8);
    cache.fill(0xff);
    const buffer device_cache = poisoned_halves(8 * layout.block_bytes() / 2);
    const std::size_t angles = static_cast<std::size_t>(table.size() * table.view().pairs);
    const buffer cos = upload(std::vector<float>(table.view().cos, table.view().cos + angles));
    const buffer sin = upload(std::vector<float>(table.view().sin, table.view().sin + angles));
    const buffer device_positions = upload(positions), device_tables = upload(tables);
    gpu::rope_kv_args args;
    args.qkv = device_qkv.data();
    args.stride = stride;
    args.rows = rows;
    args.heads = heads;
    args.places = {reinterpret_cast<const std::int32_t*>(device_positions.data()),
                   reinterpret_cast<const std::int32_t*>(device_tables.data()), 3};
    args.table = {reinterpret_cast<const float*>(cos.data()), reinterpret_cast<const float*>(sin.data())};
    args.kv = {layout, device_cache.data()};
    gpu::rope_and_kv_write(stream(), args);
    cpu::rope(pool_, {qkv.data(), stride, rows, heads, head_dim, positions.data(), table.view(), rope_pairing::halves});
    std::vector<float> turned = qkv;
    cpu::rope(pool_, {turned.data() + q, stride, rows, kv_heads, head_dim, positions.data(), table.view(), rope_pairing::halves});
    cpu::kv_write(pool_, {turned.data() + q, turned.data() + q + kv, stride, spans, cache.layer(0)});
    expect_near(type, widen(type, download<std::uint16_t>(device_qkv)), qkv, 1e-6); // keys and values stay as they were
    const auto* bits = reinterpret_cast<const std::uint16_t*>(cache.layer(0).data);
    const test::halves got = download<std::uint16_t>(device_cache);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float a = test::from_bits(type, got[i]), b = test::from_bits(type, bits[i]);
      ASSERT_EQ(std::isnan(a), std::isnan(b)) << i;
      if (std::isnan(b)) continue;
      ASSERT_NEAR(a, b, test::unit(type) * std::abs(b) + 1e-6) << i;
    }
  }
}

TEST_F(gpu_elementwise_test, swiglu_equals_the_cpu) {
  for (const dtype type : types) {
    for (const std::int64_t columns : {1, 257, 1536}) {
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

} // namespace
} // namespace troupe
