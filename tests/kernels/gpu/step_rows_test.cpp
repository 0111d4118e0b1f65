#include "kernels/step_rows_gpu.hpp"

#include <algorithm>
#include <numeric>

#include "device/cuda/graph.hpp"
#include "kernels/attention_gpu.hpp"
#include "kernels/fill_gpu.hpp"
#include "kernels/linear_gpu.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

constexpr std::int32_t slots = 5, stride = 3; // slot 4 is nobody's

class gpu_step_rows_test : public test::gpu_op_test {
 protected:
  void SetUp() override {
    test::gpu_op_test::SetUp();
    if (IsSkipped()) return;
    last_ = upload(std::vector<token_id>{10, 11, 12, 13, 14});
    faulted_ = upload(std::vector<std::int32_t>{0, 1, 1, 0, 0});
    sampling_ = upload(std::vector<gpu::sampling_slot>(slots));
    biases_ = upload(std::vector<token_bias>(slots * gpu::most_biased_tokens));
    suppressed_ = upload(std::vector<token_id>(slots * gpu::most_biased_tokens, -1));
    tables_ = upload(std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 15, 15});
  }
  template <class T>
  static T* as(const buffer& memory) {
    return reinterpret_cast<T*>(memory.data());
  }
  gpu::slot_arrays arrays() const {
    return {as<token_id>(last_),
            as<std::int32_t>(faulted_),
            as<gpu::sampling_slot>(sampling_),
            as<token_bias>(biases_),
            as<token_id>(suppressed_),
            as<std::int32_t>(tables_),
            stride};
  }

  buffer last_, faulted_, sampling_, biases_, suppressed_, tables_;
};

TEST_F(gpu_step_rows_test, changes_reach_their_slots_alone) {
  gpu::sampling_slot greedy;
  greedy.temperature = 0;
  const buffer opened = upload(std::vector<gpu::opened_slot>{{1, greedy}});
  const buffer changes = upload(std::vector<gpu::table_change>{{1, 2, 99}, {3, 0, 98}});
  const buffer listed = upload(std::vector<gpu::listed_token>{{2, 1, {7, 1.5F}}});
  gpu::change_slots_args args;
  args.slots = arrays();
  args.opened = as<gpu::opened_slot>(opened);
  args.opened_count = 1;
  args.tables = as<gpu::table_change>(changes);
  args.table_count = 2;
  args.biases = args.suppressed = as<gpu::listed_token>(listed);
  args.bias_count = args.suppressed_count = 1;
  gpu::change_slots(stream(), args);
  EXPECT_EQ(download<std::int32_t>(tables_), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 99, 6, 7, 8, 98, 10, 11, 15, 15, 15}));
  EXPECT_EQ(download<std::int32_t>(faulted_), (std::vector<std::int32_t>{0, 0, 1, 0, 0}));
  EXPECT_EQ(download<token_id>(last_), (std::vector<token_id>{10, 0, 12, 13, 14}));
  const auto sampling = download<gpu::sampling_slot>(sampling_);
  EXPECT_EQ(sampling[1].temperature, 0);
  EXPECT_EQ(sampling[0].temperature, 1);
  const auto biases = download<token_bias>(biases_);
  EXPECT_EQ(biases[2 * gpu::most_biased_tokens + 1], (token_bias{7, 1.5F}));
  EXPECT_EQ(std::count_if(biases.begin(), biases.end(), [](const token_bias& b) { return b.bias != 0; }), 1);
  EXPECT_EQ(download<token_id>(suppressed_)[2 * gpu::most_biased_tokens + 1], 7);
}

