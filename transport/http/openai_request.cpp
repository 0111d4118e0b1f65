#include "transport/http/openai_request.hpp"

#include <algorithm>
#include <limits>

#include "core/json.hpp"
#include "transport/http/chat_messages.hpp"
#include "transport/http/field_reader.hpp"
#include "transport/http/prompt_fields.hpp"
#include "transport/http/sampling_fields.hpp"

namespace troupe::http {

namespace {

constexpr std::int32_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kCompletionTokens = 16;       // OpenAI's default for completions
constexpr std::int64_t kLongestTimeout = 86'400'000; // ms: a day
constexpr std::size_t kSaltBytes = 256;
constexpr std::size_t kMostValues = 2'000'000; // a tree takes about 40 bytes for each

result<value> parse_object(std::string_view body, const server_limits& limits) {
  auto parsed = json::parse(body, {limits.json_depth, kMostValues});
  if (parsed && !parsed->is_object()) return invalid_request("", "the body must be a JSON object");
  return parsed;
}

std::string model_name(field_reader& fields, const served_model& model) {
  const std::string* name = fields.text("model");
  if (name == nullptr) return model.names.empty() ? "" : model.names.front();
  if (std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return *name;
  fields.fail(unknown_model(model));
  return "";
}

std::optional<std::uint64_t> read_timeout(field_reader& fields, std::string_view name) {
  const auto milliseconds = fields.integer(name, 1, kLongestTimeout);
  if (!milliseconds) return std::nullopt;
  return static_cast<std::uint64_t>(*milliseconds) * 1'000'000;
}

// How the request is scheduled.
void read_scheduling(field_reader& fields, generation_request& out) {
  constexpr auto any = std::numeric_limits<std::int32_t>();
  out.priority = static_cast<std::int32_t>(fields.integer("priority", any.min(), any.max()).value_or(0));
  out.queue_timeout_ns = read_timeout(fields, "queue_timeout_ms");
  out.timeout_ns = read_timeout(fields, "timeout_ms");
  if (const std::string* salt = fields.text("cache_salt")) {
    if (salt->empty() || salt->size() > kSaltBytes) {
      fields.fail("cache_salt", "must be a string of 1 to " + std::to_string(kSaltBytes) + " bytes");
    }
    out.cache_salt = *salt;
  }
}

// What makes no sense to ignore, because the answer would not be what the client thinks it is.
void refuse_unsupported(field_reader& fields) {
  if (fields.flag("skip_special_tokens") == false) fields.fail("skip_special_tokens", "must be true: special tokens are never printed");
  if (fields.find("prompt_logprobs")) fields.fail("prompt_logprobs", "is not supported; use 'echo' with 'logprobs' in /v1/completions");
  if (const value* format = fields.object("response_format")) {
    const value* type = format->find("type");
    if (type == nullptr || !type->is_string() || type->as_string() != "text") {
      fields.fail("response_format", "must have the type \"text\": structured output is not supported");
    }
  }
}

void read_stream_options(field_reader& fields, api_request& request) {
  request.stream = fields.flag("stream").value_or(false);
  const value* options = fields.object("stream_options");
  request.return_token_ids = fields.flag("return_token_ids").value_or(false);
  if (request.return_token_ids && request.stream) fields.fail("return_token_ids", "is not supported when 'stream' is true");
  if (options == nullptr) return;
  if (!request.stream) fields.fail("stream_options", "is allowed only when 'stream' is true");
  field_reader inner(*options);
  request.include_usage = inner.flag("include_usage").value_or(false);
  if (inner.failure()) fields.fail("stream_options.include_usage", "must be true or false");
}

// The new name of the limit and the old one mean the same; two different values are a contradiction.
void read_token_limits(field_reader& fields, generation_request& out, std::int32_t lowest) {
  const auto old_name = fields.integer("max_tokens", lowest, kMostTokens);
  const auto new_name = fields.integer("max_completion_tokens", lowest, kMostTokens);
  if (old_name && new_name && *old_name != *new_name) {
    fields.fail("max_tokens", "and 'max_completion_tokens' differ: send one of them");
  }
  if (const auto limit = new_name ? new_name : old_name) out.max_tokens = static_cast<std::int32_t>(*limit);
  out.min_tokens = static_cast<std::int32_t>(fields.integer("min_tokens", 0, kMostTokens).value_or(0));
  if (out.max_tokens && out.min_tokens > *out.max_tokens) fields.fail("min_tokens", "must not be above 'max_tokens'");
}

void read_choices(field_reader& fields, generation_request& out, const server_limits& limits) {
  out.n = static_cast<std::int32_t>(fields.integer("n", 1, limits.choices).value_or(1));
  const std::size_t prompts = std::max<std::size_t>(out.prompts.size(), 1);
  if (prompts > static_cast<std::size_t>(limits.choices / out.n)) {
    fields.fail("n", "times the number of prompts must not be above " + std::to_string(limits.choices));
  }
  const auto best_of = fields.integer("best_of", 1, limits.choices);
  if (best_of && *best_of != out.n) fields.fail("best_of", "must be equal to 'n'");
}

void read_common(field_reader& fields, api_request& request, const served_model& model, const server_limits& limits) {
  generation_request& out = request.generation;
  out.model = model_name(fields, model);
  read_choices(fields, out, limits);
  read_sampling(fields, model, limits, out);
  read_stops(fields, model, limits, out);
  read_scheduling(fields, out);
  read_stream_options(fields, request);
  refuse_unsupported(fields);
}

void read_completion_logprobs(field_reader& fields, generation_request& out, const server_limits& limits) {
  const auto logprobs = fields.integer("logprobs", 0, limits.top_logprobs);
  if (!logprobs) return;
  out.sampling.top_logprobs = static_cast<std::int32_t>(*logprobs);
  if (out.echo) out.prompt_logprobs = out.sampling.top_logprobs;
}

void read_chat_logprobs(field_reader& fields, generation_request& out, const server_limits& limits) {
  const bool wanted = fields.flag("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, limits.top_logprobs);
  if (top && *top > 0 && !wanted) fields.fail("top_logprobs", "needs 'logprobs' to be true");
  if (wanted) out.sampling.top_logprobs = static_cast<std::int32_t>(top.value_or(0));
}

chat_prompt read_chat_prompt(field_reader& fields, const served_model& model) {
  if (!model.has_chat_template) {
    fields.fail(invalid_request("messages", "this model has no chat template; use /v1/completions"));
  }
  chat_prompt out;
  read_messages(fields, out);
  read_tools(fields, out);
  if (const value* kwargs = fields.object("chat_template_kwargs")) out.template_kwargs_json = json::dump(*kwargs);
  out.add_generation_prompt = fields.flag("add_generation_prompt").value_or(true);
  if (fields.flag("continue_final_message").value_or(false)) fields.fail("continue_final_message", "is not supported");
  if (fields.flag("add_special_tokens").value_or(false)) {
    fields.fail("add_special_tokens", "must be false in chat: the template writes the special tokens itself");
  }
  return out;
}

} // namespace

result<api_request> parse_completion(std::string_view body, const served_model& model, const server_limits& limits) {
  const auto root = parse_object(body, limits);
  if (!root) return root.failure();
  field_reader fields(*root);
  api_request request;
  generation_request& out = request.generation;
  out.prompts = read_prompts(fields, model, limits);
  out.add_special_tokens = fields.flag("add_special_tokens").value_or(true);
  out.echo = fields.flag("echo").value_or(false);
  out.max_tokens = kCompletionTokens;
  read_token_limits(fields, out, out.echo ? 0 : 1);
  read_common(fields, request, model, limits);
  read_completion_logprobs(fields, out, limits);
  const std::string* suffix = fields.text("suffix");
  if (suffix != nullptr && !suffix->empty()) fields.fail("suffix", "is not supported");
  if (fields.failure()) return *fields.failure();
  return request;
}

result<api_request> parse_chat(std::string_view body, const served_model& model, const server_limits& limits) {
  const auto root = parse_object(body, limits);
  if (!root) return root.failure();
  field_reader fields(*root);
  api_request request;
  request.kind = api_kind::chat;
  generation_request& out = request.generation;
  read_token_limits(fields, out, 1);
  read_common(fields, request, model, limits);
  read_chat_logprobs(fields, out, limits);
  if (fields.failure()) return *fields.failure();
  out.prompts.emplace_back(read_chat_prompt(fields, model));
  if (fields.failure()) return *fields.failure();
  return request;
}

result<token_request> parse_tokenize(std::string_view body, const served_model& model, const server_limits& limits) {
  const auto root = parse_object(body, limits);
  if (!root) return root.failure();
  field_reader fields(*root);
  token_request request;
  model_name(fields, model);
  request.want_strings = fields.flag("return_token_strs").value_or(false);
  if (fields.find("messages")) {
    if (fields.find("prompt")) fields.fail("prompt", "and 'messages' exclude each other");
    request.input.input = read_chat_prompt(fields, model);
    request.input.add_special_tokens = false;
  } else if (const std::string* text = fields.text("prompt")) {
    request.input.input = *text;
    request.input.add_special_tokens = fields.flag("add_special_tokens").value_or(true);
  } else {
    fields.fail("prompt", "or 'messages' is required");
  }
  if (fields.failure()) return *fields.failure();
  return request;
}

result<std::vector<token_id>> parse_detokenize(std::string_view body, const served_model& model, const server_limits& limits) {
  const auto root = parse_object(body, limits);
  if (!root) return root.failure();
  field_reader fields(*root);
  model_name(fields, model);
  std::vector<token_id> tokens;
  if (const value_array* ids = fields.array("tokens")) {
    tokens = read_token_ids(fields, "tokens", *ids, model);
  } else {
    fields.fail("tokens", "is required: an array of token ids");
  }
  if (fields.failure()) return *fields.failure();
  return tokens;
}

} // namespace troupe::http
