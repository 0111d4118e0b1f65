#include "device/cpu/kv_storage.hpp"
#include "device/cuda/graph.hpp"
#include "kernels/attention.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"
#include "tests/kernels/gpu/linear_testing.hpp"

namespace troupe {
namespace {

using test::gpu_linear_path_test;
using test::gpu_linear_test;
using shape = test::product_shape;

INSTANTIATE_TEST_SUITE_P(rows, gpu_linear_path_test, ::testing::ValuesIn(test::path_rows), test::name_of_rows);

// Rows 1-2: groups of columns that end early, more pairs than warps, two warps for a pair, the most columns that x has room for. Rows 3-8:
// x stays in shared memory, or passes through in a ring while blocks take two tiles at once, or one when theirs are odd in number. Above:
// each width of tile; fewer units than multiprocessors, tiles shared by several of them, columns and rows that end inside a tile; one round
// and several.
constexpr shape odd_shapes[] = {{1, 16, 32},       {1, 1, 8},        {1, 4096, 4096},   {1, 2209, 3080},  {1, 40, 14336}, {1, 5001, 2056},
                                {1, 1003, 8192},   {2, 37, 40},      {2, 4300, 6152},   {2, 333, 576},    {2, 64, 14336}, {2, 1003, 4104},
                                {2, 24, 57344},    {3, 37, 40},      {5, 130, 1032},    {8, 48, 4096},    {8, 333, 576},  {8, 64, 14336},
                                {6, 40, 14336},    {8, 2200, 4104},  {5, 4300, 6152},   {9, 17, 264},     {16, 96, 4104}, {13, 4240, 64},
                                {17, 4096, 512},   {32, 37, 40},     {33, 333, 576},    {64, 1000, 2056}, {65, 520, 512}, {100, 96, 4104},
                                {128, 1032, 1032}, {128, 5000, 136}, {40, 12000, 2056}, {33, 6500, 4096}, {45, 33000, 64}};

TEST_P(gpu_linear_path_test, equals_the_reference_with_and_without_norm_bias_and_residual) {
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const shape& s : odd_shapes) {
      if (!takes(s.rows)) continue;
      const int first_kind = s.outputs * s.columns > 4'000'000 ? 3 : 0; // the large ones once
      for (int kind = first_kind; kind < 4; ++kind) {
        SCOPED_TRACE(::testing::Message() << traits(type).name << " " << s.rows << " x " << s.outputs << " x " << s.columns << " kind "
                                          << kind);
        const problem p = make(type, s, kind == 1 || kind == 3, kind >= 2);
        const std::int64_t stride = s.outputs + (kind == 3 ? 0 : 5); // the residual has y's stride
        const buffer y = poisoned_halves(static_cast<std::size_t>(s.rows * stride));
        const gpu::linear_args args = args_of(p, y.data(), stride);
        if (kind == 3) {
          gpu::linear_residual(stream(), args, p.device_residual.data());
        } else {
          gpu::linear(stream(), args);
        }
        const std::vector<float> out = widen(type, download<std::uint16_t>(y));
        for (std::int64_t r = 0; r < s.rows; ++r) {
          for (std::int64_t o = 0; o < stride; ++o) {
            const float got = out[static_cast<std::size_t>(r * stride + o)];
            if (o >= s.outputs) {
              ASSERT_TRUE(std::isnan(got)) << "wrote behind row " << r;
              continue;
            }
            const std::size_t i = static_cast<std::size_t>(r * s.outputs + o);
            const double right = static_cast<double>(p.product[i]) + (kind == 3 ? static_cast<double>(p.residual[i]) : 0.0);
            ASSERT_NEAR(got, right, test::unit(type) * std::abs(right) + allowed(p, i)) << "row " << r << ", output " << o;
          }
        }
      }
    }
  }
}

TEST_P(gpu_linear_path_test, logits_keep_their_f32_accuracy) {
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const std::int64_t rows : {1, 3, 7, 20, 100}) {
      if (!takes(rows)) continue;
      const problem p = make(type, {rows, 1003, 512}, false, false);
      const buffer y = upload(test::poisoned(static_cast<std::size_t>(rows * 1003)));
      gpu::linear_to_f32(stream(), args_of(p, y.data(), 1003));
      const std::vector<float> out = download<float>(y);
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], p.product[i], 2e-5 * p.spread[i]) << rows << " rows, " << i;
    }
  }
}

