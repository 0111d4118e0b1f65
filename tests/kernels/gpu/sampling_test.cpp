#include "kernels/sampling.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/sampling_gpu.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
using work = gpu::sampling_row::work;

class gpu_sampling_test : public test::gpu_op_test {
 protected:
  struct problem {
    std::int32_t vocab = 0, padding = 0;     // ids of the model behind the vocabulary
    std::vector<float> logits;               // [rows][vocab]; the padding becomes NaN
    std::vector<sampling_params> params;     // by slot
    std::vector<std::int32_t> prompt_tokens; // by slot; empty: 0
    std::vector<gpu::sampling_row> rows;     // empty: row r draws for slot r at position r
    std::vector<std::uint32_t> history;      // [slots][vocab] or empty
    std::vector<token_id> inputs;            // by row
    std::vector<std::int32_t> faulted;       // by slot; empty: rows have no results
    std::vector<gpu::logit_top> tops;        // [rows][most_logit_tops] or empty
    std::int32_t tops_count = 0;
  };
  struct outcome {
    std::vector<gpu::sampled_token> sampled;
    std::vector<scored_token> best;
    std::vector<token_id> last_tokens;
    std::vector<std::uint32_t> history;
    std::vector<gpu::sampled_token> kept;
    std::vector<gpu::item_result> results;
    std::vector<std::int32_t> faulted;

    std::vector<scored_token> best_of(std::size_t row) const {
      const auto begin = best.begin() + static_cast<std::ptrdiff_t>(row) * gpu::most_best_tokens;
      return {begin, begin + sampled[row].best};
    }
  };

  outcome run(problem p) {
    const std::size_t slots = p.params.size(), vocab = static_cast<std::size_t>(p.vocab),
                      stride = vocab + static_cast<std::size_t>(p.padding);
    if (p.rows.empty()) {
      for (std::size_t s = 0; s < slots; ++s)
        p.rows.push_back({work::draw, static_cast<std::int32_t>(s), static_cast<std::int64_t>(s), 0, 0, 0});
    }
    std::vector<float> padded(p.rows.size() * stride, nan);
    for (std::size_t r = 0; r < p.rows.size(); ++r)
      std::copy_n(p.logits.begin() + static_cast<std::ptrdiff_t>(r * vocab), vocab,
                  padded.begin() + static_cast<std::ptrdiff_t>(r * stride));
    std::vector<gpu::sampling_slot> device_slots;
    std::vector<token_bias> biases(slots * gpu::most_biased_tokens);
    std::vector<token_id> suppressed(slots * gpu::most_biased_tokens);
    for (std::size_t s = 0; s < slots; ++s) {
      device_slots.push_back(gpu::slot_of(p.params[s], p.prompt_tokens.empty() ? 0 : p.prompt_tokens[s]));
      const auto at = static_cast<std::ptrdiff_t>(s * gpu::most_biased_tokens);
      std::copy(p.params[s].logit_bias.begin(), p.params[s].logit_bias.end(), biases.begin() + at);
      std::copy(p.params[s].suppressed.begin(), p.params[s].suppressed.end(), suppressed.begin() + at);
    }
    if (p.history.empty()) p.history.resize(1);
    if (p.inputs.empty()) p.inputs.resize(p.rows.size());
    const buffer kept = upload(std::vector<gpu::sampled_token>(p.rows.size(), {-7, -7, 0, 0})),
                 results = upload(std::vector<gpu::item_result>(p.rows.size(), {-7, -7}));
    for (std::size_t r = 0; r < p.rows.size() && !p.faulted.empty(); ++r) {
      if (p.rows[r].kind != work::draw) continue;
      p.rows[r].kept = reinterpret_cast<gpu::sampled_token*>(kept.data()) + r;
      p.rows[r].result = reinterpret_cast<gpu::item_result*>(results.data()) + r;
    }
    p.faulted.resize(slots);
    const buffer faulted = upload(p.faulted);
    const buffer logits = upload(padded), rows = upload(p.rows), device = upload(device_slots), history = upload(p.history),
                 device_biases = upload(biases), device_suppressed = upload(suppressed), inputs = upload(p.inputs);
    const buffer sampled = upload(std::vector<std::uint8_t>(p.rows.size() * sizeof(gpu::sampled_token), 0xff));
    const buffer best = upload(std::vector<std::uint8_t>(p.rows.size() * gpu::most_best_tokens * sizeof(scored_token), 0xff));
    const buffer last = upload(std::vector<token_id>(slots, -7));
    gpu::sampling_args args;
    args.logits = reinterpret_cast<const float*>(logits.data());
    args.stride = static_cast<std::int64_t>(stride);
    args.rows = static_cast<std::int32_t>(p.rows.size());
    args.vocab = p.vocab;
    args.row = reinterpret_cast<const gpu::sampling_row*>(rows.data());
    args.slots = reinterpret_cast<const gpu::sampling_slot*>(device.data());
    args.history = reinterpret_cast<std::uint32_t*>(history.data());
    args.biases = reinterpret_cast<const token_bias*>(device_biases.data());
    args.bias_stride = args.suppressed_stride = gpu::most_biased_tokens;
    args.suppressed = reinterpret_cast<const token_id*>(device_suppressed.data());
    args.inputs = reinterpret_cast<const token_id*>(inputs.data());
    args.sampled = reinterpret_cast<gpu::sampled_token*>(sampled.data());
    args.best = reinterpret_cast<scored_token*>(best.data());
    args.last_tokens = reinterpret_cast<token_id*>(last.data());
    args.faulted = reinterpret_cast<std::int32_t*>(faulted.data());
    if (p.tops.empty()) p.tops.resize(1);
    const buffer tops = upload(p.tops);
    args.tops = reinterpret_cast<const gpu::logit_top*>(tops.data());
    args.tops_count = p.tops_count;
    gpu::sample(stream(), args);
    return {download<gpu::sampled_token>(sampled), download<scored_token>(best),       download<token_id>(last),
            download<std::uint32_t>(history),      download<gpu::sampled_token>(kept), download<gpu::item_result>(results),
            download<std::int32_t>(faulted)};
  }

