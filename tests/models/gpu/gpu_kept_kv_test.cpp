// A GPU executor whose KV cache lies with a keeper: the next one goes on from it.
#include "models/kept_kv.hpp"
#include "tests/device/keeper/keeper_testing.hpp"
#include "tests/models/gpu/gpu_model_testing.hpp"

namespace troupe {
namespace {

class gpu_kept_kv : public test::gpu_model_test {
 protected:
  gpu_executor_options options(bool usable = true) {
    gpu_executor_options out = test::small_gpu_options();
    out.keep_kv = {{keeper_.at, [this](const std::string& line) { log_ += line + "\n"; }}, "replica 0, rank 0", usable};
    return out;
  }

  keeper::testing::running_keeper keeper_;
  std::string log_;
};

// The last row of a prompt draws what it drew when all rows were computed, though another executor computed the others.
TEST_F(gpu_kept_kv, serves_the_executor_after_the_one_that_wrote_it) {
  const auto weights = test::tiny_weights("llama3-gqa");
  const test::tokens prompt = test::expected_prompts("llama3-gqa")[3].tokens;
  const auto length = static_cast<std::int32_t>(prompt.size());
  const auto last_row = [&](step_executor& executor) { // drawn from the rows that are there
    test::plan_writer writer(executor);                // gives out the same blocks every time
    writer.open(0, length, test::greedy(), length + 20);
    writer.prefill(0, length - 1, {prompt.back()}, true);
    test::tokens drawn = writer.run()[0].tokens;
    while (drawn.size() < 16) {
      writer.decode(0, length + static_cast<std::int32_t>(drawn.size()) - 1);
      drawn.push_back(writer.run()[0].tokens.at(0));
    }
    return drawn;
  };
  test::tokens expected;
  {
    const auto first = make_gpu_executor(*weights, options());
    EXPECT_FALSE(first->kv_kept());
    test::plan_writer writer(*first);
    writer.open(0, length, test::greedy(), length + 20);
    writer.prefill(0, 0, prompt, true);
    writer.run();
  }
  {
    const auto second = make_gpu_executor(*weights, options());
    EXPECT_TRUE(second->kv_kept()) << log_;
    expected = last_row(*second);
  }
  const auto third = make_gpu_executor(*weights, options());
  EXPECT_TRUE(third->kv_kept()) << log_;
  EXPECT_EQ(last_row(*third), expected);
  const auto alone = make_gpu_executor(*weights, test::small_gpu_options());
  test::plan_writer writer(*alone);
  EXPECT_EQ(test::generate(writer, 0, prompt, test::greedy(), 1).at(0), expected.at(0)) << "of one that computed every row itself";
}

TEST_F(gpu_kept_kv, after_a_fault_is_cleared) {
  const auto weights = test::tiny_weights("llama3-gqa");
  make_gpu_executor(*weights, options());
  EXPECT_FALSE(make_gpu_executor(*weights, options(false))->kv_kept());
  EXPECT_NE(log_.find("kept, but not its content"), std::string::npos) << log_;
}

} // namespace
} // namespace troupe
