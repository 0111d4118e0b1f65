// What a GPU is given of a model whose heads do not come out even: the bytes that go up are made on the host, so most of it needs no GPU.
#include <cstring>

#include "core/half.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_rank.hpp"
#include "models/gpu_weight_layout.hpp"
#include "tests/models/gpu/gpu_model_testing.hpp"
#include "tests/models/padded_testing.hpp"

namespace troupe {
namespace {

rank_context place(int tp_rank, int tp_size) { return {tp_rank, tp_size, 0, 1, nullptr, nullptr}; }

// SmolLM2-135M's heads: three KV heads of three queries each, two for each of two GPUs.
model_config odd_config() {
  model_config config = test::quick_config(64);
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.query_key_value_bias = config.output_bias = config.query_key_norm = true;
  return config;
}

struct loaded {
  std::vector<std::byte> bytes;
  std::string layout;
};

// What the loader copies to the GPU, with 0xff where it copies nothing.
loaded load_on_host(const model_weights& mine, const gpu_ends& ends, dtype type) {
  const weight_layout placed(mine.config, ends, &mine);
  loaded out{std::vector<std::byte>(placed.bytes(), std::byte{0xff}), gpu_weight_layout(mine.config, ends, type)};
  std::vector<float> row;
  for (const upload_job& job : upload_jobs(placed.pieces())) convert(job, type, out.bytes.data() + job.offset(), row);
  return out;
}

struct upload_case {
  const char* name;
  dtype stored, type;
  bool interleaved = false;
  std::int32_t ranks = 2, kv_heads = 4; // for which all ranks together have places
  std::int32_t width = 320, places = 320;
};

class gpu_padded_upload : public ::testing::TestWithParam<upload_case> {};

TEST_P(gpu_padded_upload, is_that_of_a_model_with_its_zeros_written_down) {
  const upload_case& p = GetParam();
  model_config config = odd_config();
  config.intermediate_size = p.width;
  config.rope.interleaved = p.interleaved;
  const model_weights whole = make_dummy_weights(config, p.stored, 5);
  const model_weights written = test::with_zeros(whole, {p.kv_heads, p.places});
  for (int rank = 0; rank < p.ranks; ++rank) {
    const model_weights mine = gpu_share(whole, place(rank, p.ranks)), theirs = gpu_share(written, place(rank, p.ranks));
    ASSERT_EQ(mine.config.num_heads, theirs.config.num_heads);
    ASSERT_EQ(mine.config.num_kv_heads, theirs.config.num_kv_heads);
    ASSERT_EQ(mine.config.intermediate_size, theirs.config.intermediate_size);
    const gpu_ends ends = ends_of(config, place(rank, p.ranks));
    const loaded got = load_on_host(mine, ends, p.type), right = load_on_host(theirs, ends, p.type);
    EXPECT_EQ(got.bytes.size(), gpu_weight_bytes(mine.config, ends));
    EXPECT_EQ(got.bytes == right.bytes, true) << "rank " << rank;
    const bool padded = rank == p.ranks - 1;
    EXPECT_EQ(mine.config.padding_kv_heads > 0, padded);
    EXPECT_EQ(got.layout == right.layout, !padded) << "what a keeper has of the one is not what it has of the other";
  }
}

INSTANTIATE_TEST_SUITE_P(types, gpu_padded_upload,
                         ::testing::Values(upload_case{"widened", dtype::f32, dtype::bf16}, upload_case{"to_f16", dtype::bf16, dtype::f16},
                                           upload_case{"as_stored", dtype::bf16, dtype::bf16},
                                           upload_case{"interleaved", dtype::f16, dtype::f16, true},
                                           upload_case{"dequantised", dtype::q4_1, dtype::bf16, true},
                                           upload_case{"a_width_too", dtype::f16, dtype::f16, false, 2, 4, 328, 336},
                                           upload_case{"whole_blocks", dtype::q8_0, dtype::f16, true, 2, 4, 288, 320}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(gpu_padded_share, a_width_is_a_multiple_of_eight_on_every_gpu) {
  model_config config = odd_config();
  config.intermediate_size = 328; // not 164 for each of two
  const auto widths = [&](int ranks) {
    std::vector<std::pair<std::int32_t, std::int32_t>> out;
    for (int rank = 0; rank < ranks; ++rank) {
      const model_config mine = gpu_share(config, place(rank, ranks));
      out.emplace_back(mine.intermediate_size, mine.padding_width);
      EXPECT_EQ(gpu_share(make_dummy_weights(config, dtype::f32, 1), place(rank, ranks)).config.padding_width, mine.padding_width);
    }
    return out;
  };
  using sizes = std::vector<std::pair<std::int32_t, std::int32_t>>;
  EXPECT_EQ(widths(2), (sizes{{168, 0}, {168, 8}}));
  EXPECT_EQ(widths(3), (sizes{{112, 0}, {112, 0}, {112, 8}}));
}

class gpu_padded_dummies : public test::gpu_model_test {};

TEST_F(gpu_padded_dummies, made_on_the_device_are_zeros_in_the_padding_and_nowhere_else) {
  model_config config = odd_config();
  config.num_layers = 2;
  config.intermediate_size = 344; // 120, 120 and 104 of three ranks
  const model_config mine = gpu_share(config, place(2, 3)), second = gpu_share(config, place(1, 2));
  cuda::use_device(0);
  const cuda::stream on;
  for (const model_config& share : {mine, second}) {
    const gpu_ends ends = ends_of(config, place(1, 2));
    const weight_layout placed(share, ends, nullptr);
    const auto source = cuda::own_memory();
    std::byte* const memory = source->take(placed.bytes());
    make_dummy_gpu_weights(share, ends, dtype::bf16, memory, on, 1);
    cuda::pinned_ring down(1, placed.bytes());
    std::byte* const host = down.next();
    cuda::copy_out(on, host, memory, placed.bytes());
    on.synchronize();
    source->give_back(memory);
    for (const weight_piece& p : placed.pieces()) {
      std::int64_t zeros = 0;
      for (std::int64_t i = 0; i < p.rows * p.columns; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, host + p.offset + static_cast<std::size_t>(i) * gpu_element_bytes, sizeof bits);
        const bool padding = i / p.columns >= p.rows - p.padding_rows || i % p.columns >= p.columns - p.padding_columns;
        if (padding) {
          ASSERT_EQ(bits, 0) << p.offset << ", " << i;
        } else {
          zeros += bfloat16_to_float(bits) == 0 ? 1 : 0;
        }
      }
      EXPECT_LE(zeros, 1 + p.rows * p.columns / 1000);
    }
  }
}

} // namespace
} // namespace troupe
