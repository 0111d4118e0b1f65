// The real scheduler in front of the real executor, everything at once: prefix cache on and off, chunks of 1 to 1024 rows, pools that
// force preemption, several choices, penalties, scores, and speculation of every kind, on one device and on groups of ranks. Every
// request's tokens and scores are those that it gets alone, computed plainly; a group's greedy tokens are those of one device.
#include <deque>
#include <map>
#include <numeric>

#include "scheduler/scheduler.hpp"
#include "tests/models/group_testing.hpp"

namespace troupe {
namespace {

using test::group_shape;
using test::part_of;
using test::tokens;

struct said {
  tokens text;
  std::vector<token_scores> scores;
  friend bool operator==(const said&, const said&) = default;
};

struct served {
  std::map<sequence_id, said> answers;
  scheduler_stats stats;
};

std::future<step_result> computed(step_executor& executor, const step_plan& plan) {
  auto promised = std::make_shared<std::promise<step_result>>();
  executor.submit(plan, [promised](step_outcome o) {
    if (const auto* failure = std::get_if<step_failure>(&o)) {
      promised->set_exception(std::make_exception_ptr(std::runtime_error(failure->reason)));
    } else {
      promised->set_value(std::get<step_result>(std::move(o)));
    }
  });
  return promised->get_future();
}

served serve(step_executor& executor, scheduler_config config, const std::vector<sequence_request>& requests, std::mt19937& random) {
  config.device = executor.info();
  scheduler sched(config);
  served out;
  std::deque<std::future<step_result>> results;
  const auto turn = [&] {
    while (const auto plan = sched.schedule(1)) results.push_back(computed(executor, *plan));
    if (results.empty()) return false;
    for (const sequence_update& u : sched.apply(results.front().get(), 2)) {
      EXPECT_NE(u.finish, finish_reason::failed);
      said& answer = out.answers[u.id];
      answer.text.insert(answer.text.end(), u.tokens.begin(), u.tokens.end());
      answer.scores.insert(answer.scores.end(), u.scores.begin(), u.scores.end());
    }
    results.pop_front();
    return true;
  };
  for (const sequence_request& r : requests) {
    EXPECT_FALSE(sched.add(r, 0));
    for (auto turns = random() % 4; turns > 0; --turns) turn();
  }
  while (turn()) {
  }
  out.stats = sched.stats();
  return out;
}

struct matrix {
  matrix(const char* name, group_shape shape_, std::uint32_t seed) : random(seed), weights(test::tiny_weights(name)), shape(shape_) {
    const auto prompts = test::expected_prompts(name);
    text = prompts[3].tokens;
    draft = test::tiny_weights(random() % 2 == 0 ? name : "llama3-gqa");
  }

  std::int32_t pick(std::int32_t low, std::int32_t high) { return std::uniform_int_distribution<std::int32_t>(low, high)(random); }
  bool one_in(std::int32_t n) { return pick(1, n) == 1; }
  bool grouped() const { return shape.tp_size * shape.stages > 1; }

  // Parts of one text, some of them again and again, so that prefixes are shared and n-grams come back.
  sequence_request request(std::uint64_t id) {
    sequence_request r;
    r.id = {id, 0};
    r.arrival_ns = id;
    r.prompt = part_of(text, 0, static_cast<std::size_t>(pick(1, 40)));
    const tokens part = part_of(text, 3, static_cast<std::size_t>(pick(4, 9)));
    for (std::int32_t again = pick(0, 4); again > 0; --again) r.prompt.insert(r.prompt.end(), part.begin(), part.end());
    r.stop.max_tokens = pick(1, 24);
    r.sampling.seed = random();
    r.sampling.temperature = one_in(2) ? 0 : 0.7F;
    if (one_in(4)) r.sampling.frequency_penalty = 1.0F;
    if (one_in(5)) r.sampling.repetition_penalty = 1.3F;
    if (one_in(4)) r.sampling.top_logprobs = 2;
    if (one_in(4)) {
      r.sampling.min_tokens = r.stop.min_tokens = pick(1, 12);
      r.sampling.suppressed = r.stop.stop_token_ids = {text[5], text[6]};
    }
    return r;
  }