  // Logits as models have them: a body, and a few far above it; half of all a quarter apart, so that many are equal.
  std::vector<float> peaked(std::size_t count) {
    std::vector<float> logits = normal(count, 2.0F);
    for (std::size_t i = 0; i < count; i += 2) logits[i] = std::round(logits[i] * 4) / 4;
    for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(between(1, 4000))) logits[i] += 12;
    return logits;
  }

  void expect_scores(const token_scores& right, const gpu::sampled_token& token, const std::vector<scored_token>& best) {
    EXPECT_NEAR(token.logprob, right.chosen.logprob, 1e-4);
    ASSERT_EQ(best.size(), right.top.size());
    for (std::size_t i = 0; i < best.size(); ++i) {
      EXPECT_EQ(best[i].token, right.top[i].token) << i;
      if (right.top[i].logprob == -infinity) {
        EXPECT_EQ(best[i].logprob, -infinity) << i;
      } else {
        EXPECT_NEAR(best[i].logprob, right.top[i].logprob, 1e-4) << i;
      }
    }
  }
};

struct kind {
  float temperature, top_p, min_p;
  std::int32_t top_k;
};

TEST_F(gpu_sampling_test, draws_the_tokens_that_the_cpu_draws) {
  const kind kinds[] = {{0, 1, 0, 0},         {1, 1, 0, 0},        {0.7F, 0.9F, 0, 0},     {1.5F, 1, 0, 40},  {1, 0.95F, 0, 50},
                        {2, 1, 0.1F, 0},      {0.01F, 1, 0, 0},    {1, 0.3F, 0.02F, 1000}, {1, 1e-6F, 0, 0},  {3, 0.999F, 0, 3},
                        {1, 1, 0, 1},         {0.8F, 0.95F, 0, 0}, {4, 0.9F, 0, 400},      {1, 1, 0.05F, 20}, {20, 0.99F, 0, 0},
                        {1, 0.9F, 0.2F, 600}, {1, 1, 1, 0},        {1, 0.5F, 0, 1 << 30}};
  std::size_t drawn = 0, different = 0;
  for (const std::int32_t vocab : {1, 7, 1000, 32003, 128256}) {
    for (const bool flat : {false, true}) {
      problem p;
      p.vocab = vocab;
      p.padding = 5;
      const std::size_t rows = 2 * std::size(kinds);
      p.logits = flat ? normal(rows * static_cast<std::size_t>(vocab), 0.5F) : peaked(rows * static_cast<std::size_t>(vocab));
      for (std::size_t r = 0; r < rows; ++r) {
        const kind& k = kinds[r % std::size(kinds)];
        sampling_params params;
        params.temperature = k.temperature, params.top_p = k.top_p, params.min_p = k.min_p, params.top_k = k.top_k, params.seed = random_();
        p.params.push_back(params);
        p.rows.push_back({work::draw, static_cast<std::int32_t>(r), between(0, 1 << 20), 0, 0, 0});
      }
      std::shuffle(p.rows.begin(), p.rows.end(), random_);
      const outcome got = run(p);
      cpu::sampler sampler(vocab);
      for (std::size_t r = 0; r < rows; ++r) {
        const sampling_params& params = p.params[static_cast<std::size_t>(p.rows[r].slot)];
        const float* row = p.logits.data() + r * static_cast<std::size_t>(vocab);
        const auto right = sampler.sample({row, &params, {}, p.rows[r].position, 0});
        ASSERT_TRUE(right.has_value());
        ASSERT_EQ(got.sampled[r].usable, 1);
        ASSERT_EQ(got.last_tokens[static_cast<std::size_t>(p.rows[r].slot)], got.sampled[r].token);
        ++drawn;
        if (got.sampled[r].token == *right) continue;
        ++different;
        ASSERT_GT(params.temperature, 0.0F) << "greedy has no borders";
      }
    }
  }
  EXPECT_LE(different, 2U) << "of " << drawn << ": e^x rounds differently on the two, which matters within 1e-6 of a border";
}