TEST_F(gpu_linear_test, logits_of_few_rows_leave_the_best_of_each_part) {
  for (const std::int64_t rows : {1, 2, 3}) {
    for (const shape& s : {shape{rows, 1003, 512}, shape{rows, 9001, 64}, shape{rows, 40, 4096}}) {
      const problem p = make(dtype::bf16, s, true, false);
      const auto values = static_cast<std::size_t>(s.rows * s.outputs);
      const buffer plain = upload(test::poisoned(values)), y = upload(test::poisoned(values));
      const buffer tops = upload(std::vector<gpu::logit_top>(static_cast<std::size_t>(rows) * gpu::most_logit_tops, {7777.0F, 0}));
      gpu::linear_to_f32(stream(), args_of(p, plain.data(), s.outputs));
      const auto vocab = static_cast<std::int32_t>(s.outputs - 3);
      const std::int32_t count =
          gpu::linear_to_logits(stream(), args_of(p, y.data(), s.outputs), vocab, reinterpret_cast<gpu::logit_top*>(tops.data()));
      const std::vector<float> logits = download<float>(y);
      ASSERT_EQ(logits, download<float>(plain)) << rows << " rows of " << s.outputs;
      if (rows == 3) {
        EXPECT_EQ(count, 0);
        continue;
      }
      ASSERT_GT(count, 0);
      const auto parts = download<gpu::logit_top>(tops);
      for (std::int64_t r = 0; r < rows; ++r) {
        gpu::logit_top best{-std::numeric_limits<float>::infinity(), -1};
        for (std::int64_t i = r * gpu::most_logit_tops; i < r * gpu::most_logit_tops + count; ++i) {
          const gpu::logit_top& part = parts[static_cast<std::size_t>(i)];
          ASSERT_GE(part.id, 0);
          if (part.logit > best.logit) best = part;
        }
        const auto row = logits.begin() + r * s.outputs;
        const auto right = std::max_element(row, row + vocab);
        EXPECT_EQ(best.logit, *right) << "row " << r;
        EXPECT_EQ(best.id, right - row) << "row " << r;
      }
    }
  }
}

TEST_P(gpu_linear_path_test, swiglu_meets_its_gates_and_ups) {
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const shape& s : {shape{1, 16, 64},
                           {1, 2 * 4008, 2056},
                           {2, 2 * 1200, 2048},
                           {3, 2 * 136, 96},
                           {2, 2 * 40, 4104},
                           {8, 2 * 1200, 2048},
                           {16, 2 * 40, 2048},
                           {20, 2 * 136, 96},
                           {12, 2 * 14000, 128},
                           {40, 2 * 1008, 512},
                           {70, 2 * 2048, 256},
                           {100, 2 * 7000, 128},
                           {128, 2 * 264, 264}}) {
      if (!takes(s.rows)) continue;
      const std::int64_t half = s.outputs / 2;
      problem p = make(type, s, true, false);
      const buffer y = poisoned_halves(static_cast<std::size_t>(s.rows * half));
      gpu::linear_swiglu(stream(), args_of(p, y.data(), half));
      std::vector<float> right = test::poisoned(static_cast<std::size_t>(s.rows * half));
      cpu::swiglu(pool_, {p.product.data(), s.outputs, right.data(), half, s.rows, half});
      const std::vector<float> out = widen(type, download<std::uint16_t>(y));
      for (std::int64_t r = 0; r < s.rows; ++r) {
        for (std::int64_t o = 0; o < half; ++o) {
          const std::size_t i = static_cast<std::size_t>(r * half + o), g = static_cast<std::size_t>(r * s.outputs + o);
          const std::size_t u = g + static_cast<std::size_t>(half);
          // silu's slope is at most 1.1
          const double error =
              1.1 * allowed(p, g) * std::abs(p.product[u]) + std::abs(p.product[g]) * allowed(p, u) + allowed(p, g) * allowed(p, u);
          ASSERT_NEAR(out[i], right[i], error + test::unit(type) * std::abs(right[i]) + 1e-6) << r << ", " << o;
        }
      }
    }
  }
}

