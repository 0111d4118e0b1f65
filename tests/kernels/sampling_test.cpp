#include "kernels/sampling.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/philox.hpp"
#include "tests/kernels/op_testing.hpp"

namespace troupe {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

// The rules of core/sampling.hpp word by word, in f64: the probability of every id. `near` tells that a cut lies so close to an id that
// rounding may decide on which side.
std::vector<double> probabilities(const std::vector<float>& logits, const sampling_params& p, const std::vector<seen_token>& seen,
                                  std::int64_t outputs, bool& near) {
  std::vector<double> x(logits.begin(), logits.end());
  for (const seen_token& s : seen) {
    double& v = x[static_cast<std::size_t>(s.token)];
    v = v > 0 ? v / static_cast<double>(p.repetition_penalty) : v * static_cast<double>(p.repetition_penalty);
    if (s.output_count > 0) v -= static_cast<double>(p.presence_penalty) + static_cast<double>(p.frequency_penalty) * s.output_count;
  }
  for (const token_bias& b : p.logit_bias) x[static_cast<std::size_t>(b.token)] += static_cast<double>(b.bias);
  if (outputs < p.min_tokens) {
    for (const token_id t : p.suppressed) x[static_cast<std::size_t>(t)] = -std::numeric_limits<double>::infinity();
  }
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] > x[b]; });
  if (p.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(p.top_k)));
  const double top = x[order[0]];
  double total = 0;
  for (const std::size_t i : order) total += std::exp((x[i] - top) / static_cast<double>(p.temperature));
  std::vector<double> result(x.size());
  double reached = 0;
  for (const std::size_t i : order) {
    const double weight = std::exp((x[i] - top) / static_cast<double>(p.temperature));
    const double share = weight / total;
    near = near || (p.top_p < 1.0F && std::abs(reached - static_cast<double>(p.top_p)) < 1e-5) ||
           (weight < 1.0 && std::abs(weight / static_cast<double>(p.min_p) - 1.0) < 1e-5);
    if (i != order[0] && p.top_p < 1.0F && reached >= static_cast<double>(p.top_p)) break;
    reached += share;
    if (weight >= static_cast<double>(p.min_p)) result[i] = share;
  }
  const double kept = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& r : result) r /= kept;
  return result;
}

class sampling_test : public test::op_test {};

TEST_F(sampling_test, every_combination_of_rules_draws_the_id_that_the_cumulative_probability_names) {
  for (int round = 0; round < 200; ++round) {
    const std::size_t vocab = static_cast<std::size_t>(between(2, 3000));
    const std::vector<float> logits = normal(vocab, static_cast<float>(between(1, 8)));
    const auto token = [&] { return static_cast<token_id>(between(0, static_cast<std::int64_t>(vocab) - 1)); };
    sampling_params p;
    p.temperature = static_cast<float>(between(1, 30)) / 10.0F;
    if (between(0, 1) == 1) p.top_k = static_cast<std::int32_t>(between(1, 3500));
    if (between(0, 1) == 1) p.top_p = static_cast<float>(between(1, 999)) / 1000.0F;
    if (between(0, 2) == 0) p.min_p = static_cast<float>(between(0, 100)) / 100.0F;
    if (between(0, 2) == 0) p.repetition_penalty = 1.3F;
    if (between(0, 2) == 0) p.presence_penalty = 0.7F;
    if (between(0, 2) == 0) p.frequency_penalty = -0.4F;
    std::map<token_id, std::int32_t> counts;
    for (int i = 0; i < 20; ++i) counts[token()] = static_cast<std::int32_t>(between(0, 3));
    std::vector<seen_token> seen;
    for (const auto& [id, count] : counts) seen.push_back({id, count});
    for (int i = 0; i < 3; ++i) p.logit_bias.push_back({token(), static_cast<float>(between(-50, 50)) / 10.0F});
    p.min_tokens = static_cast<std::int32_t>(between(0, 2));
    p.suppressed = {0};
    p.seed = static_cast<std::uint64_t>(between(0, 1 << 30)) << 20;
    bool near = false;
    const std::vector<double> share = probabilities(logits, p, seen, 1, near);
    if (near) continue;
    cpu::sampler sampler(static_cast<std::int64_t>(vocab));
    for (std::int64_t position = 0; position < 20; ++position) {
      const std::optional<token_id> drawn = sampler.sample({logits.data(), &p, seen, position, 1});
      ASSERT_TRUE(drawn.has_value());
      const double u = uniform_at(p.seed, static_cast<std::uint64_t>(position));
      const double before = std::accumulate(share.begin(), share.begin() + *drawn, 0.0);
      const double mine = share[static_cast<std::size_t>(*drawn)];
      ASSERT_GT(mine, 0.0) << "drew an id that the rules exclude";
      ASSERT_GE(u, before - 1e-5);
      ASSERT_LE(u, before + mine + 1e-5);
    }
  }
}

