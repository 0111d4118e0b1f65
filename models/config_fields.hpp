// Checked access to the members of a config object, and the checks that every model_config must pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/value.hpp"
#include "models/model.hpp"

namespace troupe {

// Reads members of one object; every failure is a load_error "FILE: PREFIX+KEY: REASON". A null member counts as absent.
class config_fields {
 public:
  // `object` must outlive this. `prefix` is put before keys, both for lookup (GGUF: "llama.") when `lookup_prefix`, and in errors.
  config_fields(const value& object, std::string file, std::string prefix = "", bool lookup_prefix = false);

  const std::string& file() const { return file_; }
  const value* find(std::string_view key) const;
  // Is the member there, and null?
  bool has_null(std::string_view key) const;
  [[noreturn]] void fail(std::string_view key, std::string_view reason) const;

  // Integers may be spelled as integral floats (8192.0). Bounds are inclusive.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least, std::int64_t most) const;
  std::int64_t required_integer(std::string_view key, std::int64_t least, std::int64_t most) const;
  // Finite numbers only.
  std::optional<double> number(std::string_view key, double least, double most) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  // An integer or an array of them; empty when absent.
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t least, std::int64_t most) const;

 private:
  const value* lookup(std::string_view key) const;
  std::int64_t as_integer(std::string_view key, const value& item, std::int64_t least, std::int64_t most) const;

  const value& object_;
  std::string file_;
  std::string prefix_;
  bool lookup_prefix_;
};

// Upper bounds of a sane model: products of any two stay far inside int64, and heads * head_dim inside int32.
namespace config_bounds {
inline constexpr std::int64_t vocab = 1 << 24;
inline constexpr std::int64_t width = 1 << 20; // hidden, intermediate, heads * head_dim
inline constexpr std::int64_t layers = 1024;
inline constexpr std::int64_t heads = 4096;
inline constexpr std::int64_t head_dim = 4096;
inline constexpr std::int64_t positions = 1 << 30;
} // namespace config_bounds

// Throws load_error when the numbers cannot belong together. `file` is for the error line.
void check_config(const model_config& config, const std::string& file);

// max_position under a rope scaling that stretches it: yarn reaches original * factor; linear stretches `stated`, unless the
// config says what it was made for before. llama3 files state the stretched limit already.
std::int32_t stretched_context(const rope_config& rope, std::int64_t stated);

// YaRN's factor on cos and sin, from the weights mscale and mscale_all_dim (transformers/modeling_rope_utils.py, get_mscale).
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);

// Adds an id once.
void add_token(std::vector<token_id>& tokens, std::int64_t id);

} // namespace troupe
