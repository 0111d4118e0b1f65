#include "actors/text_jobs.hpp"

#include <chrono>
#include <exception>
#include <utility>

#include "core/json.hpp"

namespace troupe::actors {

namespace {

// The client's kwargs first: the request's own fields cannot be replaced by them.
result<value> template_variables(const chat_prompt& chat, const serving_parts& parts) {
  value_object variables;
  if (!chat.template_kwargs_json.empty()) {
    auto kwargs = json::parse(chat.template_kwargs_json);
    if (!kwargs || !kwargs->is_object()) return invalid_request("chat_template_kwargs", "chat_template_kwargs must be an object");
    variables = kwargs->as_object();
  }
  auto messages = json::parse(chat.messages_json);
  if (!messages || !messages->is_array()) return invalid_request("messages", "messages must be an array of objects");
  variables.set("messages", std::move(*messages));
  value tools; // null when there are none, as transformers passes it
  if (!chat.tools_json.empty()) {
    auto parsed = json::parse(chat.tools_json);
    if (!parsed || !parsed->is_array()) return invalid_request("tools", "tools must be an array");
    tools = std::move(*parsed);
  }
  variables.set("tools", std::move(tools));
  variables.set("add_generation_prompt", chat.add_generation_prompt);
  variables.set("bos_token", parts.bos_token);
  variables.set("eos_token", parts.eos_token);
  return value(std::move(variables));
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

result<std::vector<token_id>> tokens_of(const prompt& item, bool add_special, const serving_parts& parts) {
  if (const auto* tokens = std::get_if<token_prompt>(&item)) return *tokens;
  if (const auto* text = std::get_if<std::string>(&item)) {
    encode_options options;
    options.add_special_tokens = add_special;
    return parts.tokens->encode(*text, options);
  }
  if (parts.templates == nullptr) return invalid_request("messages", "this model has no chat template");
  auto variables = template_variables(std::get<chat_prompt>(item), parts);
  if (!variables) return variables.failure();
  return encode_chat(*parts.templates, *parts.tokens, *variables, unix_seconds());
}

result<encoded_prompt> encode(const prompt& item, const encode_job& job, const serving_parts& parts) {
  auto tokens = tokens_of(item, job.add_special_tokens, parts);
  if (!tokens) return tokens.failure();
  encoded_prompt done;
  done.tokens = std::move(*tokens);
  if (job.want_text) {
    const auto* text = std::get_if<std::string>(&item);
    done.text = text != nullptr ? *text : parts.tokens->decode(done.tokens);
    for (const token_id id : done.tokens) done.token_bytes.push_back(parts.tokens->token_bytes(id));
  }
  return done;
}

error internal(const std::exception& e) { return {error_kind::internal, std::string("tokenizing failed: ") + e.what(), "", std::nullopt}; }

} // namespace

encode_done run_job(const encode_job& job, const serving_parts& parts) {
  encode_done done;
  try {
    for (const prompt& item : job.prompts) {
      auto encoded = encode(item, job, parts);
      if (!encoded) return {{}, {encoded.failure()}};
      done.prompts.push_back(std::move(*encoded));
    }
  } catch (const std::exception& e) {
    return {{}, {internal(e)}};
  }
  return done;
}

decode_done run_job(const decode_job& job, const serving_parts& parts) {
  try {
    return {parts.tokens->decode(job.tokens, false), {}};
  } catch (const std::exception& e) {
    return {{}, {internal(e)}};
  }
}

} // namespace troupe::actors