TEST_F(gpu_sampling_test, penalties_biases_and_suppression_equal_the_cpu_bit_for_bit) {
  const std::int32_t vocab = 5003;
  problem p;
  p.vocab = vocab;
  const std::size_t rows = 48, ids = static_cast<std::size_t>(vocab);
  p.logits = peaked(rows * ids);
  p.history.resize(rows * ids);
  std::vector<std::vector<seen_token>> seen(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    sampling_params params;
    params.temperature = r % 3 == 0 ? 0.0F : 1.0F;
    params.top_k = r % 3 == 1 ? 1 : 0; // greedy by another way
    params.top_p = r % 3 == 2 ? 1e-9F : 1.0F;
    if (r % 4 != 0) params.repetition_penalty = 1.7F, params.presence_penalty = -0.9F, params.frequency_penalty = 0.4F;
    if (r % 8 == 1) params.repetition_penalty = 1e-38F; // clamped, not infinite
    params.min_tokens = static_cast<std::int32_t>(between(0, 3));
    const float* row = p.logits.data() + r * ids;
    const token_id top = static_cast<token_id>(std::max_element(row, row + ids) - row);
    params.suppressed = {top, -1, vocab, 17};
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(between(0, 300)); ++i)
      params.logit_bias.push_back({i * 16, static_cast<float>(between(-100, 100)) / 8});
    params.logit_bias.push_back({vocab + 3, 100.0F});
    params.logit_bias.push_back({-5, 100.0F});
    p.params.push_back(params);
    p.prompt_tokens.push_back(10);
    p.rows.push_back({work::draw, static_cast<std::int32_t>(r), 10 + between(-1, 4), 0, 0, 0});
    for (token_id id = 0; id < vocab; id += static_cast<token_id>(between(1, 9))) {
      seen[r].push_back({id, static_cast<std::int32_t>(between(0, 3))});
      p.history[r * ids + static_cast<std::size_t>(id)] = 1 + static_cast<std::uint32_t>(seen[r].back().output_count);
    }
    if (std::none_of(seen[r].begin(), seen[r].end(), [top](const seen_token& s) { return s.token == top; })) {
      seen[r].push_back({top, 2});
      p.history[r * ids + static_cast<std::size_t>(top)] = 3;
    }
  }
  const outcome got = run(p);
  cpu::sampler sampler(vocab);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::int64_t position = p.rows[r].position;
    const auto right = sampler.sample({p.logits.data() + r * ids, &p.params[r], seen[r], position, position - 10});
    ASSERT_TRUE(right.has_value());
    ASSERT_EQ(got.sampled[r].usable, 1);
    EXPECT_EQ(got.sampled[r].token, *right) << "row " << r;
    std::vector<std::uint32_t> expected(p.history.begin() + static_cast<std::ptrdiff_t>(r * ids),
                                        p.history.begin() + static_cast<std::ptrdiff_t>((r + 1) * ids));
    std::uint32_t& own = expected[static_cast<std::size_t>(*right)];
    if (has_penalties(p.params[r])) own = std::max(own, 1U) + (position >= 10 ? 1 : 0);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), got.history.begin() + static_cast<std::ptrdiff_t>(r * ids))) << "row " << r;
  }
}

