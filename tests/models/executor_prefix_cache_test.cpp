// The real scheduler in front of the real executor: what is found in the cache gives the same tokens as what is computed.
#include <deque>
#include <map>

#include "scheduler/scheduler.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

using test::part_of;
using test::tokens;

struct outcome {
  std::map<sequence_id, tokens> text;
  std::int64_t rows = 0;
  std::uint64_t preemptions = 0;
};

step_result computed(step_executor& executor, const step_plan& plan) {
  step_result result;
  executor.submit(plan, [&](step_outcome o) {
    if (const auto* failure = std::get_if<step_failure>(&o)) throw std::runtime_error(failure->reason);
    result = std::get<step_result>(std::move(o));
  });
  return result;
}

// Serves the rounds one after another, the requests of a round together.
outcome serve(const std::shared_ptr<const model_weights>& weights, const cpu_executor_options& options, bool caching,
              const std::vector<std::vector<sequence_request>>& rounds) {
  const auto executor = make_cpu_executor(weights, options);
  scheduler_config config;
  config.device = executor->info();
  config.prefix_caching = caching;
  scheduler sched(config);
  outcome out;
  for (const auto& round : rounds) {
    for (const sequence_request& r : round) EXPECT_FALSE(sched.add(r, 0));
    for (std::deque<step_result> results;;) {
      while (const auto plan = sched.schedule(1)) {
        for (const work_item& item : plan->items) out.rows += item.token_count;
        results.push_back(computed(*executor, *plan));
      }
      if (results.empty()) break;
      for (const sequence_update& u : sched.apply(results.front(), 2)) {
        EXPECT_NE(u.finish, finish_reason::failed);
        out.text[u.id].insert(out.text[u.id].end(), u.tokens.begin(), u.tokens.end());
      }
      results.pop_front();
    }
  }
  out.preemptions = sched.stats().preemptions;
  return out;
}

sequence_request request(std::uint64_t id, tokens prompt, float temperature) {
  sequence_request r;
  r.id = {id, 0};
  r.arrival_ns = id;
  r.prompt = std::move(prompt);
  r.sampling.temperature = temperature;
  r.sampling.seed = id;
  r.stop.max_tokens = 12;
  return r;
}

class prefix_cache_of : public ::testing::TestWithParam<const char*> {};

TEST_P(prefix_cache_of, changes_no_token) {
  const auto weights = test::tiny_weights(GetParam());
  const tokens text = test::expected_prompts(GetParam())[3].tokens;
  ASSERT_GE(text.size(), 64U);
  std::vector<std::vector<sequence_request>> rounds(2);
  std::uint64_t id = 0;
  for (const std::size_t length : {15U, 16U, 17U, 40U, 64U}) rounds[0].push_back(request(++id, part_of(text, 0, length), 0));
  rounds[0].push_back(request(++id, part_of(text, 3, 40), 1));
  rounds[1] = rounds[0]; // all again
  for (sequence_request& r : rounds[1]) r.id.request += 100;
  rounds[1].push_back(request(++id, part_of(text, 0, 50), 1.2F));
  rounds[1].back().sampling.frequency_penalty = 0.5F;
  for (const std::int32_t chunk : {8, 24, 256}) {
    for (const std::int32_t blocks : {128, 14}) { // 14: all together need twice as many
      cpu_executor_options options = test::small_options();
      options.max_batched_tokens = chunk;
      options.num_blocks = blocks;
      const outcome off = serve(weights, options, false, rounds);
      const outcome on = serve(weights, options, true, rounds);
      EXPECT_EQ(on.text, off.text) << "chunks of " << chunk << ", " << blocks << " blocks";
      for (std::uint64_t first = 1; first <= 6; ++first) EXPECT_EQ((on.text.at({first, 0})), (on.text.at({first + 100, 0}))) << first;
      EXPECT_LT(on.rows, off.rows);
      if (blocks == 14) {
        EXPECT_GT(off.preemptions, 0U);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(tiny_models, prefix_cache_of, ::testing::ValuesIn(test::tiny_models), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

} // namespace
} // namespace troupe
