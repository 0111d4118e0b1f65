#include "transport/http/sampling_fields.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

#include "transport/http/prompt_fields.hpp"

namespace troupe::http {

namespace {

constexpr std::size_t kStopBytes = 1024; // of one stop string: so much text may be held back while it could still match
constexpr std::size_t kStopTokens = 1024;

void read_float(field_reader& fields, std::string_view name, double low, double high, float& out) {
  if (const auto number = fields.number(name, low, high)) out = static_cast<float>(*number);
}

// The canonical decimal form alone, so that no id can be given twice; nothing for everything else.
std::optional<std::int64_t> id_of_key(const std::string& key) {
  std::int64_t id = 0;
  const char* end = key.data() + key.size();
  const auto read = std::from_chars(key.data(), end, id);
  if (read.ec != std::errc() || read.ptr != end || std::to_string(id) != key) return std::nullopt;
  return id;
}

void read_logit_bias(field_reader& fields, const served_model& model, const server_limits& limits, sampling_params& out) {
  const value* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  const auto& entries = biases->as_object().entries();
  if (entries.size() > static_cast<std::size_t>(limits.logit_biases)) {
    fields.fail("logit_bias", "must not hold more than " + std::to_string(limits.logit_biases) + " tokens");
    return;
  }
  for (const auto& [key, bias] : entries) {
    const auto id = id_of_key(key);
    if (!id) return fields.fail("logit_bias", "has a key that is not a token id");
    if (*id < 0 || *id >= model.vocab_size)
      return fields.fail("logit_bias", "is outside the vocabulary: " + outside_vocabulary(*id, model));
    if (!bias.is_number() || !(bias.as_double() >= -100) || !(bias.as_double() <= 100)) {
      return fields.fail("logit_bias", "must be a number from -100 to 100 for token id " + std::to_string(*id));
    }
    out.logit_bias.push_back({static_cast<token_id>(*id), static_cast<float>(bias.as_double())});
  }
}

void add_stop(field_reader& fields, const value& item, generation_request& out) {
  if (!item.is_string()) return fields.fail("stop", "must be a string or an array of strings");
  const std::string& text = item.as_string();
  if (text.empty()) return fields.fail("stop", "must not hold an empty string");
  if (text.size() > kStopBytes) return fields.fail("stop", "must not hold a string longer than " + std::to_string(kStopBytes) + " bytes");
  out.stop_strings.push_back(text);
}

void read_stop_strings(field_reader& fields, const server_limits& limits, generation_request& out) {
  const value* stop = fields.find("stop");
  if (stop == nullptr) return;
  if (!stop->is_array()) return add_stop(fields, *stop, out);
  if (stop->as_array().size() > static_cast<std::size_t>(limits.stop_strings)) {
    return fields.fail("stop", "must not hold more than " + std::to_string(limits.stop_strings) + " strings");
  }
  for (const value& item : stop->as_array()) add_stop(fields, item, out);
}

} // namespace

void read_sampling(field_reader& fields, const served_model& model, const server_limits& limits, generation_request& out) {
  sampling_params& params = out.sampling;
  read_float(fields, "temperature", 0, 100, params.temperature);
  read_float(fields, "top_p", 0, 1, params.top_p);
  // 0 keeps the best token alone, as the smallest probability does.
  params.top_p = std::max(params.top_p, std::numeric_limits<float>::min());
  read_float(fields, "min_p", 0, 1, params.min_p);
  read_float(fields, "repetition_penalty", 0.01, 100, params.repetition_penalty);
  read_float(fields, "presence_penalty", -2, 2, params.presence_penalty);
  read_float(fields, "frequency_penalty", -2, 2, params.frequency_penalty);
  if (const auto top_k = fields.integer("top_k", -1, std::numeric_limits<std::int32_t>::max())) {
    params.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(*top_k, 0, std::max(model.vocab_size, 0)));
  }
  constexpr auto any = std::numeric_limits<std::int64_t>();
  if (const auto seed = fields.integer("seed", any.min(), any.max())) out.seed = static_cast<std::uint64_t>(*seed);
  read_logit_bias(fields, model, limits, params);
}

void read_stops(field_reader& fields, const served_model& model, const server_limits& limits, generation_request& out) {
  read_stop_strings(fields, limits, out);
  if (const value_array* ids = fields.array("stop_token_ids")) {
    if (ids->size() > kStopTokens) fields.fail("stop_token_ids", "must not hold more than " + std::to_string(kStopTokens) + " ids");
    out.stop_token_ids = read_token_ids(fields, "stop_token_ids", *ids, model);
  }
  out.ignore_eos = fields.flag("ignore_eos").value_or(false);
  out.include_stop_string = fields.flag("include_stop_str_in_output").value_or(false);
}

} // namespace troupe::http
