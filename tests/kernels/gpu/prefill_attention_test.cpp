#include "kernels/prefill_attention_gpu.hpp"

#include <algorithm>
#include <numeric>

#include "device/cpu/kv_storage.hpp"
#include "kernels/attention.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

struct chunk {
  std::int32_t first_position, rows;
};
struct shape {
  std::int32_t heads, kv_heads, head_dim, block_size, window;
  std::vector<chunk> chunks;
};

class gpu_prefill_attention_test : public test::gpu_op_test {
 protected:
  // Sequences whose keys and values the CPU wrote to scattered blocks among poisoned ones; what lies behind a sequence's last row in its
  // last block is poison too.
  struct problem {
    std::vector<float> query; // [rows][heads * head_dim]
    std::vector<gpu::prefill_span> spans;
    std::vector<block_id> tables; // [chunks][table_stride]
    std::int32_t rows = 0, table_stride = 0, blocks = 0;
    std::unique_ptr<cpu::kv_storage> cache;
    std::vector<float> right;
  };

  problem make(dtype type, const shape& s) {
    problem p;
    for (const chunk& c : s.chunks) {
      p.spans.push_back({p.rows, c.rows, c.first_position, static_cast<std::int32_t>(p.spans.size())});
      p.rows += c.rows;
      p.table_stride = std::max(p.table_stride, (c.first_position + c.rows - 1) / s.block_size + 1);
    }
    const std::int64_t width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
    p.blocks = static_cast<std::int32_t>(s.chunks.size()) * p.table_stride + 2;
    p.tables.resize(static_cast<std::size_t>(p.blocks));
    std::iota(p.tables.begin(), p.tables.end(), 0);
    std::shuffle(p.tables.begin(), p.tables.end(), random_);
    p.cache = std::make_unique<cpu::kv_storage>(kv_layout{type, s.block_size, s.kv_heads, s.head_dim}, 1, p.blocks);
    p.cache->fill(0xff);
    p.query = exact(type, static_cast<std::size_t>(p.rows * width), 2.0F);
    std::vector<attention_span> spans;
    for (const gpu::prefill_span& span : p.spans) {
      const block_id* table = p.tables.data() + span.table * p.table_stride;
      const std::int32_t length = span.first_position + span.rows;
      const std::vector<float> keys = normal(static_cast<std::size_t>(length * kv_width)), values = normal(keys.size());
      const attention_span all{0, length, 0, table};
      cpu::kv_write(pool_, {keys.data(), values.data(), kv_width, std::span(&all, 1), p.cache->layer(0)});
      spans.push_back({span.first_row, span.rows, span.first_position, table});
    }
    std::vector<attention_unit> units;
    cpu::split_attention(spans, s.heads, s.kv_heads, units);
    p.right = test::poisoned(static_cast<std::size_t>(p.rows * width));
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
    cpu::attention(pool_, {p.query.data(), width, p.right.data(), width, s.heads, scale, s.window, spans, units, p.cache->layer(0)});
    return p;
  }

