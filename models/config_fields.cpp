#include "models/config_fields.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/load_check.hpp"

namespace troupe {

namespace {

std::string range_text(std::int64_t least, std::int64_t most) { return std::to_string(least) + " to " + std::to_string(most); }

} // namespace

config_fields::config_fields(const value& object, std::string file, std::string prefix, bool lookup_prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)), lookup_prefix_(lookup_prefix) {}

const value* config_fields::lookup(std::string_view key) const {
  return lookup_prefix_ ? object_.find(prefix_ + std::string(key)) : object_.find(key);
}

const value* config_fields::find(std::string_view key) const {
  const value* item = lookup(key);
  return item && !item->is_null() ? item : nullptr;
}

bool config_fields::has_null(std::string_view key) const {
  const value* item = lookup(key);
  return item && item->is_null();
}

void config_fields::fail(std::string_view key, std::string_view reason) const { fail_load(file_, prefix_ + std::string(key), reason); }

std::int64_t config_fields::as_integer(std::string_view key, const value& item, std::int64_t least, std::int64_t most) const {
  if (!item.is_number()) fail(key, "expected an integer, found " + std::string(item.type_name()));
  std::int64_t number = 0;
  if (item.is_int()) {
    number = item.as_int();
  } else {
    const double real = item.as_double();
    if (!(std::fabs(real) < 9e15) || std::trunc(real) != real) fail(key, "expected an integer of " + range_text(least, most));
    number = static_cast<std::int64_t>(real);
  }
  if (number < least || number > most) fail(key, std::to_string(number) + " is outside " + range_text(least, most));
  return number;
}

std::optional<std::int64_t> config_fields::integer(std::string_view key, std::int64_t least, std::int64_t most) const {
  const value* item = find(key);
  if (!item) return std::nullopt;
  return as_integer(key, *item, least, most);
}

std::int64_t config_fields::required_integer(std::string_view key, std::int64_t least, std::int64_t most) const {
  const auto number = integer(key, least, most);
  if (!number) fail(key, "missing");
  return *number;
}

std::optional<double> config_fields::number(std::string_view key, double least, double most) const {
  const value* item = find(key);
  if (!item) return std::nullopt;
  if (!item->is_number()) fail(key, "expected a number, found " + std::string(item->type_name()));
  const double real = item->as_double();
  if (!(real >= least && real <= most)) fail(key, "the number is outside " + std::to_string(least) + " to " + std::to_string(most));
  return real;
}

std::optional<bool> config_fields::boolean(std::string_view key) const {
  const value* item = find(key);
  if (!item) return std::nullopt;
  if (!item->is_bool()) fail(key, "expected true or false, found " + std::string(item->type_name()));
  return item->as_bool();
}

std::optional<std::string> config_fields::string(std::string_view key) const {
  const value* item = find(key);
  if (!item) return std::nullopt;
  if (!item->is_string()) fail(key, "expected a string, found " + std::string(item->type_name()));
  return item->as_string();
}

std::vector<std::int64_t> config_fields::integers(std::string_view key, std::int64_t least, std::int64_t most) const {
  const value* item = find(key);
  std::vector<std::int64_t> numbers;
  if (!item) return numbers;
  if (!item->is_array()) return {as_integer(key, *item, least, most)};
  for (const value& entry : item->as_array()) numbers.push_back(as_integer(key, entry, least, most));
  return numbers;
}

namespace {

void check_rope(const model_config& config, const std::string& file) {
  const rope_config& rope = config.rope;
  if (rope.rotary_dim < 2 || rope.rotary_dim > config.head_dim || rope.rotary_dim % 2 != 0) {
    fail_load(file, "rotary dimensions",
              std::to_string(rope.rotary_dim) + " is no even number up to the head's " + std::to_string(config.head_dim));
  }
  if (!(rope.theta > 1.0) || !std::isfinite(rope.theta)) fail_load(file, "rope theta", "it must be greater than 1");
  if (!(rope.factor >= 1.0) || !std::isfinite(rope.factor)) fail_load(file, "rope factor", "it must be at least 1");
  const bool needs_original = rope.scaling == rope_scaling_kind::llama3 || rope.scaling == rope_scaling_kind::yarn;
  if (needs_original && !(rope.original_max_position >= 1.0)) fail_load(file, "rope original context", "it must be at least 1");
  if (rope.scaling == rope_scaling_kind::llama3 && !(rope.low_freq_factor > 0.0 && rope.high_freq_factor > rope.low_freq_factor)) {
    fail_load(file, "rope frequency factors", "they must satisfy 0 < low_freq_factor < high_freq_factor");
  }
  if (rope.scaling == rope_scaling_kind::yarn && !(rope.beta_slow > 0.0 && rope.beta_fast >= rope.beta_slow)) {
    fail_load(file, "rope betas", "they must satisfy 0 < beta_slow <= beta_fast");
  }
}

} // namespace

void check_config(const model_config& config, const std::string& file) {
  using namespace config_bounds;
  const auto within = [&](std::string_view what, std::int64_t number, std::int64_t most) {
    if (number < 1 || number > most) fail_load(file, what, std::to_string(number) + " is outside " + range_text(1, most));
  };
  within("vocabulary size", config.vocab_size, vocab);
  within("hidden size", config.hidden_size, width);
  within("intermediate size", config.intermediate_size, width);
  within("number of layers", config.num_layers, layers);
  within("number of heads", config.num_heads, heads);
  within("number of KV heads", config.num_kv_heads, heads);
  within("head dimension", config.head_dim, head_dim);
  within("context length", config.max_position, positions);
  within("heads times head dimension", std::int64_t{config.num_heads} * config.head_dim, width);
  if (config.num_heads % config.num_kv_heads != 0) {
    fail_load(file, "number of KV heads",
              std::to_string(config.num_heads) + " heads do not divide by " + std::to_string(config.num_kv_heads) + " KV heads");
  }
  if (!(config.norm_epsilon > 0.0F && config.norm_epsilon < 1.0F)) fail_load(file, "norm epsilon", "it must lie between 0 and 1");
  if (config.sliding_window) within("sliding window", *config.sliding_window, positions);
  if (config.first_sliding_layer < 0) fail_load(file, "first sliding layer", "it is negative");
  check_rope(config, file);
}

std::int32_t stretched_context(const rope_config& rope, std::int64_t stated) {
  const auto limit = static_cast<double>(config_bounds::positions);
  const auto most = static_cast<double>(stated);
  if (rope.scaling == rope_scaling_kind::yarn) {
    return static_cast<std::int32_t>(std::min(limit, std::max(most, rope.original_max_position * rope.factor)));
  }
  if (rope.scaling == rope_scaling_kind::linear) {
    const double reached = rope.original_max_position > 0 ? std::max(most, rope.original_max_position * rope.factor) : most * rope.factor;
    return static_cast<std::int32_t>(std::min(limit, reached));
  }
  return static_cast<std::int32_t>(stated);
}

double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto scaled = [&](double weight) { return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0; };
  return scaled(mscale) / scaled(mscale_all_dim);
}

void add_token(std::vector<token_id>& tokens, std::int64_t id) {
  const auto token = static_cast<token_id>(id);
  if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
}

} // namespace troupe
