#include "models/rope_frequencies.hpp"

#include <cmath>

#include "kernels/rope.hpp"
#include "tests/models/executor_testing.hpp"

namespace troupe {
namespace {

rope_config config_of(const std::string& scheme, const value& keys) {
  rope_config config;
  config.rotary_dim = 128;
  config.theta = keys.find("rope_theta") != nullptr ? keys.find("rope_theta")->as_double() : 10000.0;
  const value* scaling = keys.find("rope_scaling") != nullptr ? keys.find("rope_scaling") : keys.find("rope_parameters");
  const auto number = [&](const char* key, double otherwise) {
    const value* found = scaling != nullptr ? scaling->find(key) : nullptr;
    return found != nullptr ? found->as_double() : otherwise;
  };
  config.factor = number("factor", 1.0);
  config.original_max_position = number("original_max_position_embeddings", 0.0);
  config.low_freq_factor = number("low_freq_factor", 1.0);
  config.high_freq_factor = number("high_freq_factor", 4.0);
  config.theta = number("rope_theta", config.theta);
  if (scheme == "linear4") config.scaling = rope_scaling_kind::linear;
  if (scheme == "llama3") config.scaling = rope_scaling_kind::llama3;
  if (scheme == "yarn4") config.scaling = rope_scaling_kind::yarn;
  return config;
}

TEST(rope_frequencies, tables_equal_transformers_at_far_positions) {
  const value file = test::read_json(test::model_folder("rope.json"));
  const value_array& positions = file.find("positions")->as_array();
  int schemes = 0;
  for (const auto& [scheme, rope] : file.find("ropes")->as_object().entries()) {
    SCOPED_TRACE(scheme);
    ++schemes;
    const rope_spectrum spectrum = rope_frequencies(config_of(scheme, *rope.find("config")));
    const value_array& right = rope.find("inverse_frequencies")->as_array();
    ASSERT_EQ(spectrum.frequencies.size(), right.size());
    for (std::size_t i = 0; i < right.size(); ++i) ASSERT_NEAR(spectrum.frequencies[i] / right[i].as_double(), 1.0, 1e-6) << i;
    ASSERT_NEAR(spectrum.magnitude, rope.find("attention_factor")->as_double(), 1e-6);
    rope_table table(spectrum.frequencies, spectrum.magnitude);
    table.reserve(20001);
    for (std::size_t p = 0; p < positions.size(); ++p) {
      const std::int64_t position = positions[p].as_int();
      for (std::size_t i = 0; i < right.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(position) * right.size() + i;
        // transformers multiplies in f32: its angle is off by up to position * 2^-23
        const double tolerance = 2e-6 + static_cast<double>(position) * 1.2e-7 * spectrum.magnitude;
        ASSERT_NEAR(table.view().cos[at], rope.find("cos")->as_array()[p].as_array()[i].as_double(), tolerance)
            << "position " << position << ", pair " << i;
        ASSERT_NEAR(table.view().sin[at], rope.find("sin")->as_array()[p].as_array()[i].as_double(), tolerance)
            << "position " << position << ", pair " << i;
      }
    }
  }
  EXPECT_EQ(schemes, 4);
}

TEST(rope_frequencies, divisors_and_a_given_attention_factor_are_applied) {
  rope_config config;
  config.rotary_dim = 8;
  config.frequency_divisors = {1.0F, 2.0F, 4.0F, 8.0F};
  const rope_spectrum divided = rope_frequencies(config);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_DOUBLE_EQ(divided.frequencies[i], std::pow(10000.0, -0.25 * static_cast<double>(i)) / std::exp2(i));
  config.scaling = rope_scaling_kind::yarn;
  config.factor = 4;
  config.original_max_position = 64;
  config.attention_factor = 0.75;
  EXPECT_EQ(rope_frequencies(config).magnitude, 0.75);
}

} // namespace
} // namespace troupe
