#include "apps/bench/regress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json.hpp"

namespace troupe::bench {
namespace {

using testing::HasSubstr;

value parse(const std::string& text) {
  const auto out = json::parse(text);
  EXPECT_TRUE(out) << text;
  return out ? *out : value();
}

struct made_up {
  std::string kind = "latency";
  std::string gpu = "NVIDIA H200";
  double read = 4.6e12;
  std::int64_t hidden = 4096;
  double step_ms = 3.6, p99_ms = 3.7, over_floor = 1.10, share = 0.70;
  std::string decode_of_batch_8 = R"(,{"batch":8,"context":1024.4,"median_ms":4.0,"p99_ms":4.1,"over_floor":1.15})";

  value result() const {
    const std::string read_rate = read > 0 ? std::to_string(read) : "null";
    return parse(R"({"kind":")" + kind + R"(","device":"cuda","machine":{"cpu":"x","cores":16,"gpu":")" + gpu +
                 R"("},"ceilings":{"read_bytes_per_second":)" + read_rate + R"(,"matmul_flops_per_second":8e14},)" +
                 R"("model":{"shape":{"hidden_size":)" + std::to_string(hidden) + R"(},"streamed_weight_bytes":15000000000},)" +
                 R"("decode":[{"batch":1,"context":1024.2,"median_ms":)" + std::to_string(step_ms) + R"(,"p99_ms":)" +
                 std::to_string(p99_ms) + R"(,"over_floor":)" + std::to_string(over_floor) + "}" + decode_of_batch_8 + "]," +
                 R"("prefill":[{"prompt_tokens":8192,"first_token_median_ms":200.0,"matmul_share":)" + std::to_string(share) + "}]}");
  }
};

regress_report compare(const made_up& before, const made_up& after) { return compare_results(before.result(), after.result(), {}); }

TEST(regress, equal_results_pass) {
  const auto report = compare({}, {});
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.figures.size(), 5U); // two batches with their p99, one prefill
}

TEST(regress, a_slower_machine_is_no_loss) {
  made_up slow;
  slow.read = 2.3e12;
  slow.step_ms = 7.2;
  slow.p99_ms = 7.4;
  EXPECT_TRUE(compare({}, slow).passed());
}

TEST(regress, a_step_that_is_further_from_its_floor_is_a_loss) {
  made_up worse;
  worse.over_floor = 1.10 * 1.06;
  const auto report = compare({}, worse);
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(report.figures.at(0).lost);
  EXPECT_NEAR(report.figures.at(0).worse_by, 0.06, 1e-6);
  EXPECT_THAT(regress_table(report), HasSubstr("LOSS"));
  worse.over_floor = 1.10 * 1.04;
  EXPECT_TRUE(compare({}, worse).passed());
  EXPECT_FALSE(compare_results(made_up{}.result(), worse.result(), {0.03, 0.25}).passed());
}

TEST(regress, a_smaller_share_of_the_peak_is_a_loss_and_a_larger_one_is_not) {
  made_up other;
  other.share = 0.60;
  EXPECT_FALSE(compare({}, other).passed());
  other.share = 0.80;
  EXPECT_TRUE(compare({}, other).passed());
}

TEST(regress, tails_have_their_own_tolerance) {
  made_up other;
  other.p99_ms = 3.7 * 1.2;
  EXPECT_TRUE(compare({}, other).passed());
  other.p99_ms = 3.7 * 1.3;
  EXPECT_FALSE(compare({}, other).passed());
}

TEST(regress, a_missing_figure_fails_and_is_named) {
  made_up without;
  without.decode_of_batch_8 = "";
  const auto report = compare({}, without);
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(regress_table(report), HasSubstr("NEW: decode, batch 8, context 1024 (x floor) is missing"));
  EXPECT_TRUE(compare(without, {}).passed()); // more than before is fine
}

TEST(regress, a_result_without_ceilings_fails) {
  made_up blind;
  blind.read = 0;
  EXPECT_THAT(regress_table(compare({}, blind)), HasSubstr("NEW: no measured read bandwidth"));
}

TEST(regress, other_machines_models_and_kinds_are_not_compared) {
  made_up other;
  other.gpu = "NVIDIA A100";
  EXPECT_THAT(regress_table(compare({}, other)), HasSubstr(R"(the GPUs differ: "NVIDIA H200" and "NVIDIA A100")"));
  EXPECT_FALSE(compare({}, other).passed());
  other = {};
  other.hidden = 2048;
  EXPECT_THAT(regress_table(compare({}, other)), HasSubstr("the models' shapes differ"));
  other = {};
  other.kind = "throughput";
  EXPECT_THAT(regress_table(compare({}, other)), HasSubstr("the kinds of result differ"));
  EXPECT_FALSE(compare_results(parse("{}"), parse("{}"), {}).passed());
}

TEST(regress, throughput_is_compared_by_what_the_ceiling_would_allow) {
  const auto made = [](double tokens, double read, double ratio) {
    return parse(R"({"kind":"throughput","device":"cpu","machine":{"cpu":"x","cores":2},"ceilings":{"read_bytes_per_second":)" +
                 std::to_string(read) + R"(},"model":{"shape":{},"streamed_weight_bytes":1000000},"workload":{"requests":4},)" +
                 R"("throughput":{"output_tokens_per_second":)" + std::to_string(tokens) +
                 R"(},"latency_ms":{"ttft":{"median":5.0},"itl":{"median":2.0}},"itl_p99_over_median":)" + std::to_string(ratio) + "}");
  };
  EXPECT_TRUE(compare_results(made(100, 1e10, 1.5), made(100, 1e10, 1.5), {}).passed());
  EXPECT_FALSE(compare_results(made(100, 1e10, 1.5), made(90, 1e10, 1.5), {}).passed());
  EXPECT_FALSE(compare_results(made(100, 1e10, 1.5), made(100, 1e10, 2.0), {}).passed());
  const auto report = compare_results(made(100, 1e10, 1.5), made(50, 0.5e10, 1.5), {0.05, 10});
  EXPECT_FALSE(report.figures.at(0).lost); // half the rate at half the bandwidth
}

TEST(regress, ablations_are_compared_by_the_full_system) {
  const auto made = [](double full, double other) {
    return parse(R"({"kind":"ablation","device":"cpu","machine":{"cpu":"x","cores":2},"ceilings":{"read_bytes_per_second":1e10},)"
                 R"("model":{"shape":{},"streamed_weight_bytes":1000000},"variants":[{"name":"full","step_median_ms":)" +
                 std::to_string(full) + R"(,"end_to_end_median_ms":50},{"name":"unfused","step_median_ms":)" + std::to_string(other) +
                 R"(,"end_to_end_median_ms":50}]})");
  };
  EXPECT_TRUE(compare_results(made(2, 3), made(2, 9), {}).passed());
  EXPECT_FALSE(compare_results(made(2, 3), made(2.2, 3), {}).passed());
}

} // namespace
} // namespace troupe::bench
