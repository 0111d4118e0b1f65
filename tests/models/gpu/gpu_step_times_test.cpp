// When a GPU's steps say that they were computed: traces and the idle figure come from it.
#include <algorithm>
#include <chrono>

#include "core/clock.hpp"
#include "tests/models/gpu/gpu_model_testing.hpp"

namespace troupe {
namespace {

class gpu_step_times_test : public test::gpu_model_test {};

// Times of `steps` decode steps of one sequence, one plan ahead of the results.
std::vector<stage_times> times_of(step_executor& executor, std::int32_t steps) {
  test::plan_writer writer(executor);
  writer.open(0, 8, test::greedy(), 9 + steps);
  writer.prefill(0, 0, test::tokens(8, 5), true);
  std::vector<std::future<step_outcome>> outcomes;
  outcomes.push_back(writer.start());
  std::vector<stage_times> times;
  for (std::int32_t i = 0; i < steps; ++i) {
    writer.decode(0, 8 + i);
    outcomes.push_back(writer.start());
    times.push_back(std::get<step_result>(outcomes[static_cast<std::size_t>(i)].get()).times);
  }
  times.push_back(std::get<step_result>(outcomes.back().get()).times);
  return times;
}

TEST_F(gpu_step_times_test, steps_follow_one_another_and_lie_between_the_first_plan_and_the_last_result) {
  const model_weights weights = make_dummy_weights(test::quick_config(64), dtype::f32, 3);
  for (const bool asynchronous : {true, false}) {
    gpu_executor_options options = test::small_gpu_options();
    options.asynchronous_copies = asynchronous;
    const auto executor = make_gpu_executor(weights, options);
    const std::uint64_t begin = now_ns();
    const std::vector<stage_times> times = times_of(*executor, 40);
    const std::uint64_t end = now_ns();
    std::uint64_t busy = 0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const stage_times& t = times[i];
      EXPECT_GT(t.compute_ns, 0U);
      EXPECT_LT(t.compute_ns, end - begin);
      EXPECT_GE(t.prepare_at_ns, begin);
      EXPECT_GE(t.compute_at_ns + 200'000, t.prepare_at_ns) << i; // the clocks agree to less than that
      EXPECT_GE(t.deliver_at_ns, t.compute_at_ns + t.compute_ns);
      EXPECT_LE(t.compute_at_ns + t.compute_ns, end);
      if (i > 0) {
        EXPECT_GE(t.compute_at_ns + 200'000, times[i - 1].compute_at_ns + times[i - 1].compute_ns) << i;
      }
      busy += t.compute_ns;
    }
    EXPECT_LE(busy, end - begin) << "steps of one stream do not overlap";
  }
}

TEST_F(gpu_step_times_test, groups_of_kernels_add_up_to_the_step) {
  const model_weights weights = make_dummy_weights(test::quick_config(64), dtype::f32, 3);
  gpu_executor_options options = test::small_gpu_options();
  EXPECT_TRUE(times_of(*make_gpu_executor(weights, options), 3).back().groups.empty());
  options.kernel_times = true;
  for (const stage_times& t : times_of(*make_gpu_executor(weights, options), 10)) {
    ASSERT_FALSE(t.groups.empty());
    std::uint64_t sum = 0;
    for (const group_time& g : t.groups) sum += g.ns;
    EXPECT_GT(sum, 0U);
    EXPECT_LE(sum, t.compute_ns + 50'000);
    // A decode step runs as a graph, whose layers are told apart all the same.
    EXPECT_EQ(std::count_if(t.groups.begin(), t.groups.end(), [](const group_time& g) { return g.group == kernel_group::layers; }), 0);
    EXPECT_EQ(std::count_if(t.groups.begin(), t.groups.end(), [](const group_time& g) { return g.group == kernel_group::mlp_output; }), 1);
    EXPECT_EQ(t.collective_move_ns, 0U) << "there are no other ranks";
  }
}

} // namespace
} // namespace troupe
