// The fast replica against the real scheduler: the same plans at the same times while the KV pool suffices.
#include "simulation/replica.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "simulation/h200.hpp"

namespace troupe::simulation {
namespace {

// A small device whose costs bend with rows and with context.
device_table small_table(std::int32_t blocks) {
  device_table t;
  t.limits = {16, blocks, 24, 64, 4096, 100};
  t.decode = {{1, 8, 64}, {0, 100, 4096}, {1e6, 1.2e6, 9e6, 2e6, 2.5e6, 30e6, 9e6, 11e6, 90e6}};
  t.prefill = {{1, 64}, {0, 4096}, {1e6, 3e6, 8e6, 40e6}};
  t.shared_ns = 0.5e6;
  return t;
}

outcomes run(replica& r, const workload& what, double rate, int count, std::uint64_t seed) {
  traffic_source source(what, rate, seed);
  for (int i = 0; i < count; ++i) r.add(source.next(), 0);
  r.advance(std::numeric_limits<double>::infinity());
  EXPECT_EQ(r.load(), 0);
  return r.results();
}

workload mixed() {
  workload w;
  w.prompt = {60, 0.8, 1, 600};
  w.output = {40, 0.9, 1, 400};
  return w;
}

TEST(FastReplica, MakesTheSamePlansAtTheSameTimesAsTheRealScheduler) {
  device_table table = small_table(4000);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    table.serving = seed % 5 < 2 ? serving_cost{4e6, 0.3e6, 0.02e6} : serving_cost{};
    workload w = mixed();
    w.burstiness = seed % 3 == 0 ? 0.2 : 1;
    const double rate = seed % 2 == 0 ? 2 : 12; // half idle, and with a queue
    const replica_config config{&table, 50, seed % 4 == 0 ? 3e6 : 0, {200e6, 5e6}};
    const outcomes exact = run(*make_exact_replica(config), w, rate, 300, seed);
    const outcomes fast = run(*make_fast_replica(config), w, rate, 300, seed);
    EXPECT_EQ(fast.steps, exact.steps) << seed;
    EXPECT_EQ(fast.finished, exact.finished) << seed;
    EXPECT_EQ(fast.rejected, exact.rejected) << seed;
    EXPECT_EQ(fast.good, exact.good) << seed;
    EXPECT_EQ(fast.output_tokens, exact.output_tokens) << seed;
    EXPECT_NEAR(fast.last_ns / exact.last_ns, 1, 1e-9) << seed;
    EXPECT_NEAR(fast.busy_ns / exact.busy_ns, 1, 1e-9) << seed;
    EXPECT_NEAR(fast.ttft.mean() / exact.ttft.mean(), 1, 1e-9) << seed;
    EXPECT_NEAR(fast.e2e.mean() / exact.e2e.mean(), 1, 1e-9) << seed;
    EXPECT_EQ(fast.itl.count(), exact.itl.count()) << seed;
    EXPECT_NEAR(fast.itl.mean() / exact.itl.mean(), 1, 1e-9) << seed;
    EXPECT_NEAR(fast.itl.quantile(0.99) / exact.itl.quantile(0.99), 1, 0.05) << seed;
  }
}

TEST(FastReplica, StaysCloseWhereThePoolRunsOut) {
  const device_table table = small_table(70);
  double worst = 0;
  std::uint64_t preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const replica_config config{&table, 500, 0, {}};
    const outcomes exact = run(*make_exact_replica(config), mixed(), 25, 300, seed);
    const outcomes fast = run(*make_fast_replica(config), mixed(), 25, 300, seed);
    preemptions += exact.preemptions;
    EXPECT_EQ(fast.finished, exact.finished);
    EXPECT_EQ(fast.output_tokens, exact.output_tokens);
    worst = std::max({worst, std::abs(fast.last_ns / exact.last_ns - 1), std::abs(fast.e2e.mean() / exact.e2e.mean() - 1)});
  }
  EXPECT_GT(preemptions, 20U);
  EXPECT_LT(worst, 0.05); // 1,534 preemptions among 6,000 requests
}

TEST(Replica, WaitsForWhatServingAdds) {
  device_table table = small_table(4000);
  const double prefill = table.prefill.at(64, 0), decode = table.decode.at(1, 64);
  table.serving = {4e6, 0.3e6, 0.02e6};
  const replica_config config{&table, 50, 1e6, {}};
  for (const auto& replica : {make_exact_replica(config), make_fast_replica(config)}) {
    replica->add({0, 64, 2, 0}, 0);
    replica->advance(1e12);
    const outcomes& made = replica->results();
    EXPECT_NEAR(made.ttft.mean(), 1e6 + 4e6 + prefill + 0.3e6, 1);
    EXPECT_NEAR(made.itl.mean(), decode + 0.32e6, 1);
    EXPECT_NEAR(made.busy_ns, prefill + decode + 0.62e6, 1);
  }
}

TEST(FastReplica, CachedTokensAreNotComputed) {
  const device_table table = small_table(4000);
  const replica_config config{&table, 50, 0, {}};
  const auto all = make_fast_replica(config), none = make_fast_replica(config);
  all->add({0, 600, 1, 1}, 0);
  none->add({0, 600, 1, 1}, 599);
  all->advance(1e12);
  none->advance(1e12);
  EXPECT_EQ(all->results().steps, 10); // chunks of 64
  EXPECT_EQ(none->results().steps, 1);
  EXPECT_EQ(none->results().cached_tokens, 599);
}

} // namespace
} // namespace troupe::simulation
