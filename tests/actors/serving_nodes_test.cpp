// Groups whose ranks are placed on nodes, which join, leave, end and are refused.
#include "tests/actors/nodes_fixture.hpp"

namespace troupe {
namespace {

using test::eventually;

using serving_nodes_test = test::nodes_test;

TEST_F(serving_nodes_test, a_group_waits_for_nodes_and_works_across_them) {
  start_head(3, 1, 1);
  ASSERT_TRUE(eventually([&] { return said("waits for slots"); }));
  ASSERT_TRUE(eventually([&] { return group_metric("troupe_group_waits_for_slots", 0) == 1; }));
  auto& a = join("a", 1);
  ASSERT_TRUE(eventually([&] { return said("node a joined"); }));
  auto& b = join("b", 1);
  await_head();
  EXPECT_EQ(a.ranks(), 1);
  EXPECT_EQ(b.ranks(), 1);
  submit_texts(8, 60);
  expect_texts(60);
  EXPECT_TRUE(eventually([&] { return metric("troupe_nodes") == 2 && metric("troupe_node_ranks", "node=\"head\"") == 1; }));
  EXPECT_TRUE(eventually([&] { return group_metric("troupe_group_waits_for_slots", 0) == 0; }));
}

TEST_F(serving_nodes_test, a_lost_node_is_replaced_by_a_spare_under_load) {
  start_head(2, 1, 0, {"--step-us", "500"});
  join("a", 1);
  join("b", 1);
  await_head();
  submit_texts(6, 300);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  join("spare", 1);
  ASSERT_TRUE(eventually([&] { return said("node spare joined"); }));
  lose("a");
  expect_texts(300);
  EXPECT_TRUE(said("node a lost")) << lines();
  EXPECT_EQ(metric("troupe_node_losses_total"), 1);
  EXPECT_TRUE(eventually([&] { return metric("troupe_node_missing", "node=\"a\"") == 1; }));
}

TEST_F(serving_nodes_test, a_group_without_slots_waits_for_its_node_to_come_back) {
  start_head(2, 1, 1, {"--step-us", "500"});
  join("a", 1);
  await_head();
  submit_texts(4, 200);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  lose("a");
  ASSERT_TRUE(eventually([&] { return said("have 1 for"); })) << lines();
  EXPECT_TRUE(server->status().ready) << "requests queue";
  EXPECT_TRUE(eventually([&] { return metric("troupe_node_missing", "node=\"a\"") == 1; }));
  EXPECT_TRUE(eventually([&] { return group_metric("troupe_group_waits_for_slots", 0) == 1; }));
  join("a", 1);
  expect_texts(200);
  EXPECT_TRUE(eventually([&] { return metric("troupe_node_missing", "node=\"a\"") == 0; })) << "it is back";
}

TEST_F(serving_nodes_test, a_node_drains_under_load_to_a_spare) {
  start_head(2, 1, 1, {"--step-us", "500"});
  auto& a = join("a", 1);
  await_head();
  join("b", 1);
  ASSERT_TRUE(eventually([&] { return said("node b joined"); }));
  submit_texts(4, 300);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(10));
  a.leave();
  ASSERT_TRUE(eventually([&] { return a.result().has_value(); })) << lines();
  EXPECT_EQ(a.result()->how, actors::membership_end::left);
  EXPECT_EQ(a.ranks(), 0);
  expect_texts(300);
  EXPECT_EQ(metric("troupe_node_losses_total"), 0);
  EXPECT_EQ(metric("troupe_node_drains_total"), 1);
  EXPECT_EQ(metric("troupe_node_missing", "node=\"a\""), 0);
}

TEST_F(serving_nodes_test, a_node_whose_group_has_nowhere_to_go_keeps_it_until_another_comes) {
  start_head(1, 1, 0, {"--step-us", "500"});
  auto& a = join("a", 1);
  await_head();
  submit_texts(2, 300);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  a.leave();
  ASSERT_TRUE(eventually([&] { return said("it goes on there"); }));
  EXPECT_FALSE(a.result());
  EXPECT_EQ(metric("troupe_node_leaving", "node=\"a\""), 1);
  join("b", 1);
  ASSERT_TRUE(eventually([&] { return a.result().has_value(); })) << lines();
  expect_texts(300);
}

TEST_F(serving_nodes_test, a_node_that_ends_while_it_waits_to_leave_is_a_loss_but_not_missed) {
  start_head(1, 1, 0, {"--step-us", "500"});
  auto& a = join("a", 1);
  await_head();
  submit_texts(2, 300);
  ASSERT_TRUE(sinks[0]->wait_for_outputs(5));
  a.leave();
  ASSERT_TRUE(eventually([&] { return said("it goes on there"); }));
  lose("a");
  ASSERT_TRUE(eventually([&] { return metric("troupe_node_leaving", "node=\"a\"") == 0; }));
  EXPECT_EQ(metric("troupe_node_losses_total"), 1);
  join("b", 1);
  ASSERT_TRUE(eventually([&] { return said("node b joined"); }));
  EXPECT_EQ(metric("troupe_node_missing", "node=\"a\""), 0);
  expect_texts(300);
}

TEST_F(serving_nodes_test, a_replica_on_a_node_that_leaves_hands_its_requests_to_another) {
  start_head(1, 2, 1, {"--step-us", "500"});
  auto& a = join("a", 1);
  await_head();
  submit_texts(8, 200);
  ASSERT_TRUE(sinks[7]->wait_for_outputs(5));
  a.leave();
  ASSERT_TRUE(eventually([&] { return a.result().has_value(); })) << lines();
  expect_texts(200);
}

TEST_F(serving_nodes_test, a_rank_that_dies_on_a_node_is_told_with_its_cause) {
  start_head(2, 1, 0, {"--step-us", "200", "--rank", "1", "--abort-on", std::to_string('Z')});
  join("a", 1);
  join("b", 1);
  await_head();
  submit_texts(4, 60);
  auto fatal = submit(request("Z", 60));
  ASSERT_TRUE(fatal->wait());
  ASSERT_TRUE(fatal->failed) << "the crash is the request's doing, wherever it was";
  expect_texts(60);
  EXPECT_TRUE(said("exit code 77")) << lines();
}

TEST_F(serving_nodes_test, who_does_not_fit_is_told_why_and_harms_nobody) {
  start_head(1, 1, 1);
  await_head();
  const auto refused = [&](actors::node_parts parts, actors::membership_end how) {
    auto& stay = join(std::move(parts));
    EXPECT_TRUE(eventually([&] { return stay.result().has_value(); }));
    EXPECT_EQ(stay.result()->how, how) << stay.result()->reason;
    return stay.result()->reason;
  };
  auto far = describe("far", 1);
  far.about.loopback = false;
  far.about.address = "10.0.0.1";
  EXPECT_NE(refused(std::move(far), actors::membership_end::refused).find("10.0.0.1"), std::string::npos);
  EXPECT_NE(refused(describe("a b", 1), actors::membership_end::refused).find("\"a b\""), std::string::npos);
  EXPECT_NE(refused(describe("head", 1), actors::membership_end::refused).find("head"), std::string::npos);
  join("a", 1);
  ASSERT_TRUE(eventually([&] { return said("node a joined"); }));
  EXPECT_NE(refused(describe("a", 1), actors::membership_end::passing).find("member already"), std::string::npos);
  auto other = describe("b", 1);
  other.prepare = [](const actors::head_description&) -> actors::worker_plan { throw std::runtime_error("another model"); };
  EXPECT_EQ(refused(std::move(other), actors::membership_end::refused), "another model");
  EXPECT_TRUE(eventually([&] { return said("another model"); }));
  submit_texts(2, 20);
  expect_texts(20);
}

TEST_F(serving_nodes_test, a_node_ends_its_ranks_when_the_head_is_gone) {
  start_head(1, 1, 0);
  auto& a = join("a", 1);
  await_head();
  EXPECT_EQ(a.ranks(), 1);
  server->stop();
  server.reset();
  ASSERT_TRUE(eventually([&] { return a.result().has_value(); }));
  EXPECT_EQ(a.result()->how, actors::membership_end::lost);
  EXPECT_EQ(test::children_of_this_process(), 0);
}

} // namespace
} // namespace troupe
