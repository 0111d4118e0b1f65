// A draft model beside the leader of a group; what needs two GPUs is skipped where there are fewer.
#include <chrono>
#include <string>

#include "core/error.hpp"
#include "models/drafting_executor.hpp"
#include "models/executor_plan.hpp"
#include "models/gpu_plan.hpp"
#include "models/group_executor.hpp"
#include "tests/models/gpu/gpu_model_testing.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::part_of;
using test::plan_writer;
using test::tokens;

constexpr std::size_t gib = std::size_t{1} << 30;

struct group_shape {
  const char* name;
  int tp, stages;

  rank_context leader() const { return {0, tp, stages - 1, stages, nullptr, nullptr}; }
};

std::string label(const ::testing::TestParamInfo<group_shape>& info) { return info.param.name; }

// Bytes of a KV block of the rank's share.
std::size_t block_bytes(const model_config& whole, const rank_context& rank, std::int32_t tokens_a_block) {
  return kv_bytes_per_token(gpu_share(whole, rank), dtype::f16) * static_cast<std::size_t>(tokens_a_block);
}

class gpu_shared_blocks : public ::testing::TestWithParam<group_shape> {
 protected:
  std::int32_t planned(cuda::memory_state device) const {
    return shared_blocks({share_, dtype::f16, options_, leader_}, {whole_, dtype::f16, options_, {}}, device);
  }

  const model_config whole_ = test::quick_config(64);
  const rank_context leader_ = GetParam().leader();
  const model_config share_ = gpu_share(whole_, leader_);
  gpu_executor_options options_ = test::small_gpu_options();
};

TEST_P(gpu_shared_blocks, are_counted_for_the_leaders_share_and_the_whole_draft_model) {
  options_.num_blocks.reset();
  options_.kv_bytes = std::size_t{8} << 20;
  const std::size_t both = block_bytes(whole_, leader_, options_.block_size) + block_bytes(whole_, {}, options_.block_size);
  EXPECT_EQ(planned({8 * gib, 8 * gib}), static_cast<std::int32_t>(*options_.kv_bytes / both));
  EXPECT_THROW(planned({gib, 8 * gib}), load_error) << "what two models' graphs and libraries take is more";
}

TEST_P(gpu_shared_blocks, of_a_given_number_must_fit) {
  options_.num_blocks = 1000;
  EXPECT_EQ(planned({8 * gib, 8 * gib}), 1000);
  options_.num_blocks = 400'000;
  EXPECT_NO_THROW(plan_gpu(share_, dtype::f16, options_, {12 * gib, 12 * gib}, leader_));
  EXPECT_THROW(planned({12 * gib, 12 * gib}), load_error);
}

INSTANTIATE_TEST_SUITE_P(groups, gpu_shared_blocks, ::testing::Values(group_shape{"tp", 2, 1}, group_shape{"pp", 1, 2}), label);

class gpu_pair_drafting : public test::gpu_pair_test, public ::testing::WithParamInterface<group_shape> {
 protected:
  // A rank on a thread and GPU of its own; `draft` may be null.
  static std::unique_ptr<step_executor> make(const model_weights& target, const model_weights* draft, const gpu_executor_options& options) {
    return make_group_executor(make_local_ranks(GetParam().tp, GetParam().stages, 30s), [&](const rank_context& rank) {
      gpu_executor_options mine = options;
      mine.device = rank.number();
      gpu_joining place = join_gpus(rank, rank.number(), 5s);
      return draft != nullptr ? make_drafting_gpu_executor(target, *draft, mine, std::move(place))
                              : make_gpu_executor(target, mine, std::move(place));
    });
  }

  // One of nine tokens, at random: their chances are the model's.
  static sampling_params one_of_nine(std::size_t sequence) {
    sampling_params random;
    for (token_id token = 100; token < 1000; token += 100) random.logit_bias.push_back({token, 40});
    random.seed = 11 + sequence;
    return random;
  }
  static gpu_executor_options invariant(bool on) {
    gpu_executor_options options = test::small_gpu_options();
    options.batch_invariant = on;
    return options;
  }

  struct text {
    tokens drawn, proposals;                // the proposals are those of the last plan
    std::size_t as_proposed = 0, right = 0; // drafts that were verified as they were proposed; those of them that were drawn
  };