  // Bits of [rows][width + 2] with the spans given; tables beyond a window's reach are spoilt, since nobody may look there.
  // `shares`: positions are shared out, with a workspace for so many tiles at once.
  test::halves run(dtype type, const shape& s, const problem& p, const std::vector<gpu::prefill_span>& spans, int empty_tiles = 0,
                   int shares = 0) {
    const std::int64_t width = s.heads * s.head_dim, query_stride = width + 8, output_stride = width + 2;
    const kv_layout layout{type, s.block_size, s.kv_heads, s.head_dim};
    const std::byte* bytes = p.cache->layer(0).data;
    const buffer cache = upload(std::vector<std::byte>(bytes, bytes + static_cast<std::size_t>(p.blocks) * layout.block_bytes()));
    std::vector<float> padded(static_cast<std::size_t>(p.rows * query_stride), std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t r = 0; r < p.rows; ++r) std::copy_n(p.query.begin() + r * width, width, padded.begin() + r * query_stride);
    std::vector<block_id> tables = p.tables;
    for (const gpu::prefill_span& span : spans) {
      for (std::int32_t b = 0; s.window > 0 && (b + 1) * s.block_size <= span.first_position - s.window + 1; ++b)
        tables[static_cast<std::size_t>(span.table * p.table_stride + b)] = 1 << 28;
    }
    const buffer query = upload(narrow(type, padded)), output = poisoned_halves(static_cast<std::size_t>(p.rows * output_stride));
    const buffer device_tables = upload(tables);
    std::vector<gpu::prefill_tile> tiles;
    gpu::split_prefill(spans, s.heads, s.kv_heads, s.window, tiles);
    tiles.resize(tiles.size() + static_cast<std::size_t>(empty_tiles));
    const buffer device_tiles = upload(tiles);
    gpu::prefill_attention_args args;
    args.query = query.data();
    args.query_stride = query_stride;
    args.output = output.data();
    args.output_stride = output_stride;
    args.rows = p.rows;
    args.heads = s.heads;
    args.scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
    args.window = s.window;
    args.tiles = reinterpret_cast<const gpu::prefill_tile*>(device_tiles.data());
    args.tile_count = static_cast<std::int32_t>(tiles.size());
    args.block_tables = reinterpret_cast<const std::int32_t*>(device_tables.data());
    args.table_stride = p.table_stride;
    args.kv = {layout, cache.data()};
    args.blocks = p.blocks;
    const std::int32_t tile_rows = gpu::prefill_tile_rows(s.heads, s.kv_heads);
    std::int32_t end = 0;
    for (const gpu::prefill_span& span : spans) end = std::max(end, span.first_position + span.rows);
    const std::size_t room = gpu::attention_shares_workspace(std::max(shares, 1), tile_rows, s.heads, s.head_dim, end);
    const buffer workspace = poisoned_halves(room / 2);
    if (shares > 0) args.shares = {workspace.data(), room, tile_rows, end, nullptr};
    gpu::prefill_attention(stream(), args);
    return download<std::uint16_t>(output);
  }

  static void expect_right(dtype type, const shape& s, const problem& p, const std::vector<float>& out) {
    const std::int64_t width = s.heads * s.head_dim, stride = width + 2;
    for (std::int64_t r = 0; r < p.rows; ++r) {
      for (std::int64_t i = 0; i < stride; ++i) {
        const float got = out[static_cast<std::size_t>(r * stride + i)];
        if (i >= width) {
          ASSERT_TRUE(std::isnan(got)) << "wrote behind row " << r;
          continue;
        }
        const float right = p.right[static_cast<std::size_t>(r * width + i)];
        // A weight's rounding moves the sum by half a unit of the values it meets.
        ASSERT_NEAR(got, right, test::unit(type) * (std::abs(right) + 0.5)) << "row " << r << ", element " << i;
      }
    }
  }
};

