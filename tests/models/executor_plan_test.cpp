#include "models/executor_plan.hpp"

#include "core/error.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

class executor_plan_test : public ::testing::Test {
 protected:
  // The plan with just so much memory, or the refusal.
  std::string refusal(std::uint64_t available) const {
    try {
      plan_executor(*weights_, options_, available);
      return {};
    } catch (const load_error& e) {
      return e.what();
    }
  }

  std::shared_ptr<const model_weights> weights_ = test::tiny_weights("llama-linear-tied");
  cpu_executor_options options_ = test::small_options();
};

TEST_F(executor_plan_test, what_does_not_fit_in_memory_is_refused_with_the_numbers) {
  const executor_plan plan = plan_executor(*weights_, options_, std::nullopt);
  const std::uint64_t needed = plan.weight_bytes + plan.activation_bytes + plan.kv_bytes;
  EXPECT_EQ(refusal(needed), "");
  const std::string reason = refusal(needed - 1);
  for (const std::size_t number : {plan.weight_bytes, plan.activation_bytes, plan.kv_bytes, std::size_t{needed - 1}}) {
    EXPECT_NE(reason.find(std::to_string(number)), std::string::npos) << reason;
  }
  EXPECT_NE(reason.find("--kv-cache-memory"), std::string::npos) << reason;
  // Where the weights alone are too much, no other cache helps.
  const std::string hopeless = refusal(plan.weight_bytes);
  EXPECT_NE(hopeless.find("not enough memory"), std::string::npos) << hopeless;
  EXPECT_EQ(hopeless.find("--kv-cache-memory"), std::string::npos) << hopeless;
}

TEST_F(executor_plan_test, a_tied_heads_packed_copy_counts) {
  const weight_view& embedding = weights_->embedding;
  ASSERT_EQ(weights_->head.data, embedding.data);
  ASSERT_EQ(traits(embedding.type).block_elems, 1U);
  const std::size_t table = static_cast<std::size_t>(embedding.rows * embedding.columns) * traits(embedding.type).block_bytes;
  model_weights headless = *weights_;
  headless.head = {};
  EXPECT_EQ(plan_executor(*weights_, options_, std::nullopt).weight_bytes,
            plan_executor(headless, options_, std::nullopt).weight_bytes + table);
}

TEST_F(executor_plan_test, the_cache_has_the_type_of_plain_weights_and_f16_beside_quantised_ones) {
  for (const auto& [stored, cached] :
       {std::pair{dtype::f32, dtype::f32}, {dtype::bf16, dtype::bf16}, {dtype::f16, dtype::f16}, {dtype::q8_0, dtype::f16}}) {
    model_weights weights = *weights_;
    weights.layers.front().query.type = stored;
    EXPECT_EQ(plan_executor(weights, options_, std::nullopt).shape.kv_type, cached) << traits(stored).name;
  }
}

TEST_F(executor_plan_test, threads_are_those_asked_for_or_one_per_usable_core) {
  EXPECT_EQ(plan_executor(*weights_, options_, std::nullopt).shape.threads, 2);
  options_.threads = 0;
  EXPECT_EQ(plan_executor(*weights_, options_, std::nullopt).shape.threads, cpu::usable_cores());
}

} // namespace
} // namespace troupe
