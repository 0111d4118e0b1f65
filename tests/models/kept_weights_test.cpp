// A CPU model whose weights lie with a keeper computes what it computed before, and reads no matrix of its checkpoint.
#include "models/kept_weights.hpp"

#include <filesystem>

#include "models/drafting_executor.hpp"
#include "models/group_executor.hpp"
#include "tests/device/keeper/keeper_testing.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

using keeper::testing::running_keeper;

const test::tokens prompt = {5, 17, 3, 42, 8, 11};

class kept_weights : public ::testing::Test {
 protected:
  cpu_executor_options options() {
    cpu_executor_options out = test::small_options();
    out.keep = {keeper_.at, [this](const std::string& line) { log_.push_back(line); }};
    return out;
  }

  static test::tokens generated(step_executor& executor) {
    test::plan_writer writer(executor);
    return test::generate(writer, 0, prompt, test::greedy(), 24);
  }

  running_keeper keeper_;
  std::vector<std::string> log_;
};

class kept_weights_of : public kept_weights, public ::testing::WithParamInterface<std::string> {};

std::shared_ptr<const model_weights> load(const std::string& name) {
  return std::make_shared<const model_weights>(open_checkpoint(test::model_folder(name))->load());
}

// The same weights, with no byte of a matrix that could be read.
std::shared_ptr<const model_weights> without_matrices(const std::string& name) {
  auto weights = std::make_shared<model_weights>(*load(name));
  const auto hide = [](weight_view& view) { view.data = reinterpret_cast<const std::byte*>(std::uintptr_t{64}); };
  hide(weights->embedding);
  hide(weights->head);
  for (layer_weights& layer : weights->layers) {
    for (weight_view* view : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down}) hide(*view);
  }
  return weights;
}

TEST_P(kept_weights_of, are_computed_with_as_if_they_had_been_loaded) {
  cpu_executor_options alone = test::small_options();
  const auto plain = make_cpu_executor(load(GetParam()), alone);
  const test::tokens expected = generated(*plain);
  ASSERT_EQ(expected.size(), 24U);
  EXPECT_EQ(generated(*make_cpu_executor(load(GetParam()), options())), expected);
  EXPECT_EQ(generated(*make_cpu_executor(without_matrices(GetParam()), options())), expected);
  EXPECT_EQ(generated(*make_cpu_executor(without_matrices(GetParam()), options())), expected);
  ASSERT_EQ(log_.size(), 3U);
  EXPECT_NE(log_[0].find("kept for the next start"), std::string::npos) << log_[0];
  EXPECT_NE(log_[1].find(" kept, mapped in "), std::string::npos) << log_[1];
  const auto counts = keeper::query(keeper_.at);
  EXPECT_EQ(counts->sealed, 1U);
  EXPECT_EQ(counts->handed_out, 2U);
}

INSTANTIATE_TEST_SUITE_P(models, kept_weights_of,
                         ::testing::Values("llama3-gqa", "llama3-gqa.gguf", "qwen2-bias-tied", "qwen2-bias-tied-f16.gguf"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST_F(kept_weights, of_a_checkpoint_that_was_replaced_are_loaded_anew_and_the_old_ones_given_back) {
  const std::filesystem::path copy = std::filesystem::temp_directory_path() / ("kept_weights_test." + std::to_string(getpid()) + ".gguf");
  std::filesystem::copy_file(test::model_folder("llama3-gqa.gguf"), copy, std::filesystem::copy_options::overwrite_existing);
  const auto start = [&] { make_cpu_executor(std::make_shared<const model_weights>(open_checkpoint(copy)->load()), options()); };
  start();
  start();
  const std::uint64_t bytes = keeper::query(keeper_.at)->kept_bytes;
  std::filesystem::last_write_time(copy, std::filesystem::last_write_time(copy) + std::chrono::seconds(1));
  start();
  std::filesystem::remove(copy);
  const auto counts = keeper::query(keeper_.at);
  EXPECT_EQ(counts->sealed, 2U);
  EXPECT_EQ(counts->handed_out, 1U);
  EXPECT_EQ(counts->kept_bytes, bytes);
}

TEST_F(kept_weights, of_dummies_are_not_made_again) {
  const model_config config = open_checkpoint(test::model_folder("llama3-gqa"))->config();
  const auto plan = [&] { return std::make_shared<model_weights>(plan_dummy_weights(config, dtype::f32, 1)); };
  const test::tokens expected = generated(*make_cpu_executor(plan(), options()));
  const auto planned = plan();
  planned->source.make = [] { FAIL() << "matrices were made that are kept"; };
  EXPECT_EQ(generated(*make_cpu_executor(planned, options())), expected);
  const auto whole = std::make_shared<const model_weights>(make_dummy_weights(config, dtype::f32, 1));
  EXPECT_EQ(generated(*make_cpu_executor(whole, test::small_options())), expected);
}

TEST_F(kept_weights, of_ranks_with_padding_are_computed_with_as_if_they_had_been_loaded) {
  model_config config = open_checkpoint(test::model_folder("llama3-gqa"))->config();
  config.num_heads = 9;
  config.num_kv_heads = 3;
  cpu_executor_options keeping = options();
  keeping.keep->log = [](const std::string&) {}; // of two threads
  const auto generated_by_two = [&](const std::shared_ptr<const model_weights>& weights, const cpu_executor_options& how) {
    return generated(*make_cpu_group_executor(weights, how, 2, 1, std::chrono::seconds(20)));
  };
  const auto plan = [&] { return std::make_shared<model_weights>(plan_dummy_weights(config, dtype::f16, 1)); };
  const test::tokens expected = generated_by_two(plan(), test::small_options());
  EXPECT_EQ(generated_by_two(plan(), keeping), expected);
  const auto planned = plan();
  planned->source.make = [] { FAIL() << "matrices were made that are kept"; };
  EXPECT_EQ(generated_by_two(planned, keeping), expected);
  EXPECT_EQ(keeper::query(keeper_.at)->handed_out, 2U);
}

TEST_F(kept_weights, of_a_draft_model_have_a_region_of_their_own) {
  const auto start = [&] { return make_drafting_cpu_executor(load("llama3-gqa"), load("llama3-gqa.gguf"), options()); };
  start();
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 2U);
  start();
  EXPECT_EQ(keeper::query(keeper_.at)->handed_out, 2U);
}

TEST_F(kept_weights, of_unknown_origin_are_not_kept) {
  auto weights = std::make_shared<model_weights>(*load("llama3-gqa"));
  weights->source = {};
  make_cpu_executor(weights, options());
  EXPECT_EQ(keeper::query(keeper_.at)->sealed, 0U);
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_NE(log_[0].find("not kept"), std::string::npos) << log_[0];
}

TEST_F(kept_weights, that_another_rank_holds_are_another_region) {
  auto weights = std::make_shared<model_weights>(*load("llama3-gqa"));
  make_cpu_executor(weights, options());
  weights->source.part = "1 of 2";
  make_cpu_executor(weights, options());
  EXPECT_EQ(keeper::query(keeper_.at)->regions, 2U);
  EXPECT_EQ(keeper::query(keeper_.at)->sealed, 2U);
}

} // namespace
} // namespace troupe
