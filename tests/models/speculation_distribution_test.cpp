// With speculation as without, a token is drawn from the model's distribution: over many seeds the frequencies of three tokens in a row
// are those that the model's own log-probabilities give.
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>

#include "models/drafting_executor.hpp"
#include "scheduler/scheduler.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

using test::tokens;

constexpr std::array<token_id, 4> kLetters{11, 57, 101, 163}; // a bias leaves these to be drawn
constexpr float kBias = 60;
constexpr std::size_t kCells = 64; // three letters
constexpr std::uint64_t kSeeds = 6000;

const tokens kPrompt{11, 57, 101, 163, 57, 11, 57, 101, 11, 101, 163, 163, 11, 57};

step_result computed(step_executor& executor, const step_plan& plan) {
  step_result result;
  executor.submit(plan, [&](step_outcome o) { result = std::get<step_result>(std::move(o)); });
  return result;
}

// Of each letter behind `prefix`, at `temperature`: log-probabilities of what is in a prompt are raw.
std::array<double, 4> letters_after(step_executor& executor, const tokens& prefix, double temperature) {
  test::plan_writer writer(executor);
  static epoch_number epoch = 0;
  writer.plan.epoch = ++epoch;
  const auto length = static_cast<std::int32_t>(prefix.size()) + 1;
  tokens scored = prefix;
  scored.push_back(kLetters[0]);
  writer.open(0, length, test::greedy(), length);
  writer.prefill(0, 0, scored, true, executor.info().vocab_size);
  const slot_output out = writer.run()[0];
  std::array<double, 4> p{};
  for (const scored_token& s : out.prompt_scores.back().top) {
    for (std::size_t i = 0; i < 4; ++i) {
      if (s.token == kLetters[i]) p[i] = std::exp(static_cast<double>(s.logprob) / temperature);
    }
  }
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= all;
  return p;
}

std::array<double, kCells> target(step_executor& executor, double temperature) {
  std::array<double, kCells> p{};
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    tokens prefix = kPrompt;
    p[cell] = 1;
    for (const std::size_t letter : {cell / 16, cell / 4 % 4, cell % 4}) {
      p[cell] *= letters_after(executor, prefix, temperature)[letter];
      prefix.push_back(kLetters[letter]);
    }
  }
  return p;
}

std::size_t cell_of(const tokens& drawn) {
  std::size_t cell = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    cell = cell * 4 + static_cast<std::size_t>(std::find(kLetters.begin(), kLetters.end(), drawn[i]) - kLetters.begin());
  }
  return cell;
}

sequence_request request(std::uint64_t seed, float temperature) {
  sequence_request r;
  r.id = {seed + 1, 0};
  r.arrival_ns = seed;
  r.prompt = kPrompt;
  r.stop.max_tokens = 6;
  r.sampling.temperature = temperature;
  r.sampling.seed = seed;
  for (const token_id letter : kLetters) r.sampling.logit_bias.push_back({letter, kBias});
  return r;
}

struct counted {
  std::map<sequence_id, tokens> text;
  std::uint64_t accepted = 0, drafted = 0;
};

counted draw(step_executor& executor, draft_source source, float temperature) {
  scheduler_config config;
  config.device = executor.info();
  config.max_waiting = static_cast<std::int32_t>(kSeeds);
  config.speculation = {source, 4, false};
  scheduler sched(config);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) EXPECT_FALSE(sched.add(request(seed, temperature), 0));
  counted out;
  std::deque<step_result> results;
  while (true) {
    while (const auto plan = sched.schedule(1)) results.push_back(computed(executor, *plan));
    if (results.empty()) break;
    for (const sequence_update& u : sched.apply(results.front(), 2)) {
      out.text[u.id].insert(out.text[u.id].end(), u.tokens.begin(), u.tokens.end());
    }
    results.pop_front();
  }
  const draft_counts counts = sched.stats().drafts;
  out.accepted = std::accumulate(counts.accepted.begin(), counts.accepted.end(), std::uint64_t{0});
  out.drafted = std::accumulate(counts.drafted.begin(), counts.drafted.end(), std::uint64_t{0});
  return out;
}

// Pearson's statistic; cells that are expected less than 5 times are put together.
double chi_squared(const std::map<sequence_id, tokens>& text, const std::array<double, kCells>& p) {
  std::array<double, kCells> seen{};
  for (const auto& [id, drawn] : text) seen[cell_of(drawn)] += 1;
  double sum = 0, rare_seen = 0, rare_expected = 0;
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    const double expected = p[cell] * static_cast<double>(kSeeds);
    if (expected < 5) {
      rare_seen += seen[cell];
      rare_expected += expected;
    } else {
      sum += (seen[cell] - expected) * (seen[cell] - expected) / expected;
    }
  }
  return rare_expected < 5 ? sum : sum + (rare_seen - rare_expected) * (rare_seen - rare_expected) / rare_expected;
}

constexpr double kCritical = 113; // of 63 degrees of freedom, exceeded once in 10,000 times

std::unique_ptr<step_executor> executor_for(draft_source source) {
  cpu_executor_options options = test::small_options();
  options.max_num_seqs = 64;
  options.max_batched_tokens = 1024;
  options.num_blocks = 512;
  const auto weights = test::tiny_weights("qwen2-bias-tied");
  if (source != draft_source::model) return make_cpu_executor(weights, options);
  return make_drafting_cpu_executor(weights, test::tiny_weights("llama3-gqa"), options);
}

class speculation_distribution : public ::testing::TestWithParam<draft_source> {};
INSTANTIATE_TEST_SUITE_P(by_source, speculation_distribution, ::testing::Values(draft_source::ngram, draft_source::model));

TEST_P(speculation_distribution, is_the_targets) {
  constexpr float temperature = 0.9F;
  const auto p = target(*executor_for(draft_source::none), temperature);
  ASSERT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1, 1e-9);
  const counted plain = draw(*executor_for(draft_source::none), draft_source::none, temperature);
  const counted drafted = draw(*executor_for(GetParam()), GetParam(), temperature);
  ASSERT_EQ(drafted.text.size(), kSeeds);
  EXPECT_GT(drafted.accepted, kSeeds / 4);
  EXPECT_LT(drafted.accepted, drafted.drafted);
  EXPECT_LT(chi_squared(drafted.text, p), kCritical);
  EXPECT_TRUE(drafted.text == plain.text) << "the draws are keyed: they are not only distributed alike but the same";
  // The statistic sees a temperature that is a little off.
  const counted other = draw(*executor_for(GetParam()), GetParam(), 1.1F);
  EXPECT_GT(chi_squared(other.text, p), kCritical);
}

} // namespace
} // namespace troupe
