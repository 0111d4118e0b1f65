#include "actors/placement.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "actors/slot_board.hpp"

namespace troupe::actors {
namespace {

std::vector<std::int32_t> numbers(std::int32_t count) {
  std::vector<std::int32_t> all;
  for (std::int32_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

std::vector<node_number> nodes_of(const placement& placed) {
  std::vector<node_number> nodes;
  for (const place& p : placed.ranks) nodes.push_back(p.node);
  return nodes;
}

TEST(placement, a_group_goes_whole_to_the_machine_that_it_fills_best) {
  const auto placed = place_group({{0, numbers(8)}, {1, numbers(4)}, {2, numbers(5)}}, 2, 2);
  ASSERT_TRUE(placed);
  EXPECT_EQ(nodes_of(*placed), (std::vector<node_number>{1, 1, 1, 1}));
  EXPECT_FALSE(placed->stages_split);
}

TEST(placement, stages_go_across_machines_and_ranks_of_a_stage_stay_together) {
  const auto placed = place_group({{2, numbers(2)}, {0, numbers(1)}, {1, numbers(3)}}, 2, 2);
  ASSERT_TRUE(placed);
  EXPECT_EQ(nodes_of(*placed), (std::vector<node_number>{2, 2, 1, 1}));
  EXPECT_FALSE(placed->stages_split);
}

TEST(placement, as_many_stages_as_possible_share_a_machine) {
  const auto placed = place_group({{1, numbers(2)}, {2, numbers(4)}, {3, numbers(2)}}, 2, 3);
  ASSERT_TRUE(placed);
  EXPECT_EQ(nodes_of(*placed), (std::vector<node_number>{2, 2, 2, 2, 1, 1}));
}

TEST(placement, a_stage_is_split_only_where_no_machine_has_room_for_it) {
  const auto placed = place_group({{1, numbers(1)}, {2, numbers(1)}}, 2, 1);
  ASSERT_TRUE(placed);
  EXPECT_EQ(nodes_of(*placed), (std::vector<node_number>{1, 2}));
  EXPECT_TRUE(placed->stages_split);
}

TEST(placement, too_few_slots_are_none) {
  EXPECT_FALSE(place_group({{1, numbers(1)}, {2, numbers(2)}}, 2, 2));
  EXPECT_FALSE(place_group({}, 1, 1));
}

TEST(placement, any_world_gives_each_rank_a_slot_of_its_own_that_is_free) {
  std::mt19937 random(1);
  for (int world = 0; world < 2'000; ++world) {
    std::vector<free_slots> free;
    std::int32_t count = 0;
    for (node_number node = 0; node < 1 + random() % 6; ++node) {
      free.push_back({node, {}});
      for (std::int32_t slot = 0; slot < 9; ++slot) {
        if (random() % 2 == 0) free.back().slots.push_back(slot);
      }
      count += static_cast<std::int32_t>(free.back().slots.size());
    }
    const auto tp = static_cast<std::int32_t>(1 + random() % 4);
    const auto stages = static_cast<std::int32_t>(1 + random() % 4);
    const auto placed = place_group(free, tp, stages);
    ASSERT_EQ(placed.has_value(), count >= tp * stages);
    if (!placed) continue;
    std::set<std::pair<node_number, std::int32_t>> taken;
    for (const place& p : placed->ranks) {
      const auto& slots = free.at(p.node).slots;
      EXPECT_NE(std::find(slots.begin(), slots.end(), p.slot), slots.end());
      EXPECT_TRUE(taken.insert({p.node, p.slot}).second);
    }
    ASSERT_EQ(taken.size(), static_cast<std::size_t>(tp * stages));
    if (placed->stages_split) continue;
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      for (std::int32_t t = 1; t < tp; ++t) {
        EXPECT_EQ(placed->ranks[static_cast<std::size_t>(stage * tp + t)].node, placed->ranks[static_cast<std::size_t>(stage * tp)].node);
      }
    }
  }
}

TEST(slot_board, replicas_never_share_a_slot_and_give_theirs_back) {
  slot_board board(2, 1, 2, 0);
  ASSERT_TRUE(board.claim(0));
  EXPECT_FALSE(board.claim(1));
  board.add(1, "node-1", 2);
  const auto second = board.claim(1);
  ASSERT_TRUE(second);
  EXPECT_EQ(nodes_of(*second), (std::vector<node_number>{1, 1}));
  EXPECT_EQ(board.used(1), 2);
  EXPECT_EQ(board.where_is(0), "rank 0 on head, rank 1 on head");
  EXPECT_EQ(board.where_is(1), "rank 0 on node-1, rank 1 on node-1");
  board.release(0);
  EXPECT_EQ(board.where_is(0), "");
  EXPECT_EQ(board.used(this_machine), 0);
  EXPECT_TRUE(board.could_claim(2));
}

TEST(slot_board, a_claim_stands_in_place_of_the_one_before) {
  slot_board board(1, 2, 2, 0);
  ASSERT_TRUE(board.claim(0));
  EXPECT_TRUE(board.could_claim(0)) << "its own slots are free to itself";
  EXPECT_TRUE(board.claim(0));
  EXPECT_EQ(board.used(this_machine), 2);
}

TEST(slot_board, who_leaves_gets_no_more_ranks_and_keeps_those_it_has) {
  slot_board board(1, 1, 0, 0);
  board.add(1, "node-1", 1);
  ASSERT_TRUE(board.claim(0));
  board.set_leaving(1);
  EXPECT_EQ(board.used(1), 1);
  EXPECT_FALSE(board.could_claim(0));
  board.add(2, "node-2", 1);
  ASSERT_TRUE(board.claim(0));
  EXPECT_EQ(board.used(1), 0);
  EXPECT_EQ(board.used(2), 1);
}

TEST(slot_board, a_machine_that_is_lost_takes_its_slots_along) {
  slot_board board(1, 1, 0, 0);
  board.add(1, "node-1", 4);
  board.remove(1);
  EXPECT_FALSE(board.claim(0));
  EXPECT_EQ(board.where_is(0), "");
  EXPECT_EQ(board.slots_in_all(), 0);
}

TEST(slot_board, nothing_is_placed_before_all_awaited_machines_came_once) {
  slot_board board(1, 1, 4, 2);
  EXPECT_FALSE(board.claim(0));
  board.add(1, "node-1", 1);
  EXPECT_FALSE(board.claim(0));
  board.add(2, "node-2", 1);
  EXPECT_TRUE(board.claim(0));
  board.remove(1);
  EXPECT_TRUE(board.claim(0)) << "they are awaited at the start alone";
}

} // namespace
} // namespace troupe::actors
