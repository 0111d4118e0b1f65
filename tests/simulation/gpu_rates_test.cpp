#include "simulation/gpu_rates.hpp"

#include <gtest/gtest.h>

#include "simulation/h200.hpp"

namespace troupe::simulation {
namespace {

TEST(GpuRates, SumsOfTwoAreWhatWasMeasured) {
  const gpu_rates rates;
  EXPECT_EQ(all_reduce_seconds(rates, 1, 1 << 20), 0);
  for (const auto& [bytes, seconds] : rates.all_reduce) EXPECT_DOUBLE_EQ(all_reduce_seconds(rates, 2, bytes), seconds);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(rates, 2, 10), 2.4e-6) << "level before the first point";
  EXPECT_DOUBLE_EQ(all_reduce_seconds(rates, 2, 32 << 20), 152e-6) << "in proportion behind the last";
}

TEST(GpuRates, SumsOfMoreTakeLongerButNeverLongerThanTwoTripsOfASlice) {
  const gpu_rates rates;
  for (const double bytes : {8192.0, 262144.0, 4194304.0, 67108864.0}) {
    double before = all_reduce_seconds(rates, 2, bytes);
    for (const std::int32_t gpus : {4, 8}) {
      const double now = all_reduce_seconds(rates, gpus, bytes);
      EXPECT_GE(now, before) << bytes << " " << gpus;
      before = now;
    }
  }
  // 64 MiB over 8: two trips of 7/8 of the bytes, where all to everybody would be seven times as many.
  EXPECT_NEAR(all_reduce_seconds(rates, 8, 64 << 20), 2 * 7.0 / 8 * all_reduce_seconds(rates, 2, 64 << 20), 1e-9);
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
  EXPECT_EQ(one->all_reduce, gpu_rates{}.all_reduce) << "one GPU measures no sums";
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
