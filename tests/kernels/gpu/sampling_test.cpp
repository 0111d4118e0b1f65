#include "kernels/sampling.hpp"

#include "kernels/sampling_gpu.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

class gpu_sampling_test : public test::gpu_op_test {
 protected:
  std::vector<gpu::sampled_token> run(const std::vector<float>& logits, std::int32_t vocab, const std::vector<gpu::sampling_row>& params) {
    const buffer device_logits = upload(logits), device_params = upload(params);
    const buffer sampled = upload(std::vector<std::uint8_t>(params.size() * sizeof(gpu::sampled_token), 0xff));
    gpu::sample(stream(), {reinterpret_cast<const float*>(device_logits.data()), vocab, static_cast<std::int32_t>(params.size()), vocab,
                           reinterpret_cast<const gpu::sampling_row*>(device_params.data()),
                           reinterpret_cast<gpu::sampled_token*>(sampled.data()), false});
    return download<gpu::sampled_token>(sampled);
  }

  static sampling_params on_the_cpu(const gpu::sampling_row& row) {
    sampling_params params;
    params.temperature = row.temperature;
    params.top_p = row.top_p;
    params.min_p = row.min_p;
    params.top_k = row.top_k;
    params.seed = row.seed;
    return params;
  }
};

TEST_F(gpu_sampling_test, draws_the_tokens_that_the_cpu_draws) {
  const gpu::sampling_row kinds[] = {
      {0, 1, 0, 0, 0, 0},      {1, 1, 0, 0, 0, 0},      {0.7F, 0.9F, 0, 0, 0, 0}, {1.5F, 1, 0, 40, 0, 0},
      {1, 0.95F, 0, 50, 0, 0}, {2, 1, 0.1F, 0, 0, 0},   {0.01F, 1, 0, 0, 0, 0},   {1, 0.3F, 0.02F, 1000, 0, 0},
      {1, 1e-6F, 0, 0, 0, 0},  {3, 0.999F, 0, 3, 0, 0}, {1, 1, 0, 1, 0, 0}};
  std::size_t drawn = 0, different = 0;
  for (const std::int32_t vocab : {1, 7, 1000, 32003, 128256}) {
    const int rows = 33;
    std::vector<float> logits = normal(static_cast<std::size_t>(rows * vocab), 3.0F);
    for (std::size_t i = 0; i < logits.size(); i += 2) logits[i] = std::round(logits[i] * 4) / 4; // many ties, both zeros
    std::vector<gpu::sampling_row> params;
    for (int r = 0; r < rows; ++r) {
      params.push_back(kinds[static_cast<std::size_t>(r) % std::size(kinds)]);
      params.back().seed = random_();
      params.back().position = between(0, 1 << 20);
    }
    const std::vector<gpu::sampled_token> got = run(logits, vocab, params);
    cpu::sampler sampler(vocab);
    for (int r = 0; r < rows; ++r) {
      const gpu::sampling_row& own = params[static_cast<std::size_t>(r)];
      const gpu::sampled_token& token = got[static_cast<std::size_t>(r)];
      const float* row = logits.data() + static_cast<std::ptrdiff_t>(r) * vocab;
      const sampling_params mirrored = on_the_cpu(own);
      const auto right = sampler.sample({row, &mirrored, {}, own.position, 0});
      ASSERT_TRUE(right.has_value());
      ASSERT_EQ(token.usable, 1);
      ASSERT_GE(token.token, 0);
      ASSERT_LT(token.token, vocab);
      ASSERT_NEAR(token.logprob, cpu::log_softmax(row, vocab).log_probability(row[token.token]), 1e-4)
          << "vocab " << vocab << ", row " << r;
      ++drawn;
      if (token.token == *right) continue;
      ++different;
      ASSERT_GT(own.temperature, 0.0F) << "greedy has no borders";
    }
  }
  EXPECT_LE(different, 1U) << "of " << drawn << ": e^x rounds differently on the two, which matters within 1e-6 of a border";
}

TEST_F(gpu_sampling_test, ties_go_to_the_lowest_ids) {
  const std::int32_t vocab = 5000;
  const std::vector<float> logits(static_cast<std::size_t>(vocab) * 3, 1.25F);
  const auto got = run(logits, vocab, {{0, 1, 0, 0, 1, 1}, {1, 1, 0, 1, 1, 1}, {1, 1e-9F, 0, 0, 1, 1}});
  for (const auto& token : got) EXPECT_EQ(token.token, 0);
}

TEST_F(gpu_sampling_test, a_row_with_nan_or_infinity_fails_alone) {
  const std::int32_t vocab = 999;
  std::vector<float> logits = normal(static_cast<std::size_t>(vocab) * 5);
  logits[500] = std::numeric_limits<float>::quiet_NaN();
  logits[999 + 998] = infinity;
  std::fill_n(logits.begin() + 2 * vocab, vocab, -infinity);
  std::fill_n(logits.begin() + 3 * vocab, vocab, -infinity);
  logits[3 * 999 + 77] = -5.0F; // the only one that can be drawn
  const auto got = run(logits, vocab, std::vector<gpu::sampling_row>(5));
  EXPECT_EQ(got[0].usable, 0);
  EXPECT_EQ(got[1].usable, 0);
  EXPECT_EQ(got[2].usable, 0);
  EXPECT_EQ(got[3].usable, 1);
  EXPECT_EQ(got[3].token, 77);
  EXPECT_EQ(got[3].logprob, 0.0F);
  EXPECT_EQ(got[4].usable, 1);
}

} // namespace
} // namespace troupe
