#include "kernels/attention.hpp"

#include <algorithm>
#include <numeric>

#include "device/cpu/kv_storage.hpp"
#include "device/cuda/graph.hpp"
#include "kernels/attention_gpu.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

struct shape {
  std::int32_t heads, kv_heads, head_dim, block_size, window, splits;
  std::vector<std::int32_t> lengths;
  std::int32_t unsettled = 0;
};

class gpu_attention_test : public test::gpu_op_test {
 protected:
  // Sequences whose keys and values the CPU wrote to scattered blocks among poisoned ones.
  struct problem {
    std::vector<float> query; // [rows][heads * head_dim]
    std::vector<std::int32_t> positions;
    std::vector<block_id> tables; // [rows][table_stride]
    std::int32_t table_stride = 0, blocks = 0;
    std::unique_ptr<cpu::kv_storage> cache;
    std::vector<float> right;
  };

  problem make(dtype type, const shape& s) {
    problem p;
    const std::int64_t rows = static_cast<std::int64_t>(s.lengths.size()), width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
    p.table_stride = *std::max_element(s.lengths.begin(), s.lengths.end()) / s.block_size + 1;
    p.blocks = static_cast<std::int32_t>(rows) * p.table_stride + 2;
    p.tables.resize(static_cast<std::size_t>(p.blocks));
    std::iota(p.tables.begin(), p.tables.end(), 0);
    std::shuffle(p.tables.begin(), p.tables.end(), random_);
    const kv_layout layout{type, s.block_size, s.kv_heads, s.head_dim};
    p.cache = std::make_unique<cpu::kv_storage>(layout, 1, p.blocks);
    p.cache->fill(0xff);
    p.query = exact(type, static_cast<std::size_t>(rows * width), 2.0F);
    std::vector<attention_span> spans;
    for (std::int32_t r = 0; r < rows; ++r) {
      const std::int32_t length = s.lengths[static_cast<std::size_t>(r)];
      const block_id* table = p.tables.data() + r * p.table_stride;
      const std::vector<float> keys = normal(static_cast<std::size_t>(length * kv_width)), values = normal(keys.size());
      const attention_span all{0, length, 0, table};
      cpu::kv_write(pool_, {keys.data(), values.data(), kv_width, std::span(&all, 1), p.cache->layer(0)});
      spans.push_back({r, 1, length - 1, table});
      p.positions.push_back(length - 1);
    }
    std::vector<attention_unit> units;
    cpu::split_attention(spans, s.heads, s.kv_heads, units);
    p.right = test::poisoned(static_cast<std::size_t>(rows * width));
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
    cpu::attention(pool_, {p.query.data(), width, p.right.data(), width, s.heads, scale, s.window, spans, units, p.cache->layer(0)});
    return p;
  }

  std::vector<float> run(dtype type, const shape& s, const problem& p, int repeats) {
    const std::int32_t rows = static_cast<std::int32_t>(s.lengths.size());
    const std::int64_t width = s.heads * s.head_dim;
    const kv_layout layout{type, s.block_size, s.kv_heads, s.head_dim};
    const std::byte* bytes = p.cache->layer(0).data;
    const buffer cache = upload(std::vector<std::byte>(bytes, bytes + static_cast<std::size_t>(p.blocks) * layout.block_bytes()));
    const buffer query = upload(narrow(type, p.query)), output = poisoned_halves(static_cast<std::size_t>(rows * (width + 3)));
    const buffer positions = upload(p.positions), tables = upload(p.tables);
    gpu::decode_attention_args args;
    args.query = query.data();
    args.query_stride = width;
    args.output = output.data();
    args.output_stride = width + 3;
    args.rows = rows;
    args.heads = s.heads;
    args.scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
    args.window = s.window;
    args.places = {reinterpret_cast<const std::int32_t*>(positions.data()), reinterpret_cast<const std::int32_t*>(tables.data()),
                   p.table_stride};
    args.kv = {layout, cache.data()};
    args.splits = s.splits;
    args.unsettled = s.unsettled;
    args.longest = *std::max_element(s.lengths.begin(), s.lengths.end());
    for (int i = 0; i < repeats; ++i) gpu::decode_attention(stream(), args);
    return widen(type, download<std::uint16_t>(output));
  }
};

const std::vector<shape> shapes = {{4, 4, 64, 16, 0, 1, {1, 2, 17, 300}}, {9, 3, 64, 16, 0, 4, {1, 15, 16, 33, 511}},
                                   {32, 8, 128, 16, 0, 8, {1, 1024, 77}}, {16, 2, 128, 32, 0, 4, {200, 31, 32}},
                                   {18, 1, 64, 48, 0, 2, {100, 3}},       {6, 3, 128, 16, 100, 4, {1, 99, 100, 101, 450}},
                                   {5, 1, 128, 64, 1, 8, {65, 64, 1}},    {2, 1, 64, 16, 33, 1, {1, 34, 1000}},
                                   {8, 1, 128, 16, 0, 2, {5000, 130}, 1}, {4, 1, 64, 16, 0, 1, {2500, 4}, 5},
                                   {32, 8, 64, 16, 0, 16, {1024, 16}, 1}};

class gpu_attention_shape_test : public gpu_attention_test, public ::testing::WithParamInterface<shape> {};
INSTANTIATE_TEST_SUITE_P(shapes, gpu_attention_shape_test, ::testing::ValuesIn(shapes));