TEST_P(gpu_linear_path_test, qkv_rotates_and_fills_the_cache_as_the_cpu_does) {
  struct heads_shape {
    std::int32_t rows, heads, kv_heads, head_dim, block_size;
    bool bias;
  };
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const heads_shape h : {heads_shape{1, 4, 1, 64, 16, false},
                                {1, 9, 3, 128, 32, true},
                                {1, 3, 1, 48, 5, true},
                                {2, 9, 3, 64, 16, true},
                                {2, 5, 1, 80, 24, true},
                                {2, 4, 2, 128, 32, false},
                                {8, 9, 3, 64, 16, true},
                                {11, 4, 2, 128, 32, false},
                                {3, 2, 2, 16, 5, true},
                                {20, 4, 1, 64, 16, true},
                                {33, 2, 2, 16, 5, true},
                                {50, 9, 3, 64, 16, false},
                                {128, 8, 2, 128, 16, true}}) {
      if (!takes(h.rows)) continue;
      SCOPED_TRACE(::testing::Message() << traits(type).name << " " << h.rows << " rows, " << h.heads << "/" << h.kv_heads);
      const std::int64_t q = h.heads * h.head_dim, kv = h.kv_heads * h.head_dim, outputs = q + 2 * kv;
      problem p = make(type, {h.rows, outputs, 576}, true, h.bias);
      std::vector<double> frequencies;
      for (int i = 0; i < h.head_dim / 2; ++i) frequencies.push_back(std::pow(500000.0, -2.0 * i / h.head_dim));
      rope_table table(frequencies, 1.0);
      table.reserve(200);
      // Every row is a sequence of its own with three blocks.
      std::vector<std::int32_t> positions, tables;
      std::vector<attention_span> spans;
      for (std::int32_t r = 0; r < h.rows; ++r) {
        positions.push_back(static_cast<std::int32_t>(between(0, 3 * h.block_size - 1)));
        for (std::int32_t b = 0; b < 3; ++b) tables.push_back(2 + 3 * ((r * 7) % h.rows) + b);
      }
      for (std::int32_t r = 0; r < h.rows; ++r) spans.push_back({r, 1, positions[static_cast<std::size_t>(r)], tables.data() + 3 * r});
      const kv_layout layout{type, h.block_size, h.kv_heads, h.head_dim};
      cpu::kv_storage cache(layout, 1, 2 + 3 * h.rows);
      cache.fill(0xff);
      const std::size_t cache_halves = static_cast<std::size_t>(2 + 3 * h.rows) * layout.block_bytes() / 2;

      const buffer device_cache = poisoned_halves(cache_halves), y = poisoned_halves(static_cast<std::size_t>(h.rows * q));
      const buffer device_positions = upload(positions), device_tables = upload(tables);
      const std::size_t angles = static_cast<std::size_t>(table.size() * table.view().pairs);
      const buffer cos = upload(std::vector<float>(table.view().cos, table.view().cos + angles));
      const buffer sin = upload(std::vector<float>(table.view().sin, table.view().sin + angles));
      gpu::qkv_args qkv;
      qkv.heads = h.heads;
      qkv.places = {reinterpret_cast<const std::int32_t*>(device_positions.data()),
                    reinterpret_cast<const std::int32_t*>(device_tables.data()), 3};
      qkv.table = {reinterpret_cast<const float*>(cos.data()), reinterpret_cast<const float*>(sin.data())};
      qkv.kv = {layout, device_cache.data()};
      gpu::linear_qkv(stream(), args_of(p, y.data(), q), qkv);

      for (const std::int64_t at : {std::int64_t{0}, q}) {
        cpu::rope(pool_, {p.product.data() + at, outputs, h.rows, at == 0 ? h.heads : h.kv_heads, h.head_dim, positions.data(),
                          table.view(), rope_pairing::halves});
      }
      cpu::kv_write(pool_, {p.product.data() + q, p.product.data() + q + kv, outputs, spans, cache.layer(0)});
      const double spread = *std::max_element(p.spread.begin(), p.spread.end());
      const double error = 4 * test::unit(type) * spread; // a pair of sums, and the rounding of both sides
      const std::vector<float> out = widen(type, download<std::uint16_t>(y));
      for (std::int64_t r = 0; r < h.rows; ++r) {
        for (std::int64_t i = 0; i < q; ++i) {
          const float right = p.product[static_cast<std::size_t>(r * outputs + i)];
          ASSERT_NEAR(out[static_cast<std::size_t>(r * q + i)], right, error + test::unit(type) * std::abs(right)) << r << ", " << i;
        }
      }
      const auto* right = reinterpret_cast<const std::uint16_t*>(cache.layer(0).data);
      const test::halves got = download<std::uint16_t>(device_cache);
      std::size_t written = 0;
      for (std::size_t i = 0; i < cache_halves; ++i) {
        const float a = test::from_bits(type, got[i]), b = test::from_bits(type, right[i]);
        ASSERT_EQ(std::isnan(a), std::isnan(b)) << "element " << i << " of the cache";
        if (std::isnan(b)) continue;
        ++written;
        ASSERT_NEAR(a, b, error + 2 * test::unit(type) * std::abs(b)) << "element " << i << " of the cache";
      }
      ASSERT_EQ(written, static_cast<std::size_t>(2 * h.rows * kv));
    }
  }
}