// A graph that begins with prepare_rows takes each launch's rows; the first product overlaps it, and attention, which reads positions and
// tables without waiting for the product, still sees this launch's.
TEST_F(gpu_step_rows_test, a_graph_goes_on_from_the_rows_of_its_launch) {
  constexpr std::int32_t heads = 4, kv_heads = 2, head_dim = 64, width = heads * head_dim, all_heads = heads + 2 * kv_heads, vocab = 40;
  const kv_layout layout{dtype::bf16, 16, kv_heads, head_dim};
  const auto halves = [&](std::int32_t count, float deviation) {
    return upload(narrow(dtype::bf16, normal(static_cast<std::size_t>(count), deviation)));
  };
  const buffer embedding = halves(vocab * width, 1.0F), weight = halves(all_heads * head_dim * width, 0.1F), norm = halves(width, 1.0F);
  const test::halves kv = narrow(dtype::bf16, normal(16 * layout.block_bytes() / 2));
  const buffer angles = upload(normal(48 * head_dim / 2)), hidden = halves(width, 1.0F), query = halves(width, 1.0F);
  const buffer out = poisoned_halves(width), ints = upload(std::vector<std::int32_t>(64)),
               sampling = upload(std::vector<gpu::sampling_row>(1));
  const auto* table = as<float>(angles);
  std::vector<gpu::step_row> rows;
  for (std::int32_t i = 0; i < 24; ++i) {
    rows.push_back({i % 4, static_cast<std::int32_t>(between(0, 47)), static_cast<token_id>(between(0, vocab - 1))});
  }
  const buffer device_rows = upload(rows), head = upload(std::vector<gpu::step_head>(1));
  const auto rows_of = [&](std::size_t launch) {
    gpu::prepare_rows_args args;
    args.slots = arrays();
    args.rows = as<gpu::step_row>(device_rows) + launch;
    args.heads = as<gpu::step_head>(head);
    args.row_count = args.table_rows = args.head_count = 1;
    args.block_size = 16;
    args.tokens = as<token_id>(ints), args.positions = as<std::int32_t>(ints) + 1, args.tables = as<std::int32_t>(ints) + 2;
    args.row_tables = as<std::int32_t>(ints) + 8, args.head_rows = as<std::int32_t>(ints) + 3, args.head_inputs = as<token_id>(ints) + 4;
    args.sampling = as<gpu::sampling_row>(sampling);
    args.embedding = embedding.data(), args.hidden = hidden.data(), args.row_bytes = width * 2;
    return args;
  };
  const gpu::row_places places{as<std::int32_t>(ints) + 1, as<std::int32_t>(ints) + 8, stride};
  const auto chain = [&](const buffer& cache, std::size_t launch, bool overlaps) {
    gpu::prepare_rows(stream(), rows_of(launch));
    gpu::linear_args qkv;
    qkv.weight = weight.data(), qkv.out_rows = all_heads * head_dim, qkv.columns = qkv.x_stride = qkv.y_stride = width;
    qkv.x = hidden.data(), qkv.rows = 1, qkv.norm_weight = norm.data(), qkv.epsilon = 1e-5F, qkv.y = query.data();
    qkv.overlaps = qkv.holds_next = overlaps;
    gpu::linear_qkv(stream(), qkv, {heads, places, {table, table}, {layout, cache.data()}});
    gpu::decode_attention(stream(),
                          {query.data(), width, out.data(), width, 1, heads, 0.125F, 0, places, {layout, cache.data()}, 1, overlaps, 1});
  };
  const buffer apart = upload(kv), together = upload(kv);
  const cuda::graph step = cuda::graph::capture(*stream_, [&] { chain(together, 0, true); });
  for (const bool waits : {true, false}) {
    for (std::size_t launch = 0; launch < rows.size(); ++launch) {
      step.launch(*stream_, rows_of(launch));
      if (!waits) continue;
      const test::halves got = download<std::uint16_t>(out);
      chain(apart, launch, false);
      ASSERT_EQ(got, download<std::uint16_t>(out)) << launch;
    }
    const test::halves got = download<std::uint16_t>(out);
    for (std::size_t launch = 0; !waits && launch < rows.size(); ++launch) chain(apart, launch, false);
    EXPECT_EQ(got, download<std::uint16_t>(out)) << waits;
    EXPECT_EQ(download<std::uint16_t>(together), download<std::uint16_t>(apart)) << waits;
  }
}

