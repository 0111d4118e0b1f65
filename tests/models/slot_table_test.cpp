#include "models/slot_table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace troupe {
namespace {

executor_info small() { return {4, 10, 3, 16, 32, 50, 4}; } // block of 4, 10 blocks, 3 slots, 16 rows, 32 positions, 50 ids, 4 to verify

// Slot 0 has sampled after a prompt of 6 tokens and holds blocks 0 and 1; slot 1 is open with block 2 and has done nothing.
step_plan opening() {
  step_plan plan{1, 1, {}, {}, {}, {}, {}, {}};
  plan.opened = {{0, 6, {}}, {1, 3, {}}};
  plan.grants = {{0, 0, {0, 1}}, {1, 0, {2}}};
  plan.items = {{0, work_kind::prefill, 0, 6, true, std::nullopt}};
  plan.tokens = {1, 2, 3, 4, 5, 6};
  return plan;
}

slot_table after_opening() {
  slot_table table(small());
  EXPECT_EQ(table.take(opening()), std::nullopt);
  table[0].position = 6;
  table[0].last_token = 7;
  return table;
}

step_plan next_plan() {
  step_plan plan{1, 2, {}, {}, {}, {}, {}, {}};
  plan.items = {{0, work_kind::decode, 6, 1, true, std::nullopt}, {1, work_kind::prefill, 0, 3, true, std::nullopt}};
  plan.tokens = {1, 2, 3};
  return plan;
}

void open_with(step_plan& plan, const std::function<void(sampling_params&)>& damage) {
  sampling_params sampling;
  damage(sampling);
  plan.opened = {{2, 3, sampling}};
}

struct breach_case {
  const char* name;
  const char* words; // in the reason
  std::function<void(step_plan&)> damage;
};

class protocol_breach : public ::testing::TestWithParam<breach_case> {};

TEST_P(protocol_breach, is_named_and_ends_the_epoch) {
  slot_table table = after_opening();
  step_plan plan = next_plan();
  GetParam().damage(plan);
  const std::optional<std::string> reason = table.take(plan);
  ASSERT_TRUE(reason.has_value());
  EXPECT_NE(reason->find(GetParam().words), std::string::npos) << *reason;
  // Nothing more in this epoch, whatever it says; the next one starts clean.
  step_plan later = next_plan();
  later.step = 3;
  ASSERT_TRUE(table.take(later).has_value());
  step_plan fresh = opening();
  fresh.epoch = 2;
  EXPECT_EQ(table.take(fresh), std::nullopt);
}

const breach_case cases[] = {
    {"step_repeated", "step 1", [](step_plan& p) { p.step = 1; }},
    {"step_skipped", "step 3", [](step_plan& p) { p.step = 3; }},
    {"closed_slot_out_of_range", "slot 3", [](step_plan& p) { p.closed = {3}; }},
    {"closed_slot_negative", "slot -1", [](step_plan& p) { p.closed = {-1}; }},
    {"closed_slot_not_open", "slot 2", [](step_plan& p) { p.closed = {2}; }},
    {"closed_twice", "slot 0",
     [](step_plan& p) {
       p.closed = {0, 0};
     }},
    {"opened_in_use", "in use",
     [](step_plan& p) {
       p.opened = {{1, 3, {}}};
     }},
    {"opened_out_of_range", "slot 3",
     [](step_plan& p) {
       p.opened = {{3, 3, {}}};
     }},
    {"opened_with_no_prompt", "0 prompt tokens",
     [](step_plan& p) {
       p.opened = {{2, 0, {}}};
     }},
    {"opened_with_too_long_a_prompt", "33 prompt tokens",
     [](step_plan& p) {
       p.opened = {{2, 33, {}}};
     }},
    {"opened_with_a_top_p_of_0", "top_p", [](step_plan& p) { open_with(p, [](auto& s) { s.top_p = 0; }); }},
    {"opened_with_a_top_p_above_1", "top_p", [](step_plan& p) { open_with(p, [](auto& s) { s.top_p = 1.5F; }); }},
    {"opened_with_a_top_p_that_is_no_number", "top_p", [](step_plan& p) { open_with(p, [](auto& s) { s.top_p = std::nanf(""); }); }},
    {"opened_with_a_temperature_that_is_no_number", "temperature",
     [](step_plan& p) { open_with(p, [](auto& s) { s.temperature = std::nanf(""); }); }},
    {"opened_with_a_min_p_below_0", "min_p", [](step_plan& p) { open_with(p, [](auto& s) { s.min_p = -0.5F; }); }},
    {"opened_with_a_negative_top_k", "top_k", [](step_plan& p) { open_with(p, [](auto& s) { s.top_k = -1; }); }},
    {"opened_with_a_repetition_penalty_of_0", "repetition_penalty",
     [](step_plan& p) { open_with(p, [](auto& s) { s.repetition_penalty = 0; }); }},
    {"opened_with_a_presence_penalty_of_3", "presence_penalty",
     [](step_plan& p) { open_with(p, [](auto& s) { s.presence_penalty = 3; }); }},
    {"opened_with_a_frequency_penalty_of_minus_3", "frequency_penalty",
     [](step_plan& p) { open_with(p, [](auto& s) { s.frequency_penalty = -3; }); }},
    {"opened_with_negative_top_logprobs", "top_logprobs", [](step_plan& p) { open_with(p, [](auto& s) { s.top_logprobs = -1; }); }},
    {"opened_with_an_infinite_bias", "logit_bias",
     [](step_plan& p) { open_with(p, [](auto& s) {
                          s.logit_bias = {{1, std::numeric_limits<float>::infinity()}};
                        }); }},
    {"granted_to_a_closed_slot", "slot 2",
     [](step_plan& p) {
       p.grants = {{2, 0, {5}}};
     }},
    {"granted_with_a_gap", "has 2",
     [](step_plan& p) {
       p.grants = {{0, 3, {5}}};
     }},
    {"granted_before_the_start", "from -1",
     [](step_plan& p) {
       p.grants = {{0, -1, {5}}};
     }},
    {"granted_block_out_of_range", "block 10",
     [](step_plan& p) {
       p.grants = {{0, 2, {10}}};
     }},
    {"granted_block_negative", "block -1",
     [](step_plan& p) {
       p.grants = {{0, 2, {-1}}};
     }},
    {"granted_too_much", "more blocks",
     [](step_plan& p) {
       p.grants = {{0, 2, {3, 4, 5, 6, 7, 8, 9}}};
     }},
    {"copied_out_of_range", "block 10",
     [](step_plan& p) {
       p.copies = {{1, 10}};
     }},
    {"copied_from_nowhere", "block -4",
     [](step_plan& p) {
       p.copies = {{-4, 1}};
     }},
    {"copied_onto_itself", "block 1",
     [](step_plan& p) {
       p.copies = {{1, 1}};
     }},
    {"work_for_a_closed_slot", "slot 2", [](step_plan& p) { p.items[0].slot = 2; }},
    {"work_for_no_slot", "slot 99", [](step_plan& p) { p.items[0].slot = 99; }},
    {"two_items_for_a_slot", "two items", [](step_plan& p) { p.items[1] = p.items[0]; }},
    {"unknown_kind", "unknown kind", [](step_plan& p) { p.items[0].kind = static_cast<work_kind>(9); }},
    {"no_tokens", "0 tokens", [](step_plan& p) { p.items[1].token_count = 0; }},
    {"negative_tokens", "-3 tokens", [](step_plan& p) { p.items[1].token_count = -3; }},
    {"decode_of_two", "2 tokens", [](step_plan& p) { p.items[0].token_count = 2; }},
    {"decode_without_sampling", "does not sample", [](step_plan& p) { p.items[0].sample = false; }},
    {"decode_without_a_token", "sampled none", [](step_plan& p) { p.items[1] = {1, work_kind::decode, 0, 1, true, std::nullopt}; }},
    {"verify_of_too_many", "at most 4", [](step_plan& p) { p.items[0] = {0, work_kind::verify, 6, 5, true, std::nullopt}; }},
    {"proposals_without_a_draft_model", "is to propose 1", [](step_plan& p) { p.items[0].propose = 1; }},
    {"verify_without_a_token", "sampled none", [](step_plan& p) { p.items[1] = {1, work_kind::verify, 0, 2, true, std::nullopt}; }},
    {"position_skipped", "stands at 6", [](step_plan& p) { p.items[0].first_position = 7; }},
    {"decode_goes_back", "stands at 6", [](step_plan& p) { p.items[0].first_position = 5; }},
    {"prefill_skips", "stands at 6",
     [](step_plan& p) {
       p.items[0] = {0, work_kind::prefill, 7, 1, true, std::nullopt};
       p.tokens = {9, 1, 2, 3};
     }},
    {"position_negative", "position 2", [](step_plan& p) { p.items[1].first_position = -1; }},
    {"position_far_out", "of 32", [](step_plan& p) { p.items[1].first_position = 2147483647; }},
    {"block_missing", "needs block 1",
     [](step_plan& p) {
       p.items[1].token_count = 5;
       p.tokens = {1, 2, 3, 4, 5};
     }},
    {"block_written_for_two", "block 1",
     [](step_plan& p) {
       p.grants = {{1, 0, {1}}};
     }},
    {"block_twice_in_a_table", "written already",
     [](step_plan& p) {
       p.grants = {{1, 0, {4, 4}}};
       p.items[1].token_count = 5;
       p.tokens = {1, 2, 3, 4, 5};
     }},
    {"too_many_rows", "16 rows",
     [](step_plan& p) {
       p.opened = {{2, 20, {}}};
       p.grants = {{2, 0, {4, 5, 6, 7, 8}}};
       p.items[1] = {2, work_kind::prefill, 0, 16, false, std::nullopt};
       p.tokens.assign(16, 1);
     }},
    {"token_missing", "2 tokens", [](step_plan& p) { p.tokens.pop_back(); }},
    {"token_left_over", "4 tokens", [](step_plan& p) { p.tokens.push_back(1); }},
    {"token_outside_the_vocabulary", "token 50", [](step_plan& p) { p.tokens[1] = 50; }},
    {"token_negative", "token -1", [](step_plan& p) { p.tokens[1] = -1; }},
    {"score_target_missing", "2 tokens",
     [](step_plan& p) {
       p.items[1].token_count = 2;
       p.items[1].sample = false;
       p.items[1].prompt_logprobs = 0;
       p.tokens = {1, 2};
     }},
    {"negative_alternatives", "negative", [](step_plan& p) { p.items[1].prompt_logprobs = -1; }},
    {"penalties_over_unknown_tokens", "penalties",
     [](step_plan& p) {
       sampling_params sampling;
       sampling.presence_penalty = 1;
       p.opened = {{2, 8, sampling}};
       p.grants = {{2, 0, {4, 5}}};
       p.items[1] = {2, work_kind::prefill, 4, 3, false, std::nullopt};
     }},
};

INSTANTIATE_TEST_SUITE_P(slot_table, protocol_breach, ::testing::ValuesIn(cases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(slot_table, a_sound_plan_passes_and_a_slot_may_close_and_open_in_one_plan) {
  slot_table table = after_opening();
  step_plan plan = next_plan();
  plan.closed = {1};
  plan.opened = {{1, 5, {}}};
  plan.grants = {{1, 0, {2, 9}}};
  plan.items[1] = {1, work_kind::prefill, 0, 4, false, 2}; // scores, and one more token is the last row's target
  plan.tokens = {1, 2, 3, 4, 5};
  EXPECT_EQ(table.take(plan), std::nullopt);
  EXPECT_EQ(table[1].prompt_tokens, 5);
  EXPECT_EQ(table[1].blocks, (std::vector<block_id>{2, 9}));
}

TEST(slot_table, work_that_was_planned_before_a_fault_was_known_is_no_breach) {
  slot_table table = after_opening();
  table[0].faulted = true; // in the step after: its position stands where that step began
  table[0].last_token.reset();
  step_plan plan = next_plan();
  plan.items[0].first_position = 7;
  EXPECT_EQ(table.take(plan), std::nullopt);
}

TEST(slot_table, a_plan_of_an_older_epoch_is_refused_and_harms_nothing) {
  slot_table table(small());
  step_plan plan = opening();
  plan.epoch = 5;
  ASSERT_EQ(table.take(plan), std::nullopt);
  ASSERT_TRUE(table.take(opening()).has_value());
  step_plan next{5, 2, {}, {}, {}, {}, {}, {}};
  next.items = {{1, work_kind::prefill, 0, 3, false, std::nullopt}};
  next.tokens = {1, 2, 3};
  EXPECT_EQ(table.take(next), std::nullopt);
}

TEST(slot_table, a_draft_models_chunk_may_start_before_what_it_guessed_unless_it_counts_for_penalties) {
  for (const float penalty : {1.0F, 1.5F}) {
    slot_table table = after_opening();
    table[0].sampling.repetition_penalty = penalty;
    step_plan plan = next_plan();
    plan.items[0] = {0, work_kind::prefill, 4, 3, true, std::nullopt};
    plan.tokens = {5, 6, 7, 1, 2, 3};
    EXPECT_EQ(table.take(plan).has_value(), penalty != 1.0F);
  }
}

TEST(slot_table, a_grant_may_replace_blocks_as_copy_on_write_does) {
  slot_table table = after_opening();
  step_plan plan = next_plan();
  plan.grants = {{0, 1, {7, 8}}};
  plan.copies = {{1, 7}};
  EXPECT_EQ(table.take(plan), std::nullopt);
  EXPECT_EQ(table[0].blocks, (std::vector<block_id>{0, 7, 8}));
}

} // namespace
} // namespace troupe