  cpu_executor_options options() {
    cpu_executor_options o;
    o.threads = grouped() ? 1 : 2;
    o.block_size = 1 << pick(0, 4);
    o.max_num_seqs = pick(1, 6);
    o.max_batched_tokens = std::max(o.max_num_seqs, 1 << pick(0, 10));
    o.num_blocks = (100 * pick(4, grouped() ? 6 : 14) / 4) / o.block_size + 1; // the longest needs 100 tokens
    return o;
  }

  std::unique_ptr<step_executor> executor(draft_source source, const cpu_executor_options& o) const {
    return make_cpu_group_executor(weights, o, shape.tp_size, shape.stages, test::group_deadline,
                                   source == draft_source::model ? draft : nullptr);
  }

  std::map<sequence_id, said> alone(const std::vector<sequence_request>& requests, group_shape on) {
    cpu_executor_options o = test::small_options();
    o.max_num_seqs = 1;
    o.threads = 1;
    const auto executor = make_cpu_group_executor(weights, o, on.tp_size, on.stages, test::group_deadline);
    scheduler_config config;
    config.prefix_caching = false;
    config.plans_in_flight = 1;
    return serve(*executor, config, requests, random).answers;
  }

  std::mt19937 random;
  std::shared_ptr<const model_weights> weights, draft;
  group_shape shape;
  tokens text;
};

// Of requests that do not draw at random: there a rounding error has to meet the very border between two tokens.
std::map<sequence_id, tokens> greedy_texts(const std::vector<sequence_request>& requests, const std::map<sequence_id, said>& answers) {
  std::map<sequence_id, tokens> out;
  for (const sequence_request& r : requests) {
    if (r.sampling.temperature == 0.0F) out[r.id] = answers.at(r.id).text;
  }
  return out;
}

class executor_matrix : public ::testing::TestWithParam<std::tuple<const char*, group_shape>> {};

TEST_P(executor_matrix, every_request_gets_what_it_gets_alone) {
  std::uint64_t preemptions = 0, accepted[3] = {};
  const auto [name, shape] = GetParam();
  for (std::uint32_t seed = 1; seed <= (shape.tp_size * shape.stages == 1 ? 20U : 6U); ++seed) {
    matrix m(name, shape, seed);
    std::vector<sequence_request> requests;
    for (std::uint64_t id = 1; id <= 8; ++id) {
      requests.push_back(m.request(id));
      if (!m.one_in(3)) continue;
      requests.push_back(requests.back()); // a second choice
      requests.back().id.index = 1;
      requests.back().sampling.seed += 1;
      requests.back().same_prompt_as = 0;
    }
    const auto expected = m.alone(requests, shape);
    EXPECT_EQ(greedy_texts(requests, expected), greedy_texts(requests, m.alone(requests, {1, 1}))) << "seed " << seed;
    for (const draft_source source : {draft_source::none, draft_source::ngram, draft_source::model}) {
      const cpu_executor_options options = m.options();
      scheduler_config config;
      config.prefix_caching = !m.one_in(3);
      config.stages = shape.stages;
      config.plans_in_flight = shape.stages == 1 ? m.pick(1, 3) : shape.stages + m.pick(0, 2);
      config.speculation = {source, m.pick(1, 9), m.one_in(4)};
      const auto executor = m.executor(source, options);
      const served all = serve(*executor, config, requests, m.random);
      EXPECT_EQ(all.answers == expected, true) << "seed " << seed << ", source " << static_cast<int>(source) << ", chunks of "
                                               << options.max_batched_tokens << ", blocks of " << options.block_size << ", cache "
                                               << config.prefix_caching;
      preemptions += all.stats.preemptions;
      const auto& counts = all.stats.drafts.accepted;
      accepted[static_cast<std::size_t>(source)] += std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    }
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(accepted[1] + accepted[2], 50);
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<const char*, group_shape>>& tested) {
  std::string name = std::get<0>(tested.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_" + std::get<1>(tested.param).name();
}

INSTANTIATE_TEST_SUITE_P(tiny_models, executor_matrix,
                         ::testing::Combine(::testing::ValuesIn(test::tiny_models),
                                            ::testing::Values(group_shape{1, 1}, group_shape{2, 1}, group_shape{4, 1}, group_shape{1, 2},
                                                              group_shape{2, 2})),
                         name_of_case);

} // namespace
} // namespace troupe