TEST_F(sampling_test, frequencies_follow_the_probabilities) {
  const std::vector<float> logits = {1.0F, 0.0F, -1.0F, 2.0F, 0.5F, -inf, 1.5F, -3.0F};
  sampling_params p;
  p.temperature = 1.3F;
  p.seed = 20240229;
  cpu::sampler sampler(8);
  bool near = false;
  const std::vector<double> share = probabilities(logits, p, {}, 0, near);
  constexpr int draws = 100000;
  std::vector<int> count(8);
  for (int i = 0; i < draws; ++i) ++count[static_cast<std::size_t>(*sampler.sample({logits.data(), &p, {}, i, i}))];
  double chi_square = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    if (share[i] == 0)
      EXPECT_EQ(count[i], 0);
    else
      chi_square += std::pow(count[i] - draws * share[i], 2) / (draws * share[i]);
  }
  EXPECT_LT(chi_square, 22.5); // 6 degrees of freedom: one chance in a thousand, and the seed is fixed
}

TEST_F(sampling_test, a_draw_depends_on_seed_and_position_alone) {
  const std::vector<float> logits = normal(500), other = normal(500);
  sampling_params p;
  p.seed = 99;
  cpu::sampler fresh(500), used(500);
  for (int i = 0; i < 50; ++i) {
    sampling_params noise;
    noise.top_p = 0.5F;
    noise.seed = static_cast<std::uint64_t>(i);
    used.sample({other.data(), &noise, {}, i, 0});
    EXPECT_EQ(fresh.sample({logits.data(), &p, {}, i, 0}), used.sample({logits.data(), &p, {}, i, 123}));
  }
}

TEST_F(sampling_test, greedy_takes_the_lowest_id_of_equal_logits_also_after_biases) {
  std::vector<float> logits = normal(1000);
  logits[700] = logits[300] = logits[999] = 50.0F;
  sampling_params p;
  p.temperature = 0;
  cpu::sampler sampler(1000);
  EXPECT_EQ(sampler.sample({logits.data(), &p, {}, 0, 0}), 300);
  p.logit_bias = {{300, -1.0F}};
  EXPECT_EQ(sampler.sample({logits.data(), &p, {}, 0, 0}), 700);
  p.logit_bias = {{5, 100.0F}};
  EXPECT_EQ(sampler.sample({logits.data(), &p, {}, 0, 0}), 5);
}

TEST_F(sampling_test, a_tiny_temperature_is_greedy_without_overflow) {
  std::vector<float> logits = normal(333, 1e4F);
  const token_id best = static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  cpu::sampler sampler(333);
  for (const float temperature : {0.0F, 1e-45F, 1e-6F, 1e-5F, 1e-4F}) {
    for (const float top_p : {1.0F, 0.5F, 1e-4F}) {
      sampling_params p;
      p.temperature = temperature;
      p.top_p = top_p;
      for (std::int64_t position = 0; position < 10; ++position)
        EXPECT_EQ(sampler.sample({logits.data(), &p, {}, position, 0}), best) << temperature;
    }
  }
}

