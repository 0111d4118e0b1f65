#include "models/inspect.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <utility>

#include "models/cpu_executor.hpp"
#include "models/load_check.hpp"

namespace troupe {

namespace {

constexpr std::size_t kTooMany = std::numeric_limits<std::size_t>::max(); // saturates: a figure for the reader, not an allocation

std::size_t times(std::size_t a, std::size_t b) { return checked_multiply(a, b).value_or(kTooMany); }
std::size_t plus(std::size_t a, std::size_t b) { return checked_add(a, b).value_or(kTooMany); }

struct figures {
  std::size_t parameters = 0;                                         // elements of float and quantised tensors
  std::size_t weight_bytes = 0;                                       // of all stored tensors
  std::map<std::string, std::pair<std::size_t, std::size_t>> by_type; // type -> tensors, bytes
  std::size_t kv_bytes_per_token = 0;
  std::int32_t context = 0;
  std::size_t kv_bytes = 0; // of all sequences at that context
};

figures add_up(const checkpoint& source, const inspect_options& options) {
  figures out;
  for (const stored_tensor& tensor : source.tensors()) {
    out.parameters = plus(out.parameters, element_count(tensor.shape).value_or(0));
    out.weight_bytes = plus(out.weight_bytes, tensor.bytes);
    auto& [count, bytes] = out.by_type[tensor.type_name];
    ++count;
    bytes = plus(bytes, tensor.bytes);
  }
  const model_config& config = source.config();
  out.kv_bytes_per_token = kv_bytes_per_token(config, options.kv_type);
  out.context = options.context.value_or(config.max_position);
  const auto tokens = times(static_cast<std::size_t>(std::max(0, out.context)), static_cast<std::size_t>(std::max(0, options.sequences)));
  out.kv_bytes = times(out.kv_bytes_per_token, tokens);
  return out;
}

std::string formatted(const char* format, double number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, number);
  return text.data();
}

// "98.9 MiB"
std::string bytes_text(std::size_t bytes) {
  constexpr std::array<const char*, 7> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; number >= 1024.0 && unit + 1 < units.size(); ++unit) number /= 1024.0;
  return formatted(unit == 0 ? "%.0f " : "%.1f ", number) + units[unit];
}

// "134.5 M"
std::string count_text(std::size_t count) {
  constexpr std::array<const char*, 5> units = {"", " K", " M", " B", " T"};
  auto number = static_cast<double>(count);
  std::size_t unit = 0;
  for (; number >= 1000.0 && unit + 1 < units.size(); ++unit) number /= 1000.0;
  return formatted(unit == 0 ? "%.0f" : "%.1f", number) + units[unit];
}

std::string number_text(double number) { return formatted("%g", number); }

std::string_view scaling_name(rope_scaling_kind kind) {
  switch (kind) {
    case rope_scaling_kind::none:
      return "none";
    case rope_scaling_kind::linear:
      return "linear";
    case rope_scaling_kind::llama3:
      return "llama3";
    case rope_scaling_kind::yarn:
      return "yarn";
  }
  return "?";
}

std::string rope_text(const rope_config& rope) {
  std::string text = "theta " + number_text(rope.theta) + ", " + std::to_string(rope.rotary_dim) + " dimensions, ";
  text += rope.interleaved ? "neighbouring pairs" : "half-apart pairs";
  if (rope.scaling != rope_scaling_kind::none)
    text += ", " + std::string(scaling_name(rope.scaling)) + " scaling by " + number_text(rope.factor);
  if (rope.original_max_position > 0) text += " from " + number_text(rope.original_max_position) + " positions";
  if (!rope.frequency_divisors.empty()) text += ", frequency divisors in the file";
  return text;
}

std::string attention_text(const model_config& config) {
  std::string text = std::to_string(config.num_heads) + " heads of " + std::to_string(config.head_dim) + ", " +
                     std::to_string(config.num_kv_heads) + " KV heads";
  if (config.query_key_value_bias) text += config.output_bias ? ", biases" : ", biases on q, k, v";
  if (config.query_key_norm) text += ", query and key norms";
  if (config.sliding_window) {
    text += ", sliding window of " + std::to_string(*config.sliding_window);
    if (config.first_sliding_layer > 0) text += " from layer " + std::to_string(config.first_sliding_layer) + " on";
  }
  return text;
}