TEST_F(gpu_sampling_test, rows_behind_drafts_count_them_as_outputs) {
  const std::int32_t vocab = 999;
  problem p;
  p.vocab = vocab;
  p.logits = peaked(4 * 999);
  p.logits[8] = -20;
  sampling_params params;
  params.temperature = 0;
  params.repetition_penalty = 1.3F, params.presence_penalty = 0.5F, params.frequency_penalty = 1.5F;
  p.params = {params};
  p.prompt_tokens = {3};
  p.history.resize(999);
  for (int r = 0; r < 4; ++r) { // the same logits: each draft is the best token so far
    std::copy_n(p.logits.begin(), 999, p.logits.begin() + r * 999);
    p.rows.push_back({work::draw_uncounted, 0, 20 + r, r, 0, 0});
  }
  const token_id best = static_cast<token_id>(std::max_element(p.logits.begin(), p.logits.begin() + 999) - p.logits.begin());
  p.inputs = {5, best, best, 8};
  p.history[static_cast<std::size_t>(best)] = 1, p.history[8] = 4;
  const outcome got = run(p);
  cpu::sampler sampler(vocab);
  std::vector<seen_token> seen = {{best, 0}, {8, 3}};
  for (std::size_t r = 0; r < 4; ++r) {
    if (r == 1 || r == 2) ++seen[0].output_count;
    if (r == 3) ++seen[1].output_count;
    EXPECT_EQ(got.sampled[r].token, *sampler.sample({p.logits.data() + r * 999, &params, seen, 20, 17})) << "row " << r;
  }
  EXPECT_EQ(got.history, p.history) << "uncounted";
  EXPECT_EQ(got.last_tokens[0], -7);
  EXPECT_EQ(got.results[0].drawn, -7) << "no row has a result";
}

TEST_F(gpu_sampling_test, logprobs_and_best_tokens_are_those_of_the_raw_logits) {
  for (const std::int32_t vocab : {1, 3, 19, 800, 128256}) {
    problem p;
    p.vocab = vocab;
    p.padding = 3;
    const std::size_t ids = static_cast<std::size_t>(vocab);
    p.logits = peaked(8 * ids);
    std::fill_n(p.logits.begin() + static_cast<std::ptrdiff_t>(2 * ids), ids, 0.25F); // more equal ones than anything holds
    std::fill_n(p.logits.begin() + static_cast<std::ptrdiff_t>(3 * ids), ids - 1, -infinity);
    const std::int32_t reported[] = {0, 1, 20, 20, 5, 20};
    for (std::size_t r = 0; r < 6; ++r) {
      sampling_params params;
      params.seed = random_();
      params.top_p = r % 2 == 0 ? 0.9F : 1.0F;
      params.top_logprobs = reported[r];
      params.logit_bias = {{0, 3.0F}, {2, -1.0F}}; // not in what is reported
      p.params.push_back(params);
      p.rows.push_back({work::draw, static_cast<std::int32_t>(r), 0, 0, 0, 0});
    }
    for (std::int32_t r = 6; r < 8; ++r)
      p.rows.push_back({work::score, 0, 0, 0, static_cast<token_id>(between(0, vocab - 1)), r == 6 ? 0 : 20});
    const outcome got = run(p);
    for (std::size_t r = 0; r < 8; ++r) {
      SCOPED_TRACE(::testing::Message() << "vocab " << vocab << ", row " << r);
      const float* row = p.logits.data() + r * ids;
      ASSERT_EQ(got.sampled[r].usable, 1);
      if (r >= 6) {
        ASSERT_EQ(got.sampled[r].token, p.rows[r].target);
      }
      const std::int32_t wanted = r >= 6 ? p.rows[r].alternatives : reported[r];
      expect_scores(cpu::score_token(row, vocab, cpu::log_softmax(row, vocab), got.sampled[r].token, wanted), got.sampled[r],
                    got.best_of(r));
    }
  }
}

TEST_F(gpu_sampling_test, ties_go_to_the_lowest_ids) {
  const kind kinds[] = {{0, 1, 0, 0}, {1, 1, 0, 1}, {1, 1e-9F, 0, 0}};
  problem p;
  p.vocab = 5000;
  p.logits.assign(3 * 5000, 1.25F);
  for (const kind& k : kinds) {
    p.params.emplace_back();
    p.params.back().temperature = k.temperature, p.params.back().top_p = k.top_p, p.params.back().top_k = k.top_k;
  }
  for (const auto& token : run(p).sampled) EXPECT_EQ(token.token, 0);
}

