#include "simulation/fleet.hpp"

#include <gtest/gtest.h>

#include "simulation/h200.hpp"

namespace troupe::simulation {
namespace {

fleet_config h200_fleet(std::int32_t nodes, routing route) {
  fleet_config f;
  f.table = h200_table(*find_model_shape("llama-3.1-8b"), {}, 128, 2048).value();
  f.nodes = nodes;
  f.gpus_per_node = 2;
  f.route = route;
  f.wanted = {500e6, 20e6};
  return f;
}

TEST(H200Table, AgreesWithTheFloorsThatWereMeasured) {
  const device_table t = h200_table(*find_model_shape("llama-3.1-8b"), {}, 256, 2048).value();
  // Measured chain of matrix-vector kernels, batch 1, no context: 3.56 ms. Floors of (weights + KV) / bandwidth at 1,024 tokens of
  // context: 3.26, 3.46, 4.15, 6.92 ms at batch 1, 8, 32, 128; the table adds kernel boundaries of 0.32 ms.
  EXPECT_NEAR(t.decode.at(1, 0) / 1e6, 3.56, 0.04);
  const double floors[][2] = {{1, 3.26}, {8, 3.46}, {32, 4.15}, {128, 6.92}};
  for (const auto& [rows, ms] : floors) EXPECT_NEAR(t.decode.at(rows, 1024) / 1e6, ms + 0.32, 0.02 * ms);
  EXPECT_NEAR(t.prefill.at(2048, 0) / 1e6, 2 * 7.505e9 * 2048 / 800e12 * 1e3, 4);         // bound by arithmetic
  EXPECT_FALSE(h200_table(*find_model_shape("llama-3.1-70b"), {1, 1, false}, 256, 2048)); // 141 GB of weights
  EXPECT_TRUE(h200_table(*find_model_shape("llama-3.1-70b"), {2, 1, false}, 256, 2048));
}

TEST(H200Table, TensorParallelismShortensAStepAndAPipelineDoesNot) {
  const model_shape big = *find_model_shape("llama-3.1-70b");
  const device_table tp2 = h200_table(big, {2, 1, false}, 256, 2048).value(), tp8 = h200_table(big, {8, 1, false}, 256, 2048).value();
  const device_table pp = h200_table(big, {2, 4, true}, 256, 2048).value();
  EXPECT_LT(tp8.decode.at(16, 1024), 0.4 * tp2.decode.at(16, 1024));
  EXPECT_GT(pp.decode.at(16, 1024), tp2.decode.at(16, 1024));
  EXPECT_EQ(pp.limits.max_num_seqs, 64); // a lane's share
}

TEST(Fleet, FastAndExactAgree) {
  for (const routing route : {routing::round_robin, routing::least_loaded}) {
    fleet_config f = h200_fleet(2, route);
    const workload chat = *find_workload("sharegpt");
    const fleet_report fast = simulate_fleet(f, chat, 40, 20);
    f.exact = true;
    const fleet_report exact = simulate_fleet(f, chat, 40, 20);
    EXPECT_EQ(fast.offered, exact.offered);
    EXPECT_EQ(fast.total.finished, exact.total.finished);
    EXPECT_EQ(fast.total.steps, exact.total.steps);
    EXPECT_EQ(fast.total.good, exact.total.good);
    EXPECT_NEAR(fast.tokens_per_second() / exact.tokens_per_second(), 1, 1e-6);
  }
}

TEST(Fleet, ThreadsDoNotChangeTheAnswer) {
  fleet_config f = h200_fleet(8, routing::round_robin);
  const workload code = *find_workload("azure-code");
  f.threads = 1;
  const fleet_report one = simulate_fleet(f, code, 100, 10);
  f.threads = 4;
  const fleet_report four = simulate_fleet(f, code, 100, 10);
  EXPECT_EQ(one.total.finished, one.offered);
  EXPECT_EQ(one.total.steps, four.total.steps);
  EXPECT_EQ(one.total.e2e.quantile(0.5), four.total.e2e.quantile(0.5));
}

TEST(Fleet, LeastLoadedBeatsRoundRobinWhereRequestsQueueForSlots) {
  const workload chat = *find_workload("sharegpt");
  fleet_config f = h200_fleet(8, routing::round_robin);
  f.table.limits.max_num_seqs = 4;
  const fleet_report turn = simulate_fleet(f, chat, 3 * 16 - 8, 120);
  f.route = routing::least_loaded;
  const fleet_report least = simulate_fleet(f, chat, 3 * 16 - 8, 120);
  EXPECT_LT(least.total.ttft.quantile(0.99), 0.7 * turn.total.ttft.quantile(0.99));
}

TEST(Fleet, PrefixAwareRoutingFindsMoreCachedTokens) {
  workload w = *find_workload("sharegpt");
  w.prefixes = 400;
  w.prefix_tokens = 4000;
  const fleet_report least = simulate_fleet(h200_fleet(8, routing::least_loaded), w, 60, 30);
  const fleet_report aware = simulate_fleet(h200_fleet(8, routing::prefix_aware), w, 60, 30);
  EXPECT_GT(aware.total.cached_tokens, 1.2 * least.total.cached_tokens);
  EXPECT_LT(aware.total.ttft.mean(), least.total.ttft.mean());
}

TEST(Fleet, TwiceTheNodesCarryTwiceTheTraffic) {
  const workload chat = *find_workload("sharegpt");
  const fleet_report one = simulate_fleet(h200_fleet(1, routing::round_robin), chat, 20, 60);
  const fleet_report four = simulate_fleet(h200_fleet(4, routing::round_robin), chat, 80, 60);
  EXPECT_NEAR(four.tokens_per_second() / one.tokens_per_second(), 4, 0.4);
  EXPECT_GT(four.cost_per_million_tokens(2), 0);
}

} // namespace
} // namespace troupe::simulation
