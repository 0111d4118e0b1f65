// From a plan to the device's arrays; needs no GPU.
#include "models/gpu_step.hpp"

#include <gtest/gtest.h>

namespace troupe {
namespace {

using work = gpu::sampling_row::work;

class gpu_step_layout : public ::testing::Test {
 protected:
  gpu_step_layout() : slots_(info()) {
    plan_.epoch = 1;
    for (slot_id slot = 0; slot < 4; ++slot) {
      sampling_params params;
      if (slot == 3) params.frequency_penalty = 0.5F;
      plan_.opened.push_back({slot, 20, params});
      plan_.grants.push_back({slot, 0, {4 * slot, 4 * slot + 1, 4 * slot + 2}});
      prefill(slot, 0, tokens(20), true);
    }
    take();
  }
  static executor_info info() {
    executor_info info;
    info.block_size = 16;
    info.num_blocks = 16;
    info.max_num_seqs = 4;
    info.max_batched_tokens = 128;
    info.max_model_len = 64;
    info.vocab_size = 1000;
    info.max_verify_tokens = 16;
    return info;
  }
  static std::vector<token_id> tokens(std::int32_t count) {
    std::vector<token_id> out;
    for (std::int32_t i = 0; i < count; ++i) out.push_back(100 + i);
    return out;
  }
  work_item& add(slot_id slot, work_kind kind, std::int32_t first, std::int32_t count, bool sample) {
    work_item item;
    item.slot = slot;
    item.kind = kind;
    item.first_position = first;
    item.token_count = count;
    item.sample = sample;
    plan_.items.push_back(item);
    return plan_.items.back();
  }
  work_item& prefill(slot_id slot, std::int32_t first, const std::vector<token_id>& carried, bool sample) {
    plan_.tokens.insert(plan_.tokens.end(), carried.begin(), carried.end());
    return add(slot, work_kind::prefill, first, static_cast<std::int32_t>(carried.size()), sample);
  }
  void take() {
    ++plan_.step;
    const auto breach = slots_.take(plan_);
    ASSERT_FALSE(breach) << *breach;
    lay_out(plan_, slots_, step_);
    const step_plan next{};
    plan_.closed = next.closed, plan_.opened = next.opened, plan_.grants = next.grants, plan_.copies = next.copies;
    plan_.items.clear(), plan_.tokens.clear();
  }

  slot_table slots_;
  step_plan plan_;
  gpu_step step_;
};

TEST_F(gpu_step_layout, opening_lists_tables_and_counts_prompts_of_slots_with_penalties_alone) {
  EXPECT_EQ(step_.opened.size(), 4U);
  EXPECT_EQ(step_.tables.size(), 12U);
  EXPECT_EQ(step_.forgotten, std::vector<slot_id>{3});
  ASSERT_EQ(step_.counted.size(), 20U);
  EXPECT_EQ(step_.counted[0].slot, 3);
  EXPECT_EQ(step_.counted[0].is_output, 0);
  EXPECT_EQ(step_.decode_rows, 0);
  EXPECT_EQ(step_.spans.size(), 4U);
}

TEST_F(gpu_step_layout, decode_rows_come_first_and_items_keep_the_plans_order) {
  add(2, work_kind::verify, 20, 3, true);
  plan_.tokens = {7, 8};
  add(0, work_kind::decode, 20, 1, true);
  add(1, work_kind::decode, 20, 1, true);
  take();
  EXPECT_EQ(step_.decode_rows, 2);
  ASSERT_EQ(step_.rows.size(), 5U);
  EXPECT_EQ(step_.rows[0].slot, 0);
  EXPECT_LT(step_.rows[0].token, 0) << "the slot's last sample";
  EXPECT_EQ(step_.rows[2].slot, 2);
  EXPECT_LT(step_.rows[2].token, 0);
  EXPECT_EQ(step_.rows[3].token, 7);
  EXPECT_EQ(step_.rows[4].position, 22);
  ASSERT_EQ(step_.items.size(), 3U);
  EXPECT_EQ(step_.items[0].slot, 2);
  EXPECT_EQ(step_.items[0].draws, 3);
  EXPECT_EQ(step_.items[0].first_head, 2);
  EXPECT_EQ(step_.items[1].first_head, 0);
  EXPECT_EQ(step_.heads[3].sampling.kind, work::draw_uncounted);
  EXPECT_EQ(step_.heads[3].sampling.drafts, 1);
  EXPECT_TRUE(step_.verifies);
  EXPECT_EQ(slots_[0].position, 21);
  EXPECT_FALSE(slots_[2].position) << "known when its result is";
}

TEST_F(gpu_step_layout, scored_chunks_list_targets_and_a_refill_counts_outputs) {
  plan_.closed = {3};
  sampling_params params;
  params.presence_penalty = 1;
  plan_.opened.push_back({3, 10, params});
  plan_.grants.push_back({3, 0, {12, 13}});
  prefill(3, 0, tokens(14), true).prompt_logprobs = 5; // 10 of the prompt, 4 outputs
  take();
  EXPECT_EQ(step_.items[0].scores, 9);
  EXPECT_EQ(step_.items[0].draws, 1);
  ASSERT_EQ(step_.heads.size(), 10U);
  EXPECT_EQ(step_.heads[0].sampling.target, 101);
  EXPECT_EQ(step_.heads[8].sampling.target, 109);
  EXPECT_EQ(step_.heads[8].sampling.alternatives, 5);
  EXPECT_EQ(step_.heads[9].row, 13);
  EXPECT_EQ(step_.heads[9].sampling.position, 14);
  EXPECT_EQ(step_.counted[9].is_output, 0);
  EXPECT_EQ(step_.counted[10].is_output, 1);
  EXPECT_TRUE(step_.reports);
}

TEST_F(gpu_step_layout, a_bias_that_is_listed_twice_counts_twice) {
  plan_.closed = {0};
  sampling_params params;
  params.logit_bias = {{5, 1.0F}, {6, 2.0F}, {5, 3.0F}};
  params.min_tokens = 1;
  params.suppressed = {9};
  plan_.opened.push_back({0, 20, params});
  take();
  ASSERT_EQ(step_.biases.size(), 2U);
  EXPECT_EQ(step_.biases[0].entry, (token_bias{5, 4.0F}));
  EXPECT_EQ(step_.opened[0].sampling.biases, 2);
  EXPECT_EQ(step_.suppressed[0].entry.token, 9);
}

TEST(gpu_step, says_what_is_beyond_the_device) {
  step_plan plan;
  EXPECT_FALSE(beyond_device(plan));
  sampling_params params;
  params.top_logprobs = 21;
  plan.opened.push_back({3, 5, params});
  EXPECT_EQ(beyond_device(plan), "slot 3 asks for 21 logprobs of a token, the device takes 20");
}

} // namespace
} // namespace troupe