TEST_P(gpu_attention_shape_test, equals_the_cpu_over_scattered_poisoned_blocks) {
  const shape& s = GetParam();
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    SCOPED_TRACE(::testing::Message() << traits(type).name << " " << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim
                                      << ", window " << s.window << ", splits " << s.splits);
    const problem p = make(type, s);
    const std::vector<float> out = run(type, s, p, 3); // the counters are as before after each call
    const std::int64_t width = s.heads * s.head_dim;
    for (std::size_t r = 0; r < s.lengths.size(); ++r) {
      for (std::int64_t i = 0; i < width + 3; ++i) {
        const float got = out[r * static_cast<std::size_t>(width + 3) + static_cast<std::size_t>(i)];
        if (i >= width) {
          ASSERT_TRUE(std::isnan(got)) << "wrote behind row " << r;
          continue;
        }
        const float right = p.right[r * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)];
        // The output's rounding, and that of the weights, which add up to 1, over values of about 1.
        ASSERT_NEAR(got, right, test::unit(type) * (std::abs(right) + 0.5)) << "row " << r << ", element " << i;
      }
    }
  }
}

// Each step's query, key and value come of the step before: attention must see its own position's, and nothing may be overwritten early.
TEST_F(gpu_attention_test, overlapping_with_the_kernel_that_writes_the_cache_changes_nothing) {
  const std::int32_t heads = 4, kv_heads = 2, head_dim = 64, width = heads * head_dim, steps = 24;
  const kv_layout layout{dtype::bf16, 16, kv_heads, head_dim};
  for (const std::int32_t rows : {1, 8, 20, 70}) {
    std::vector<std::int32_t> positions, tables;
    for (std::int32_t r = 0; r < rows; ++r) {
      positions.push_back(static_cast<std::int32_t>(between(0, 319)));
      for (std::int32_t b = 0; b < 20; ++b) tables.push_back(b * rows + r);
    }
    const std::vector<float> kv = exact(dtype::bf16, static_cast<std::size_t>(20 * rows) * layout.block_bytes() / 2);
    const buffer weight =
        upload(narrow(dtype::bf16, exact(dtype::bf16, static_cast<std::size_t>((heads + 2 * kv_heads) * head_dim * width), 0.1F)));
    const buffer x = upload(narrow(dtype::bf16, exact(dtype::bf16, static_cast<std::size_t>(rows * width))));
    const buffer norm = upload(narrow(dtype::bf16, exact(dtype::bf16, static_cast<std::size_t>(width))));
    const buffer angles = upload(normal(320 * head_dim / 2, 1.0F));
    const buffer at = upload(positions), blocks = upload(tables), cache = upload(narrow(dtype::bf16, kv));
    const buffer query = poisoned_halves(static_cast<std::size_t>(rows * width)),
                 output = poisoned_halves(static_cast<std::size_t>(rows * width));
    const std::int32_t splits = gpu::decode_attention_splits(rows, heads, kv_heads, 320);
    const buffer linear_space = upload(std::vector<std::byte>(gpu::linear_workspace(rows, width) + 16));
    const gpu::row_places places{reinterpret_cast<const std::int32_t*>(at.data()), reinterpret_cast<const std::int32_t*>(blocks.data()),
                                 20};
    const auto* table = reinterpret_cast<const float*>(angles.data());
    const auto run = [&](bool overlaps) {
      for (std::int32_t step = 0; step < steps; ++step) {
        gpu::linear_args product;
        product.weight = weight.data();
        product.out_rows = (heads + 2 * kv_heads) * head_dim;
        product.columns = product.x_stride = product.y_stride = width;
        product.x = step == 0 ? x.data() : output.data();
        product.rows = rows;
        product.norm_weight = norm.data();
        product.epsilon = 1e-5F;
        product.y = query.data();
        product.workspace = linear_space.data();
        product.overlaps = overlaps;
        gpu::linear_qkv(stream(), product, {heads, places, {table, table}, {layout, cache.data()}});
        gpu::decode_attention(
            stream(),
            {query.data(), width, output.data(), width, rows, heads, 0.125F, 0, places, {layout, cache.data()}, splits, overlaps, 1});
      }
    };
    run(false);
    const test::halves one_by_one = download<std::uint16_t>(output);
    const cuda::graph chain = cuda::graph::capture(*stream_, [&] { run(true); });
    for (int repeat = 0; repeat < 10; ++repeat) {
      chain.launch(*stream_);
      ASSERT_EQ(download<std::uint16_t>(output), one_by_one) << rows << " rows, repeat " << repeat;
    }
    for (const std::uint16_t bits : one_by_one) ASSERT_TRUE(std::isfinite(bfloat16_to_float(bits)));
  }
}

TEST_F(gpu_attention_test, what_the_kernel_cannot_take_is_refused) {
  gpu::decode_attention_args args;
  args.rows = 1;
  args.heads = 3;
  args.kv.layout = {dtype::bf16, 16, 2, 64};
  EXPECT_THROW(gpu::decode_attention(stream(), args), std::invalid_argument) << "3 heads for 2 KV heads";
  args.heads = 4;
  args.kv.layout.head_dim = 80;
  EXPECT_THROW(gpu::decode_attention(stream(), args), std::invalid_argument);
  args.kv.layout.head_dim = 64;
  args.kv.layout.block_size = 8;
  EXPECT_THROW(gpu::decode_attention(stream(), args), std::invalid_argument);
  args.kv.layout.block_size = 16;
  args.splits = 3;
  EXPECT_THROW(gpu::decode_attention(stream(), args), std::invalid_argument);
}

} // namespace
} // namespace troupe
