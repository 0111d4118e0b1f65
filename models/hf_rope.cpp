#include <algorithm>
#include <string_view>

#include "models/config_fields.hpp"
#include "models/hf_config.hpp"
#include "models/load_check.hpp"

namespace troupe {

namespace {

constexpr double kLargest = 1e12; // of any number in a rope section

double required(const config_fields& fields, std::string_view key, double least) {
  const auto number = fields.number(key, least, kLargest);
  if (!number) fields.fail(key, "missing");
  return *number;
}

void read_yarn(rope_config& rope, const config_fields& fields, double stated_positions) {
  rope.scaling = rope_scaling_kind::yarn;
  // A null factor stands for the ratio of the two context lengths.
  const auto factor = fields.number("factor", 1.0, kLargest);
  if (!factor && !fields.has_null("factor")) fields.fail("factor", "missing");
  rope.factor = factor.value_or(std::max(1.0, stated_positions / rope.original_max_position));
  if (const auto beta = fields.number("beta_fast", 0.0, kLargest); beta && *beta != 0.0) rope.beta_fast = *beta;
  if (const auto beta = fields.number("beta_slow", 0.0, kLargest); beta && *beta != 0.0) rope.beta_slow = *beta;
  const double mscale = fields.number("mscale", 0.0, kLargest).value_or(0.0);
  const double mscale_all_dim = fields.number("mscale_all_dim", 0.0, kLargest).value_or(0.0);
  if (const auto attention = fields.number("attention_factor", 0.0, kLargest)) {
    rope.attention_factor = *attention;
  } else if (mscale != 0.0 && mscale_all_dim != 0.0) {
    rope.attention_factor = yarn_attention_factor(rope.factor, mscale, mscale_all_dim);
  }
  if (!fields.boolean("truncate").value_or(true)) fields.fail("truncate", "yarn without truncation is not supported");
}

void read_scaling(rope_config& rope, const config_fields& fields, const std::string& type, const config_fields& top,
                  double stated_positions) {
  if (type == "default") return;
  // A top-level original_max_position_embeddings goes before the section's, as in transformers.
  const auto top_original = top.number("original_max_position_embeddings", 1.0, kLargest);
  const auto original = top_original ? top_original : fields.number("original_max_position_embeddings", 1.0, kLargest);
  if (type == "linear") {
    rope.scaling = rope_scaling_kind::linear;
    rope.factor = required(fields, "factor", 1.0);
    rope.original_max_position = original.value_or(0.0);
    return;
  }
  rope.original_max_position = original.value_or(stated_positions);
  if (type == "llama3") {
    rope.scaling = rope_scaling_kind::llama3;
    rope.factor = required(fields, "factor", 1.0);
    rope.low_freq_factor = required(fields, "low_freq_factor", 0.0);
    rope.high_freq_factor = required(fields, "high_freq_factor", 0.0);
  } else if (type == "yarn") {
    read_yarn(rope, fields, stated_positions);
  } else {
    fields.fail("rope_type", "unknown rope type " + printable(type) + " (default, linear, llama3 and yarn are supported)");
  }
}

} // namespace

rope_config parse_hf_rope(const value& config, std::int32_t head_dim, std::int64_t stated_positions, const std::string& file) {
  const config_fields top(config, file);
  const bool newer = top.find("rope_parameters") != nullptr;
  const std::string section_name = newer ? "rope_parameters" : "rope_scaling";
  static const value no_section = value_object();
  const value* found = top.find(section_name);
  if (found && !found->is_object()) top.fail(section_name, "expected an object");
  const value& section = found ? *found : no_section;
  for (const auto& [key, item] : section.as_object().entries()) {
    if (item.is_object()) top.fail(section_name, "different rotary embeddings per kind of layer are not supported");
  }
  const config_fields fields(section, file, section_name + ".");

  rope_config rope;
  const auto inner_theta = fields.number("rope_theta", 0.0, kLargest);
  const auto outer_theta = top.number("rope_theta", 0.0, kLargest);
  rope.theta = inner_theta ? *inner_theta : outer_theta.value_or(10000.0);
  const auto inner_part = fields.number("partial_rotary_factor", 0.0, 1.0);
  const auto outer_part = top.number("partial_rotary_factor", 0.0, 1.0);
  const double part = inner_part ? *inner_part : outer_part.value_or(1.0);
  rope.rotary_dim = static_cast<std::int32_t>(part * head_dim);
  auto type = fields.string("rope_type");
  if (!type) type = fields.string("type");
  if (!type && !newer && !section.as_object().empty()) top.fail(section_name, "no rope_type");
  read_scaling(rope, fields, type.value_or("default"), top, static_cast<double>(stated_positions));
  return rope;
}

} // namespace troupe
