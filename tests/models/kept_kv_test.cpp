// A CPU executor whose KV cache lies with a keeper: the next one goes on from it, bit for bit, where it may.
#include "models/kept_kv.hpp"

#include "models/drafting_executor.hpp"
#include "tests/device/keeper/keeper_testing.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

using keeper::testing::running_keeper;

class kept_kv : public ::testing::Test {
 protected:
  cpu_executor_options options(bool usable = true, const std::string& owner = "replica 0, rank 0") {
    cpu_executor_options out = test::small_options();
    out.keep_kv = {{keeper_.at, [this](const std::string& line) { log_ += line + "\n"; }}, owner, usable};
    return out;
  }
  static std::shared_ptr<const model_weights> load(const std::string& name) {
    return std::make_shared<const model_weights>(open_checkpoint(test::model_folder(name))->load());
  }

  running_keeper keeper_;
  std::string log_;
};

class kept_kv_of : public kept_kv, public ::testing::WithParamInterface<const char*> {};

// What the rows of a prompt draw when another executor has computed all but the last.
TEST_P(kept_kv_of, serves_the_executor_after_the_one_that_wrote_it) {
  const auto weights = test::tiny_weights(GetParam());
  const auto prompt = test::expected_prompts(GetParam())[2];
  const auto length = static_cast<std::int32_t>(prompt.tokens.size());
  const auto open = [&](test::plan_writer& writer) { writer.open(0, length, test::greedy(), length + 20); };
  {
    const auto first = make_cpu_executor(weights, options());
    EXPECT_FALSE(first->kv_kept()) << "nobody was there before";
    test::plan_writer writer(*first);
    open(writer);
    writer.prefill(0, 0, prompt.tokens, true);
    writer.run();
  }
  const auto next = make_cpu_executor(weights, options());
  EXPECT_TRUE(next->kv_kept()) << log_;
  test::plan_writer writer(*next); // gives out the same blocks
  open(writer);
  writer.prefill(0, length - 1, {prompt.tokens.back()}, true);
  test::tokens drawn = writer.run()[0].tokens;
  while (drawn.size() < prompt.greedy.size()) {
    writer.decode(0, length + static_cast<std::int32_t>(drawn.size()) - 1);
    drawn.push_back(writer.run()[0].tokens.at(0));
  }
  EXPECT_EQ(drawn, prompt.greedy);
}

INSTANTIATE_TEST_SUITE_P(models, kept_kv_of, ::testing::ValuesIn(test::tiny_models), [](const auto& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_F(kept_kv, after_a_fault_is_memory_and_nothing_else) {
  make_cpu_executor(load("llama3-gqa"), options());
  EXPECT_FALSE(make_cpu_executor(load("llama3-gqa"), options(false))->kv_kept());
  EXPECT_NE(log_.find("kept, but not its content"), std::string::npos) << log_;
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 1U);
}

TEST_F(kept_kv, of_another_shape_or_other_weights_is_not_taken) {
  const auto start = [&](const std::string& model, const cpu_executor_options& how) { return make_cpu_executor(load(model), how)->kv_kept(); };
  EXPECT_FALSE(start("llama3-gqa", options()));
  EXPECT_TRUE(start("llama3-gqa", options()));
  cpu_executor_options other = options();
  other.num_blocks = *other.num_blocks - 1;
  EXPECT_FALSE(start("llama3-gqa", other));
  other.block_size = 16;
  EXPECT_FALSE(start("llama3-gqa", other));
  other.kv_type = dtype::f16;
  EXPECT_FALSE(start("llama3-gqa", other));
  EXPECT_TRUE(start("llama3-gqa", other));
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 1U) << "each took the place of the one before";
  EXPECT_FALSE(start("qwen2-bias-tied", other));
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 2U);
}

TEST_F(kept_kv, belongs_to_one_rank_of_one_replica) {
  const auto one = make_cpu_executor(load("llama3-gqa"), options(true, "replica 0, rank 0"));
  const auto two = make_cpu_executor(load("llama3-gqa"), options(true, "replica 1, rank 0"));
  EXPECT_FALSE(two->kv_kept());
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 2U);
}

TEST_F(kept_kv, of_two_models_is_kept_when_both_are) {
  const auto start = [&] { return make_drafting_cpu_executor(load("llama3-gqa"), load("llama3-gqa.gguf"), options())->kv_kept(); };
  EXPECT_FALSE(start());
  EXPECT_TRUE(start());
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 2U);
  make_cpu_executor(load("llama3-gqa.gguf"), options(true, "replica 0, rank 0, draft model")); // the same: still kept
  EXPECT_TRUE(start());
  make_cpu_executor(load("llama3-gqa.gguf"), [&] {
    cpu_executor_options other = options(true, "replica 0, rank 0, draft model");
    other.num_blocks = 64;
    return other;
  }());
  EXPECT_FALSE(start()) << "the draft model's is gone";
}

TEST_F(kept_kv, of_unknown_weights_is_not_kept) {
  auto weights = std::make_shared<model_weights>(*load("llama3-gqa"));
  weights->source = {};
  make_cpu_executor(weights, options());
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 0U);
  EXPECT_NE(log_.find("not kept"), std::string::npos) << log_;
}

} // namespace
} // namespace troupe