TEST_F(gpu_prefill_attention_test, equals_the_cpu_over_scattered_poisoned_blocks) {
  const std::vector<shape> shapes = {
      {4, 4, 64, 16, 0, {{0, 1}}},
      {1, 1, 128, 16, 0, {{0, 128}}},
      {8, 2, 128, 16, 0, {{0, 300}, {511, 1}, {100, 37}, {127, 2}}},
      {9, 3, 64, 16, 0, {{0, 45}, {1000, 70}}},
      {14, 2, 64, 32, 0, {{3, 200}, {0, 17}}},
      {7, 1, 128, 48, 0, {{60, 130}, {0, 1}, {384, 1}}},
      {8, 1, 64, 64, 0, {{0, 513}}},
      {6, 3, 128, 16, 100, {{0, 260}, {450, 64}, {99, 1}, {1029, 3}}},
      {4, 4, 64, 16, 128, {{0, 400}, {300, 129}}},
      {5, 1, 128, 32, 1, {{0, 65}, {640, 1}}},
      {2, 1, 64, 16, 33, {{70, 300}}},
      {64, 1, 64, 16, 0, {{5, 9}}},
      {2, 1, 128, 16, 0, {{4000, 200}, {5119, 1}, {255, 2}, {256, 1}}}, // shares of either size
      {2, 1, 64, 16, 900, {{3000, 1}, {4500, 150}}},
  };
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const shape& s : shapes) {
      SCOPED_TRACE(::testing::Message() << traits(type).name << " " << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim
                                        << ", blocks of " << s.block_size << ", window " << s.window);
      const problem p = make(type, s);
      expect_right(type, s, p, widen(type, run(type, s, p, p.spans, 3)));
      for (const int shares : {1, 30}) expect_right(type, s, p, widen(type, run(type, s, p, p.spans, 3, shares)));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(gpu_prefill_attention_test, a_row_is_the_same_in_any_chunking) {
  for (const auto& [window, shares] : {std::pair{0, 0}, {150, 0}, {0, 3}, {150, 3}, {300, 30}}) {
    const shape s{8, 2, 128, 16, window, {{0, 700}}};
    const problem p = make(dtype::bf16, s);
    const test::halves whole = run(dtype::bf16, s, p, p.spans, 0, shares);
    std::vector<gpu::prefill_span> cut;
    for (std::int32_t at = 0; at < 700;) {
      const std::int32_t rows = static_cast<std::int32_t>(std::min<std::int64_t>(between(1, 150), 700 - at));
      cut.push_back({at, rows, at, 0});
      at += rows;
    }
    // The spoilt tables of one chunk are needed by those before it.
    test::halves pieces = whole;
    for (const gpu::prefill_span& span : cut) {
      const test::halves alone = run(dtype::bf16, s, p, {span}, 0, shares);
      const std::int64_t stride = s.heads * s.head_dim + 2;
      std::copy_n(alone.begin() + span.first_row * stride, span.rows * stride, pieces.begin() + span.first_row * stride);
    }
    EXPECT_EQ(whole, pieces) << "window " << window << ", shares " << shares;
  }
}

TEST_F(gpu_prefill_attention_test, tiles_cover_each_row_once_the_longest_first) {
  std::vector<gpu::prefill_span> spans;
  std::int32_t rows = 0;
  for (int i = 0; i < 20; ++i) {
    const auto count = static_cast<std::int32_t>(between(1, 200));
    spans.push_back({rows, count, static_cast<std::int32_t>(between(0, 500)), i});
    rows += count;
  }
  for (const std::int32_t window : {0, 64}) {
    std::vector<gpu::prefill_tile> tiles;
    gpu::split_prefill(spans, 28, 4, window, tiles);
    std::vector<int> covered(static_cast<std::size_t>(rows));
    std::int32_t last = 1 << 30;
    for (const gpu::prefill_tile& tile : tiles) {
      ASSERT_GE(tile.rows, 1);
      ASSERT_LE(tile.rows, gpu::prefill_tile_rows(28, 4));
      const gpu::prefill_span& span = spans[static_cast<std::size_t>(tile.table)];
      ASSERT_EQ(tile.first_position - span.first_position, tile.first_row - span.first_row);
      ASSERT_EQ(tile.end_position, span.first_position + span.rows);
      for (std::int32_t r = 0; r < tile.rows; ++r) ++covered[static_cast<std::size_t>(tile.first_row + r)];
      const std::int32_t reads = tile.first_position + tile.rows - (window > 0 ? std::max(0, tile.first_position - window + 1) : 0);
      ASSERT_LE(reads, last);
      last = reads;
    }
    EXPECT_EQ(covered, std::vector<int>(covered.size(), 1));
  }
}

TEST_F(gpu_prefill_attention_test, what_the_kernel_cannot_take_is_refused) {
  gpu::prefill_attention_args args;
  args.rows = args.tile_count = args.blocks = 1;
  args.query_stride = args.output_stride = 512;
  args.heads = 3;
  args.kv.layout = {dtype::bf16, 16, 2, 64};
  EXPECT_THROW(gpu::prefill_attention(stream(), args), std::invalid_argument) << "3 heads for 2 KV heads";
  args.heads = 130;
  EXPECT_THROW(gpu::prefill_attention(stream(), args), std::invalid_argument) << "65 heads for a KV head";
  args.heads = 4;
  args.kv.layout.head_dim = 80;
  EXPECT_THROW(gpu::prefill_attention(stream(), args), std::invalid_argument);
  args.kv.layout.head_dim = 64;
  args.kv.layout.block_size = 8;
  EXPECT_THROW(gpu::prefill_attention(stream(), args), std::invalid_argument);
  args.kv.layout.block_size = 16;
  args.query_stride = 12;
  EXPECT_THROW(gpu::prefill_attention(stream(), args), std::invalid_argument);
}

} // namespace
} // namespace troupe