TEST_P(gpu_linear_path_test, a_chain_that_overlaps_in_a_graph_equals_one_by_one_bit_for_bit) {
  const std::int64_t width = 1536;
  for (const std::int64_t rows : {1, 2, 8, 16, 32, 64, 128}) {
    if (!takes(rows)) continue;
    std::vector<problem> layers;
    for (int i = 0; i < 3; ++i) layers.push_back(make(dtype::bf16, {rows, width, width}, true, false));
    const buffer a = poisoned_halves(static_cast<std::size_t>(rows * width)), b = poisoned_halves(static_cast<std::size_t>(rows * width));
    const auto run = [&](bool overlaps) {
      const std::byte* in = layers[0].device_x.data();
      for (int step = 0; step < 24; ++step) {
        std::byte* out = (step % 2 == 0 ? a : b).data();
        gpu::linear_args args = args_of(layers[static_cast<std::size_t>(step % 3)], out, width);
        args.workspace = layers[0].workspace.data();
        args.x = in;
        args.overlaps = overlaps;
        gpu::linear_residual(stream(), args, in);
        in = out;
      }
    };
    run(false);
    const test::halves one_by_one = download<std::uint16_t>(b);
    const cuda::graph chain = cuda::graph::capture(*stream_, [&] { run(true); });
    for (int repeat = 0; repeat < 20; ++repeat) {
      chain.launch(*stream_);
      ASSERT_EQ(download<std::uint16_t>(b), one_by_one) << rows << " rows, repeat " << repeat;
    }
    for (const std::uint16_t bits : one_by_one) ASSERT_TRUE(std::isfinite(bfloat16_to_float(bits)));
  }
}

TEST_P(gpu_linear_path_test, a_row_does_not_depend_on_its_batch_mates) {
  struct part {
    std::int32_t all, first, rows;
  };
  for (const part& c : {part{2, 1, 1}, {8, 3, 5}, {8, 5, 3}, {16, 2, 9}, {32, 10, 20}, {64, 20, 40}, {128, 50, 70}, {128, 10, 35}}) {
    if (!takes(c.rows)) continue;
    const problem p = make(dtype::bf16, {c.all, 2304, 1024}, true, false);
    const std::size_t width = 2304;
    const buffer whole = poisoned_halves(static_cast<std::size_t>(c.all) * width),
                 mixed = poisoned_halves(static_cast<std::size_t>(c.all) * width);
    gpu::linear(stream(), args_of(p, whole.data(), 2304));
    gpu::linear_args some = args_of(p, mixed.data() + c.first * 2304 * 2, 2304);
    some.x = p.device_x.data() + c.first * 1024 * 2;
    some.rows = c.rows;
    gpu::linear(stream(), some);
    const test::halves all = download<std::uint16_t>(whole), part = download<std::uint16_t>(mixed);
    for (std::size_t i = static_cast<std::size_t>(c.first) * width; i < static_cast<std::size_t>(c.first + c.rows) * width; ++i) {
      ASSERT_EQ(part[i], all[i]) << i << " of " << c.rows << " rows in " << c.all;
    }
  }
}

TEST_F(gpu_linear_test, shapes_that_the_kernel_cannot_take_are_refused) {
  gpu::linear_args args;
  args.out_rows = 16;
  args.columns = 12; // no multiple of 8
  args.rows = 1;
  EXPECT_THROW(gpu::linear(stream(), args), std::invalid_argument);
  args.columns = 16;
  args.rows = 129;
  EXPECT_THROW(gpu::linear(stream(), args), std::invalid_argument);
  args.rows = 1;
  args.type = dtype::f32;
  EXPECT_THROW(gpu::linear(stream(), args), std::invalid_argument);
  args.type = dtype::bf16;
  args.rows = 9;
  args.norm_weight = &args; // without a workspace
  EXPECT_THROW(gpu::linear(stream(), args), std::invalid_argument);
  args.rows = 1;
  args.out_rows = 24; // 12 gates
  EXPECT_THROW(gpu::linear_swiglu(stream(), args), std::invalid_argument);
}

} // namespace
} // namespace troupe