  // All sequences side by side: every round verifies what was proposed, the last of it now and then made wrong, and asks for more.
  static std::vector<text> speculate(step_executor& executor, epoch_number epoch, const std::vector<tokens>& prompts, std::size_t count) {
    plan_writer writer(executor, static_cast<std::uint32_t>(epoch));
    writer.plan.epoch = epoch;
    std::vector<text> texts(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto length = static_cast<std::int32_t>(prompts[i].size());
      writer.open(static_cast<slot_id>(i), length, one_of_nine(i), length + static_cast<std::int32_t>(2 * count));
      writer.prefill(static_cast<slot_id>(i), 0, prompts[i], true);
    }
    for (std::size_t round = 0; texts.front().drawn.size() < count && !HasFailure(); ++round) {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (round > 0) verify(writer, static_cast<slot_id>(i), prompts[i].size(), texts[i], (round + i) % 3 == 1);
        writer.plan.items[i].propose = static_cast<std::int32_t>((round + i) % 5); // sometimes none
      }
      const std::vector<slot_output> outputs = writer.run();
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const std::size_t taken = outputs[i].tokens.size() - 1;
        texts[i].right += taken;
        texts[i].drawn.insert(texts[i].drawn.end(), outputs[i].tokens.begin(), outputs[i].tokens.end());
        texts[i].proposals = outputs[i].proposals;
        EXPECT_EQ(texts[i].proposals.size(), (round + i) % 5);
      }
    }
    return texts;
  }

  static void verify(plan_writer& writer, slot_id slot, std::size_t prompt, text& t, bool spoil) {
    tokens drafts = t.proposals;
    spoil = spoil && !drafts.empty();
    if (spoil) drafts.back() = 1; // which is never drawn
    t.as_proposed += drafts.size() - (spoil ? 1 : 0);
    const auto position = static_cast<std::int32_t>(prompt + t.drawn.size()) - 1;
    drafts.empty() ? writer.decode(slot, position) : writer.verify(slot, position, drafts);
  }

  // The group's texts are those that it draws without a draft model, each alone: exactly where it is batch-invariant.
  void expect_plain(const std::vector<text>& texts) const {
    const auto plain = make(weights_, nullptr, invariant(true));
    plan_writer writer(*plain);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(texts[i].drawn, generate(writer, 0, prompts_[i], one_of_nine(i), texts[i].drawn.size())) << "sequence " << i;
    }
  }

  const model_weights weights_ = make_dummy_weights(test::quick_config(64), dtype::f32, 7);
  const std::vector<tokens> prompts_ = {random_tokens(33), random_tokens(9), random_tokens(120)};
};

TEST_P(gpu_pair_drafting, the_same_model_proposes_what_the_group_draws_in_every_epoch) {
  for (const bool batch_invariant : {false, true}) {
    SCOPED_TRACE(batch_invariant ? "batch-invariant" : "fused");
    std::vector<text> texts;
    {
      const auto executor = make(weights_, &weights_, invariant(batch_invariant));
      EXPECT_EQ(executor->info().max_proposals, most_proposals);
      for (epoch_number epoch = 1; epoch <= 2; ++epoch) {
        texts = speculate(*executor, epoch, prompts_, 40);
        std::size_t as_proposed = 0, right = 0;
        for (const text& t : texts) as_proposed += t.as_proposed, right += t.right;
        EXPECT_GT(as_proposed, 40U);
        EXPECT_GE(10 * right, 9 * as_proposed) << right << " of " << as_proposed << ": more than rounding explains";
      }
    }
    if (batch_invariant) expect_plain(texts);
  }
}

TEST_P(gpu_pair_drafting, another_model_changes_no_token) {
  model_config small = test::quick_config(64);
  small.num_layers = 1;
  const model_weights other = make_dummy_weights(small, dtype::f32, 8);
  std::vector<text> texts;
  {
    const auto executor = make(weights_, &other, invariant(true));
    texts = speculate(*executor, 1, prompts_, 40);
  }
  expect_plain(texts);
}

TEST_P(gpu_pair_drafting, the_leaders_room_for_both_caches_is_everybodys) {
  gpu_executor_options options = test::small_gpu_options();
  options.num_blocks.reset();
  options.kv_bytes = std::size_t{8} << 20;
  const std::size_t both =
      block_bytes(weights_.config, GetParam().leader(), options.block_size) + block_bytes(weights_.config, {}, options.block_size);
  EXPECT_EQ(make(weights_, &weights_, options)->info().num_blocks, static_cast<std::int32_t>(*options.kv_bytes / both));
}

INSTANTIATE_TEST_SUITE_P(groups, gpu_pair_drafting, ::testing::Values(group_shape{"tp", 2, 1}, group_shape{"pp", 1, 2}), label);

} // namespace
} // namespace troupe