class table {
 public:
  void row(std::string_view name, const std::string& text) {
    std::string cell(name);
    cell.resize(std::max<std::size_t>(cell.size(), 16), ' ');
    text_ += cell + text + "\n";
  }
  void line(const std::string& text) { text_ += text + "\n"; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string_view format_name(checkpoint_format format) { return format == checkpoint_format::gguf ? "GGUF" : "Hugging Face safetensors"; }

std::int64_t as_int(std::size_t number) {
  return static_cast<std::int64_t>(std::min<std::size_t>(number, static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())));
}

value rope_json(const rope_config& rope) {
  value_object out;
  out.set("theta", rope.theta);
  out.set("dimensions", rope.rotary_dim);
  out.set("interleaved", rope.interleaved);
  out.set("scaling", scaling_name(rope.scaling));
  out.set("factor", rope.factor);
  out.set("original_max_position", rope.original_max_position);
  out.set("attention_factor", rope.attention_factor ? value(*rope.attention_factor) : value());
  out.set("frequency_divisors", !rope.frequency_divisors.empty());
  return out;
}

value tensors_json(const checkpoint& source) {
  value_array list;
  for (const stored_tensor& tensor : source.tensors()) {
    value_object entry;
    entry.set("name", tensor.name);
    entry.set("type", tensor.type_name);
    value_array shape;
    for (std::int64_t dimension : tensor.shape) shape.emplace_back(dimension);
    entry.set("shape", std::move(shape));
    entry.set("bytes", as_int(tensor.bytes));
    entry.set("file", tensor.file);
    list.emplace_back(std::move(entry));
  }
  return list;
}

void put_shapes(value_object& out, const model_config& config) {
  out.set("layers", config.num_layers);
  out.set("hidden_size", config.hidden_size);
  out.set("intermediate_size", config.intermediate_size);
  out.set("heads", config.num_heads);
  out.set("kv_heads", config.num_kv_heads);
  out.set("head_dim", config.head_dim);
  out.set("vocab_size", config.vocab_size);
  out.set("tied_head", config.tied_head);
  out.set("query_key_value_bias", config.query_key_value_bias);
  out.set("output_bias", config.output_bias);
  out.set("query_key_norm", config.query_key_norm);
  out.set("sliding_window", config.sliding_window ? value(*config.sliding_window) : value());
  out.set("first_sliding_layer", config.first_sliding_layer);
  out.set("norm_epsilon", static_cast<double>(config.norm_epsilon));
}

} // namespace

std::string describe_checkpoint(const checkpoint& source, const inspect_options& options) {
  const model_config& config = source.config();
  const figures sums = add_up(source, options);
  table out;
  out.row("path", source.path().string());
  out.row("format", std::string(format_name(source.format())) + ", " + std::to_string(source.tensors().size()) + " tensors");
  out.row("family", config.family);
  out.row("parameters", count_text(sums.parameters));
  out.row("layers", std::to_string(config.num_layers));
  out.row("hidden", std::to_string(config.hidden_size) + ", MLP " + std::to_string(config.intermediate_size));
  out.row("attention", attention_text(config));
  out.row("vocabulary", std::to_string(config.vocab_size) + (config.tied_head ? ", head tied to the embedding" : ", own head"));
  out.row("rope", rope_text(config.rope));
  out.row("context", std::to_string(config.max_position) + " tokens");
  std::string ends;
  for (token_id token : config.eos_tokens) ends += (ends.empty() ? "" : ", ") + std::to_string(token);
  out.row("end tokens", ends.empty() ? "none" : ends);
  out.row("weights", bytes_text(sums.weight_bytes));
  for (const auto& [type, entry] : sums.by_type) {
    out.row("  " + printable(type), bytes_text(entry.second) + " in " + std::to_string(entry.first) + " tensors");
  }
  const std::string kv_name(traits(options.kv_type).name);
  out.row("KV cache", bytes_text(sums.kv_bytes_per_token) + " per token as " + kv_name);
  out.row("memory", bytes_text(plus(sums.weight_bytes, sums.kv_bytes)) + " = weights + " + bytes_text(sums.kv_bytes) + " KV for " +
                        std::to_string(options.sequences) + " x " + std::to_string(sums.context) + " tokens (work space not counted)");
  if (options.list_tensors) {
    out.line("");
    for (const stored_tensor& tensor : source.tensors()) {
      out.line(printable(tensor.name) + "  " + tensor.type_name + " " + shape_text(tensor.shape) + "  " + bytes_text(tensor.bytes));
    }
  }
  return out.take();
}

value describe_checkpoint_json(const checkpoint& source, const inspect_options& options) {
  const model_config& config = source.config();
  const figures sums = add_up(source, options);
  value_object out;
  out.set("path", source.path().string());
  out.set("format", source.format() == checkpoint_format::gguf ? "gguf" : "hugging_face");
  out.set("family", config.family);
  out.set("parameters", as_int(sums.parameters));
  put_shapes(out, config);
  out.set("rope", rope_json(config.rope));
  out.set("context", config.max_position);
  value_array ends;
  for (token_id token : config.eos_tokens) ends.emplace_back(token);
  out.set("eos_tokens", std::move(ends));
  out.set("weight_bytes", as_int(sums.weight_bytes));
  value_object by_type;
  for (const auto& [type, entry] : sums.by_type) by_type.set(type, as_int(entry.second));
  out.set("weight_bytes_by_type", std::move(by_type));
  value_object kv;
  kv.set("type", traits(options.kv_type).name);
  kv.set("bytes_per_token", as_int(sums.kv_bytes_per_token));
  kv.set("sequences", options.sequences);
  kv.set("context", sums.context);
  kv.set("bytes", as_int(sums.kv_bytes));
  out.set("kv", std::move(kv));
  out.set("memory_bytes", as_int(plus(sums.weight_bytes, sums.kv_bytes)));
  if (options.list_tensors) out.set("tensors", tensors_json(source));
  return out;
}

} // namespace troupe
