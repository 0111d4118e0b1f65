#include "kernels/plain_attention_gpu.hpp"

#include <algorithm>
#include <numeric>

#include "device/cpu/kv_storage.hpp"
#include "kernels/attention.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

struct shape {
  std::int32_t heads, kv_heads, head_dim, block_size, window;
  std::vector<std::int32_t> lengths; // of each sequence; its last `rows_each` positions are rows
  std::int32_t rows_each;
};

using gpu_plain_attention_test = test::gpu_op_test;

TEST_F(gpu_plain_attention_test, equals_the_cpu_over_scattered_poisoned_blocks_and_shared_tables) {
  const std::vector<shape> shapes = {{4, 2, 16, 8, 0, {1, 9, 300}, 1},
                                     {4, 4, 24, 16, 0, {40, 17}, 13},
                                     {6, 1, 256, 16, 20, {150, 33}, 5},
                                     {2, 2, 130, 32, 1, {129, 64}, 30}};
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const shape& s : shapes) {
      SCOPED_TRACE(::testing::Message() << traits(type).name << " " << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim);
      const std::int64_t width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
      const auto sequences = static_cast<std::int32_t>(s.lengths.size()), rows = sequences * s.rows_each;
      const std::int32_t stride = *std::max_element(s.lengths.begin(), s.lengths.end()) / s.block_size + 1;
      std::vector<block_id> tables(static_cast<std::size_t>(sequences * stride + 2));
      std::iota(tables.begin(), tables.end(), 0);
      std::shuffle(tables.begin(), tables.end(), random_);
      const kv_layout layout{type, s.block_size, s.kv_heads, s.head_dim};
      cpu::kv_storage cache(layout, 1, static_cast<std::int32_t>(tables.size()));
      cache.fill(0xff);
      const std::vector<float> query = exact(type, static_cast<std::size_t>(rows * width), 2.0F);
      std::vector<attention_span> spans;
      std::vector<std::int32_t> positions, owners;
      for (std::int32_t i = 0; i < sequences; ++i) {
        const std::int32_t length = s.lengths[static_cast<std::size_t>(i)], first = length - s.rows_each;
        const std::vector<float> keys = normal(static_cast<std::size_t>(length * kv_width)), values = normal(keys.size());
        const attention_span all{0, length, 0, tables.data() + i * stride};
        cpu::kv_write(pool_, {keys.data(), values.data(), kv_width, std::span(&all, 1), cache.layer(0)});
        spans.push_back({i * s.rows_each, s.rows_each, first, tables.data() + i * stride});
        for (std::int32_t row = 0; row < s.rows_each; ++row) positions.push_back(first + row), owners.push_back(i);
      }
      std::vector<attention_unit> units;
      cpu::split_attention(spans, s.heads, s.kv_heads, units);
      std::vector<float> right = test::poisoned(static_cast<std::size_t>(rows * width));
      const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
      cpu::attention(pool_, {query.data(), width, right.data(), width, s.heads, scale, s.window, spans, units, cache.layer(0)});

      const std::byte* bytes = cache.layer(0).data;
      const buffer kv = upload(std::vector<std::byte>(bytes, bytes + tables.size() * layout.block_bytes()));
      const buffer x = upload(narrow(type, query)), y = poisoned_halves(static_cast<std::size_t>(rows * (width + 1)));
      const buffer at = upload(positions), all_tables = upload(tables), own = upload(owners);
      gpu::plain_attention_args args;
      args.query = x.data();
      args.query_stride = width;
      args.output = y.data();
      args.output_stride = width + 1;
      args.rows = rows;
      args.heads = s.heads;
      args.scale = scale;
      args.window = s.window;
      args.places = {reinterpret_cast<const std::int32_t*>(at.data()), reinterpret_cast<const std::int32_t*>(all_tables.data()), stride};
      args.tables = reinterpret_cast<const std::int32_t*>(own.data());
      args.kv = {layout, kv.data()};
      gpu::plain_attention(stream(), args);
      const std::vector<float> got = widen(type, download<std::uint16_t>(y));
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t i = 0; i < width; ++i) {
          const float expected = right[static_cast<std::size_t>(row * width + i)];
          ASSERT_NEAR(got[static_cast<std::size_t>(row * (width + 1) + i)], expected, test::unit(type) * (std::abs(expected) + 0.1))
              << "row " << row << ", element " << i;
        }
        ASSERT_TRUE(std::isnan(got[static_cast<std::size_t>(row * (width + 1) + width)])) << "wrote behind row " << row;
      }
    }
  }
}

} // namespace
} // namespace troupe