TEST_F(gpu_sampling_test, a_row_that_cannot_be_drawn_from_fails_alone) {
  problem p;
  p.vocab = 999;
  p.padding = 2;
  p.logits = normal(6 * 999);
  p.logits[500] = nan;
  p.logits[999 + 998] = infinity;
  std::fill_n(p.logits.begin() + 2 * 999, 999, -infinity);
  std::fill_n(p.logits.begin() + 3 * 999, 999, -infinity);
  p.logits[3 * 999 + 77] = -5.0F; // the only one that can be drawn
  p.params.resize(6);
  p.params[3].top_logprobs = 0;
  std::fill_n(p.logits.begin() + 4 * 999, 999, -infinity);
  p.logits[4 * 999 + 3] = 1.0F; // and that one may not be
  p.params[4].min_tokens = 9;
  p.params[4].suppressed = {3};
  p.faulted = {0, 0, 0, 0, 0, 1};
  const outcome got = run(p);
  for (const std::size_t r : {0, 1, 2, 4}) {
    EXPECT_EQ(got.sampled[r].usable, 0) << r;
    EXPECT_EQ(got.last_tokens[r], -7) << r;
  }
  for (const std::size_t r : {0, 1, 2, 3, 4, 5}) {
    EXPECT_EQ(got.faulted[r], r == 3 ? 0 : 1) << r;
    EXPECT_EQ(got.results[r].drawn, r == 3 ? 1 : 0) << r << ": slot 5 was faulted before";
    EXPECT_EQ(got.results[r].faulted, r == 3 ? 0 : 1) << r;
    EXPECT_EQ(got.kept[r].token, got.sampled[r].token) << r;
    EXPECT_EQ(got.kept[r].usable, got.sampled[r].usable) << r;
  }
  EXPECT_EQ(got.sampled[3].usable, 1);
  EXPECT_EQ(got.sampled[3].token, 77);
  EXPECT_EQ(got.sampled[3].logprob, 0.0F);
  EXPECT_EQ(got.sampled[5].usable, 1);
}

TEST_F(gpu_sampling_test, a_greedy_draw_takes_the_best_of_parts_where_nothing_else_is_asked) {
  problem p;
  p.vocab = 900;
  p.logits = normal(5 * 900);
  p.params.resize(5);
  for (sampling_params& params : p.params) params.temperature = 0;
  p.params[2].logit_bias = {{17, 100.0F}};
  p.params[3].temperature = 1;
  p.params[3].top_k = 1;
  p.tops_count = 2100;
  p.tops.resize(5 * gpu::most_logit_tops, {50.0F, 899}); // behind the count, and in rows that must not look, false
  for (std::size_t r : {0, 1, 4}) {
    for (std::size_t i = 0; i < 2100; ++i)
      p.tops[r * gpu::most_logit_tops + i] = {static_cast<float>(i % 700), static_cast<token_id>(i % 899)};
  }
  p.tops[gpu::most_logit_tops + 1500] = {1000.0F, 321};
  p.tops[gpu::most_logit_tops + 2099] = {1000.0F, 320}; // the lower id among equals
  p.tops[4 * gpu::most_logit_tops + 3].id = -1;         // a NaN was seen
  p.faulted.resize(5);
  const outcome got = run(p);
  EXPECT_EQ(got.sampled[0].token, 301) << "of ids 699, 500 and 301, equal";
  EXPECT_EQ(got.sampled[1].token, 320);
  EXPECT_EQ(got.sampled[2].token, 17) << "a biased row looks at its logits";
  EXPECT_EQ(got.sampled[3].token, std::max_element(p.logits.begin() + 3 * 900, p.logits.begin() + 4 * 900) - (p.logits.begin() + 3 * 900));
  EXPECT_EQ(got.sampled[4].usable, 0);
  EXPECT_EQ(got.results[4].faulted, 1);
}

TEST_F(gpu_sampling_test, histories_count_tokens_and_forget_them) {
  const std::int32_t vocab = 321;
  std::vector<gpu::counted_token> tokens;
  std::vector<std::uint32_t> right(3 * 321);
  for (int i = 0; i < 2000; ++i) {
    tokens.push_back(
        {static_cast<std::int32_t>(between(0, 2)), static_cast<token_id>(between(0, 99)), static_cast<std::int32_t>(between(0, 1))});
    std::uint32_t& seen = right[static_cast<std::size_t>(tokens.back().slot * vocab + tokens.back().token)];
    seen = std::max(seen, 1U) + static_cast<std::uint32_t>(tokens.back().is_output);
  }
  const buffer history = upload(std::vector<std::uint32_t>(right.size())), device = upload(tokens);
  auto* const counts = reinterpret_cast<std::uint32_t*>(history.data());
  gpu::count_tokens(stream(), reinterpret_cast<const gpu::counted_token*>(device.data()), 2000, counts, vocab);
  EXPECT_EQ(download<std::uint32_t>(history), right);
  gpu::clear_history(stream(), counts, vocab, 1);
  std::fill_n(right.begin() + vocab, vocab, 0U);
  EXPECT_EQ(download<std::uint32_t>(history), right);
}

} // namespace
} // namespace troupe