TEST_F(sampling_test, a_top_p_of_nothing_or_less_takes_the_best_id) {
  const std::vector<float> logits = normal(333);
  const token_id best = static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  cpu::sampler sampler(333);
  for (const float top_p : {0.0F, -1.0F, -1e30F, -std::numeric_limits<float>::infinity()}) {
    sampling_params p;
    p.top_p = top_p;
    EXPECT_EQ(sampler.sample({logits.data(), &p, {}, 7, 0}), best) << top_p;
  }
}

TEST_F(sampling_test, top_k_above_the_vocabulary_is_the_vocabulary) {
  const std::vector<float> logits = normal(50);
  sampling_params off, huge;
  huge.top_k = 9'999'999;
  off.seed = huge.seed = 5;
  cpu::sampler sampler(50);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(sampler.sample({logits.data(), &off, {}, i, 0}), sampler.sample({logits.data(), &huge, {}, i, 0}));
}

TEST_F(sampling_test, suppressed_ids_wait_for_min_tokens_even_with_a_large_bias) {
  const std::vector<float> logits = normal(40);
  sampling_params p;
  p.temperature = 0;
  p.logit_bias = {{7, 100.0F}};
  p.min_tokens = 4;
  p.suppressed = {7, 9};
  cpu::sampler sampler(40);
  for (int outputs = 0; outputs < 4; ++outputs) EXPECT_NE(sampler.sample({logits.data(), &p, {}, outputs, outputs}), 7);
  EXPECT_EQ(sampler.sample({logits.data(), &p, {}, 4, 4}), 7);
}

TEST_F(sampling_test, nan_infinite_and_fully_masked_logits_give_no_token) {
  sampling_params greedy, drawn, biased;
  greedy.temperature = 0;
  biased.logit_bias = {{0, 1.0F}};
  cpu::sampler sampler(100);
  for (const sampling_params* p : {&greedy, &drawn, &biased}) {
    std::vector<float> logits = normal(100);
    logits[93] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(sampler.sample({logits.data(), p, {}, 0, 0}), std::nullopt);
    logits[93] = inf;
    EXPECT_EQ(sampler.sample({logits.data(), p, {}, 0, 0}), std::nullopt);
    logits.assign(100, -inf);
    EXPECT_EQ(sampler.sample({logits.data(), p, {}, 0, 0}), std::nullopt);
  }
  sampling_params nothing_left;
  nothing_left.min_tokens = 1;
  for (token_id i = 0; i < 100; ++i) nothing_left.suppressed.push_back(i);
  const std::vector<float> logits = normal(100);
  EXPECT_EQ(sampler.sample({logits.data(), &nothing_left, {}, 0, 0}), std::nullopt);
}

TEST_F(sampling_test, finite_extremes_stay_finite) {
  std::vector<float> logits = normal(64);
  logits[10] = 3e38F;
  logits[11] = -3e38F;
  sampling_params p;
  p.repetition_penalty = 1e-3F;
  p.logit_bias = {{10, 3e38F}, {11, -3e38F}};
  const std::vector<seen_token> seen = {{10, 0}, {11, 5}};
  cpu::sampler sampler(64);
  EXPECT_EQ(sampler.sample({logits.data(), &p, seen, 0, 0}), 10);
}

TEST_F(sampling_test, scores_are_raw_log_probabilities_best_first_with_lower_ids_first_among_equals) {
  std::vector<float> logits = normal(777, 3.0F);
  logits[5] = logits[600] = 40.0F;
  const softmax_scale scale = cpu::log_softmax(logits.data(), 777);
  const token_scores scores = cpu::score_token(logits.data(), 777, scale, 123, 20);
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - 40.0);
  EXPECT_EQ(scores.chosen.token, 123);
  EXPECT_NEAR(scores.chosen.logprob, static_cast<double>(logits[123]) - 40.0 - std::log(sum), 1e-5);
  std::vector<token_id> order(777);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](token_id a, token_id b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
  ASSERT_EQ(scores.top.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(scores.top[i].token, order[i]);
  EXPECT_EQ(cpu::score_token(logits.data(), 3, scale, 0, 20).top.size(), 3U);
  EXPECT_TRUE(cpu::score_token(logits.data(), 3, scale, 0, 0).top.empty());
}

} // namespace
} // namespace troupe