TEST_F(gpu_step_rows_test, rows_take_their_slots_last_token_and_table) {
  const std::vector<gpu::step_row> rows = {{3, 17, -1}, {0, 40, 55}, {4, 0, 0}};
  std::vector<gpu::step_head> heads(2);
  heads[0].row = 1;
  heads[1].row = 0;
  heads[1].sampling.slot = 3;
  heads[1].sampling.position = 18;
  const buffer in_rows = upload(rows), in_heads = upload(heads);
  const std::vector<std::int32_t> poison(16, -77);
  const buffer tokens = upload(poison), positions = upload(poison), tables = upload(poison), row_tables = upload(poison),
               head_rows = upload(poison), inputs = upload(poison), sampling = upload(std::vector<gpu::sampling_row>(2)),
               row_tiles = upload(poison), last_position = upload(poison);
  gpu::prepare_rows_args args;
  args.slots = arrays();
  args.rows = as<gpu::step_row>(in_rows);
  args.row_count = 3;
  args.table_rows = 2;
  args.heads = as<gpu::step_head>(in_heads);
  args.head_count = 2;
  args.block_size = 16;
  args.tokens = as<token_id>(tokens);
  args.positions = as<std::int32_t>(positions);
  args.tables = as<std::int32_t>(tables);
  args.row_tables = as<std::int32_t>(row_tables);
  args.row_tiles = as<gpu::prefill_tile>(row_tiles);
  args.last_position = as<std::int32_t>(last_position);
  args.longest_row = 40;
  args.head_rows = as<std::int32_t>(head_rows);
  args.head_inputs = as<token_id>(inputs);
  args.sampling = as<gpu::sampling_row>(sampling);
  std::vector<std::int32_t> numbers(56 * 8);
  std::iota(numbers.begin(), numbers.end(), 0);
  const buffer table = upload(numbers), hidden = upload(std::vector<std::int32_t>(4 * 8, -77));
  args.embedding = table.data();
  args.hidden = hidden.data();
  args.row_bytes = 32;
  const buffer kept = upload(std::vector<gpu::sampled_token>(2)), results = upload(std::vector<gpu::item_result>(2));
  args.kept_count = 1;
  args.kept = as<gpu::sampled_token>(kept);
  args.results = as<gpu::item_result>(results);
  gpu::prepare_rows(stream(), args);
  const auto first = [&](const buffer& b, std::size_t count) {
    auto all = download<std::int32_t>(b);
    EXPECT_TRUE(std::all_of(all.begin() + static_cast<std::ptrdiff_t>(count), all.end(), [](std::int32_t x) { return x == -77; }));
    all.resize(count);
    return all;
  };
  EXPECT_EQ(first(tokens, 3), (std::vector<std::int32_t>{13, 55, 0}));
  EXPECT_EQ(first(positions, 3), (std::vector<std::int32_t>{17, 40, 0}));
  EXPECT_EQ(first(tables, 3), (std::vector<std::int32_t>{3, 0, 4}));
  EXPECT_EQ(first(row_tables, 6), (std::vector<std::int32_t>{9, 10, -77, 0, 1, 2})) << "up to the block of the row's position";
  EXPECT_EQ(first(row_tiles, 10), (std::vector<std::int32_t>{0, 1, 17, 18, 3, 1, 1, 40, 41, 0})) << "row, rows, positions, table";
  EXPECT_EQ(first(last_position, 1), (std::vector<std::int32_t>{40}));
  EXPECT_EQ(first(head_rows, 2), (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(first(inputs, 2), (std::vector<std::int32_t>{55, 13}));
  const auto drawn = download<gpu::sampling_row>(sampling);
  EXPECT_EQ(drawn[1].position, 18);
  EXPECT_TRUE(drawn[0].kept == args.kept && drawn[0].result == args.results);
  EXPECT_TRUE(drawn[1].kept == nullptr && drawn[1].result == nullptr) << "the second one is not kept";
  const auto begun = download<std::int32_t>(hidden);
  const std::int32_t inputs_of[] = {13, 55, 0};
  for (std::int32_t i = 0; i < 32; ++i)
    EXPECT_EQ(begun[static_cast<std::size_t>(i)], i < 24 ? inputs_of[i / 8] * 8 + i % 8 : -77) << "piece " << i % 8 << " of row " << i / 8;
}

TEST_F(gpu_step_rows_test, draws_count_up_to_the_first_wrong_guess_and_faults_stay) {
  // Heads: slot 0 draws three with guesses 21 and 30; slot 3 scores one and draws one, which is unusable; slot 1 is faulted already;
  // slot 2 has no heads.
  std::vector<gpu::sampled_token> sampled(6);
  for (std::size_t i = 0; i < 6; ++i) sampled[i] = {static_cast<token_id>(21 + i), 1, -1.0F, 0};
  sampled[4].usable = 0;
  const std::vector<gpu::step_item> items = {{0, 0, 0, 3}, {3, 3, 1, 1}, {1, 5, 0, 1}, {2, 0, 0, 0}};
  const buffer in_sampled = upload(sampled), in_items = upload(items), inputs = upload(std::vector<token_id>{10, 21, 30, 0, 0, 0});
  const buffer results = upload(std::vector<gpu::item_result>(4, {-1, -1})), kept = upload(std::vector<gpu::sampled_token>(6)),
               counted = upload(std::vector<gpu::counted_token>(6));
  gpu::keep_draws_args args;
  args.slots = arrays();
  args.items = as<gpu::step_item>(in_items);
  args.item_count = 4;
  args.head_count = 6;
  args.head_inputs = as<token_id>(inputs);
  args.sampled = as<gpu::sampled_token>(in_sampled);
  args.results = as<gpu::item_result>(results);
  args.kept = as<gpu::sampled_token>(kept);
  args.counted = as<gpu::counted_token>(counted);
  args.spare_slot = 4;
  gpu::keep_draws(stream(), args);
  const auto out = download<gpu::item_result>(results);
  EXPECT_EQ(out[0].drawn, 2) << "21 was guessed, 22 was not";
  EXPECT_EQ(out[0].faulted, 0);
  EXPECT_TRUE(out[1].drawn == 0 && out[1].faulted == 1);
  EXPECT_TRUE(out[2].drawn == 0 && out[2].faulted == 1);
  EXPECT_TRUE(out[3].drawn == 0 && out[3].faulted == 1) << "slot 2 was faulted before";
  EXPECT_EQ(download<token_id>(last_), (std::vector<token_id>{22, 11, 12, 13, 14}));
  EXPECT_EQ(download<std::int32_t>(faulted_), (std::vector<std::int32_t>{0, 1, 1, 1, 0}));
  const auto accepted = download<gpu::counted_token>(counted);
  EXPECT_TRUE(accepted[0].slot == 0 && accepted[0].token == 21 && accepted[1].token == 22 && accepted[2].slot == 4);
  EXPECT_EQ(download<gpu::sampled_token>(kept)[5].token, 26);
}

TEST_F(gpu_step_rows_test, blocks_are_copied_in_every_layer) {
  const std::int32_t layers = 3, blocks = 7;
  const std::size_t block_bytes = 48;
  std::vector<std::byte> cache(static_cast<std::size_t>(layers * blocks) * block_bytes);
  for (std::byte& b : cache) b = static_cast<std::byte>(between(0, 255));
  const buffer memory = upload(cache), pairs = upload(std::vector<gpu::copied_block>{{1, 4}, {1, 6}});
  gpu::copy_blocks_args args;
  args.data = memory.data();
  args.layer_bytes = blocks * block_bytes;
  args.block_bytes = block_bytes;
  args.layers = layers;
  args.pairs = as<gpu::copied_block>(pairs);
  args.pair_count = 2;
  gpu::copy_blocks(stream(), args);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const auto block = [&](std::size_t i) { return cache.begin() + static_cast<std::ptrdiff_t>((layer * blocks + i) * block_bytes); };
    std::copy_n(block(1), block_bytes, block(4));
    std::copy_n(block(1), block_bytes, block(6));
  }
  EXPECT_EQ(download<std::byte>(memory), cache);
}

TEST_F(gpu_step_rows_test, uniform_numbers_fill_their_range_and_no_more) {
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    const buffer y = poisoned_halves(100001);
    gpu::fill_uniform(stream(), {type, y.data(), 100000, 1.0F, 0.5F, static_cast<std::uint64_t>(seed_)});
    const std::vector<float> x = widen(type, download<std::uint16_t>(y));
    double sum = 0, square = 0;
    for (std::size_t i = 0; i < 100000; ++i) {
      ASSERT_TRUE(x[i] >= 0.5F && x[i] <= 1.5F) << i;
      sum += static_cast<double>(x[i]);
      square += (static_cast<double>(x[i]) - 1) * (static_cast<double>(x[i]) - 1);
    }
    EXPECT_NEAR(sum / 100000, 1, 0.005);
    EXPECT_NEAR(square / 100000, 1.0 / 12, 0.003);
    EXPECT_TRUE(std::isnan(x[100000]));
  }
}

} // namespace
} // namespace troupe
