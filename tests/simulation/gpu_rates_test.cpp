#include "simulation/gpu_rates.hpp"

#include <gtest/gtest.h>

#include "simulation/h200.hpp"

namespace troupe::simulation {
namespace {

TEST(GpuRates, SumsOfAsManyAsWereMeasuredTakeTheQuickerWay) {
  const gpu_rates rates;
  EXPECT_EQ(all_reduce_seconds(rates, 1, 1 << 20), 0);
  for (const auto& [bytes, seconds] : rates.at_once) EXPECT_DOUBLE_EQ(all_reduce_seconds(rates, 2, bytes), seconds);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(rates, 2, 16 << 20), 76e-6) << "beyond what is sent at once";
  EXPECT_DOUBLE_EQ(all_reduce_seconds(rates, 2, 10), 2.4e-6) << "level before the first point";
  EXPECT_DOUBLE_EQ(all_reduce_seconds(rates, 2, 32 << 20), 152e-6) << "in proportion behind the last";
}

TEST(GpuRates, SumsOfMoreTakeLonger) {
  const gpu_rates rates;
  for (const double bytes : {8192.0, 262144.0, 4194304.0, 67108864.0}) {
    double before = all_reduce_seconds(rates, 2, bytes);
    for (const std::int32_t gpus : {4, 8}) {
      const double now = all_reduce_seconds(rates, gpus, bytes);
      EXPECT_GE(now, before) << bytes << " " << gpus;
      before = now;
    }
  }
}

// Links of 250 GB/s without latencies, sums in slices beyond 4 MB and all to everybody below: what such a machine of `gpus` measures.
gpu_rates ideal(std::int32_t gpus) {
  gpu_rates rates;
  rates.all_reduce_gpus = gpus;
  rates.at_once.clear();
  rates.in_slices.clear();
  for (double bytes = 1e3; bytes < 1e9; bytes *= 10) {
    if (bytes < 4e6) rates.at_once.emplace_back(bytes, 1e-6 + bytes * (gpus - 1) / 250e9);
    rates.in_slices.emplace_back(bytes, 6e-6 + bytes * 2 * (gpus - 1) / gpus / 250e9);
  }
  return rates;
}

TEST(GpuRates, SumsOfFewerOrMoreThanWereMeasuredComeFromHowBusyAPortIs) {
  for (const std::int32_t measured : {2, 4, 8}) {
    for (const std::int32_t wanted : {2, 4, 8}) {
      const gpu_rates rates = ideal(measured);
      // In proportion to a port's bytes, whichever number was measured: 4 -> 8 and 8 -> 4, and to 2.
      const double large = 6e-6 + 64e6 * 2 * (wanted - 1) / wanted / 250e9;
      EXPECT_NEAR(all_reduce_seconds(rates, wanted, 64e6), large, 0.01 * large) << measured << " -> " << wanted;
      const double small = 1e-6 + 5e4 * (wanted - 1) / 250e9;
      EXPECT_NEAR(all_reduce_seconds(rates, wanted, 5e4), small, 0.01 * small) << measured << " -> " << wanted;
    }
  }
}

TEST(GpuRates, AreReadFromTheResultOfABench) {
  const auto rates =
      parse_gpu_rates(R"({"kind":"ceilings","ceilings":{"read_bytes_per_second":4e12,"matmul_flops_per_second":7e14},"all_reduce":{"gpus":4,
    "sizes":[{"bytes":8192,"nccl_seconds":9e-6,"own_seconds":3e-6},{"bytes":65536,"nccl_seconds":8e-6,"own_seconds":null}]}})");
  ASSERT_TRUE(rates) << rates.failure().message;
  EXPECT_EQ(rates->read_bytes_per_second, 4e12);
  EXPECT_EQ(rates->flops_per_second, 7e14);
  EXPECT_EQ(all_reduce_seconds(*rates, 4, 8192), 3e-6) << "the quicker way";
  EXPECT_EQ(all_reduce_seconds(*rates, 4, 65536), 8e-6);
  const auto one = parse_gpu_rates(R"({"ceilings":{"read_bytes_per_second":4e12}})");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->at_once, gpu_rates{}.at_once) << "one GPU measures no sums";
  const double slow = h200_table(*find_model_shape("llama-3.1-8b"), {}, 128, 2048, *one)->decode.at(1, 1024);
  const double quick = h200_table(*find_model_shape("llama-3.1-8b"), {}, 128, 2048)->decode.at(1, 1024);
  EXPECT_NEAR(slow / quick, (15.14e9 / 4e12 + 322.5e-6) / (15.14e9 / 4.65e12 + 322.5e-6), 0.01);
}

TEST(GpuRates, NameTheMemberAtFault) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"kind":"latency"})", "ceilings"},
      {R"({"ceilings":{"read_bytes_per_second":0}})", "read_bytes_per_second"},
      {R"({"ceilings":{"matmul_flops_per_second":"fast"}})", "matmul_flops_per_second"},
      {R"({"ceilings":{},"all_reduce":{"sizes":[{"bytes":8,"nccl_seconds":1}]}})", "gpus"},
      {R"({"ceilings":{},"all_reduce":{"gpus":1,"sizes":[{"bytes":8,"nccl_seconds":1}]}})", "gpus"},
      {R"({"ceilings":{},"all_reduce":{"gpus":2}})", "sizes"},
      {R"({"ceilings":{},"all_reduce":{"gpus":2,"sizes":[]}})", "all_reduce"},
      {R"({"ceilings":{},"all_reduce":{"gpus":2,"sizes":[{"bytes":8}]}})", "all_reduce"},
      {R"({"ceilings":{},"all_reduce":{"gpus":2,"sizes":[{"bytes":8,"nccl_seconds":1},{"bytes":8,"nccl_seconds":1}]}})", "ascend"},
  };
  for (const auto& [text, named] : cases) {
    const auto rates = parse_gpu_rates(text);
    ASSERT_FALSE(rates) << text;
    EXPECT_NE(rates.failure().message.find(named), std::string::npos) << rates.failure().message;
  }
}

} // namespace
} // namespace troupe::simulation
