#include "actors/admission.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace troupe::actors {

namespace {

constexpr std::size_t kPromptTail = 16; // tokens that generated text may have to join on to

std::string number(std::int64_t n) { return std::to_string(n); }

std::optional<error> check_ids(const std::vector<token_id>& ids, std::int32_t vocab_size, const char* field) {
  for (const token_id id : ids) {
    if (id < 0 || id >= vocab_size) {
      return invalid_request(field, "token id " + number(id) + " is outside the vocabulary of " + number(vocab_size));
    }
  }
  return std::nullopt;
}

std::optional<error> check_sampling(const sampling_params& p, std::int32_t vocab_size) {
  const std::pair<const char*, float> numbers[] = {{"temperature", p.temperature},
                                                   {"top_p", p.top_p},
                                                   {"min_p", p.min_p},
                                                   {"repetition_penalty", p.repetition_penalty},
                                                   {"presence_penalty", p.presence_penalty},
                                                   {"frequency_penalty", p.frequency_penalty}};
  for (const auto& [name, x] : numbers) {
    if (!std::isfinite(x)) return invalid_request(name, std::string(name) + " must be a finite number");
  }
  std::vector<token_id> biased;
  for (const token_bias& b : p.logit_bias) {
    if (!std::isfinite(b.bias)) return invalid_request("logit_bias", "logit_bias must hold finite numbers");
    biased.push_back(b.token);
  }
  return check_ids(biased, vocab_size, "logit_bias");
}

std::optional<error> check_limits(const generation_request& r) {
  if (r.n < 1) return invalid_request("n", "n must be at least 1");
  if (choices_of(r) > std::numeric_limits<std::int32_t>::max()) return invalid_request("n", "too many choices");
  if (r.max_tokens && *r.max_tokens < 0) return invalid_request("max_tokens", "max_tokens must not be negative");
  if (r.min_tokens < 0) return invalid_request("min_tokens", "min_tokens must not be negative");
  if (r.max_tokens && r.min_tokens > *r.max_tokens) return invalid_request("min_tokens", "min_tokens must not exceed max_tokens");
  return std::nullopt;
}

std::optional<error> check_prompt(const prompt& p, const served_model& model) {
  if (const auto* tokens = std::get_if<token_prompt>(&p)) return check_ids(*tokens, model.vocab_size, "prompt");
  if (std::holds_alternative<chat_prompt>(p) && !model.has_chat_template) {
    return invalid_request("messages", "this model has no chat template");
  }
  return std::nullopt;
}

// Outputs that a choice of this prompt may have, or the refusal.
result<std::int32_t> output_limit(const generation_request& r, std::size_t prompt_tokens, std::int32_t max_model_len) {
  const bool chat = std::holds_alternative<chat_prompt>(r.prompts.front());
  const char* field = chat ? "messages" : "prompt";
  if (prompt_tokens == 0) return invalid_request(field, "the prompt has no tokens");
  const std::int64_t room = max_model_len - static_cast<std::int64_t>(prompt_tokens);
  const std::int64_t least = r.max_tokens == 0 ? 0 : 1;
  if (room < least) {
    return invalid_request(field, "the prompt has " + number(static_cast<std::int64_t>(prompt_tokens)) +
                                      " tokens and leaves no room for an output in the context of " + number(max_model_len));
  }
  const std::int64_t wanted = r.max_tokens.value_or(static_cast<std::int32_t>(room));
  if (wanted > room) {
    return invalid_request("max_tokens", "prompt (" + number(static_cast<std::int64_t>(prompt_tokens)) + " tokens) and max_tokens (" +
                                             number(wanted) + ") together exceed the context of " + number(max_model_len));
  }
  if (r.min_tokens > wanted) return invalid_request("min_tokens", "min_tokens exceeds the " + number(wanted) + " tokens that fit");
  return static_cast<std::int32_t>(wanted);
}

stop_conditions stops_of(const generation_request& r, const std::vector<token_id>& eos, std::int32_t max_tokens) {
  stop_conditions stop;
  stop.max_tokens = max_tokens;
  stop.min_tokens = r.min_tokens;
  if (!r.ignore_eos) stop.stop_token_ids = eos;
  for (const token_id id : r.stop_token_ids) {
    if (std::find(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), id) == stop.stop_token_ids.end()) {
      stop.stop_token_ids.push_back(id);
    }
  }
  stop.stop_strings = r.stop_strings;
  stop.include_stop_string = r.include_stop_string;
  return stop;
}

} // namespace

std::int64_t choices_of(const generation_request& request) {
  // n is 32 bits and a vector of prompts holds fewer than 2^58: clamp before the product could overflow.
  const auto prompts = std::min<std::size_t>(request.prompts.size(), std::size_t{1} << 31);
  return static_cast<std::int64_t>(request.n) * static_cast<std::int64_t>(prompts);
}

std::uint64_t gateway_deadline(const generation_request& request) {
  const auto timeout = std::min(request.queue_timeout_ns.value_or(kNever), request.timeout_ns.value_or(kNever));
  return timeout > kNever - request.arrival_ns ? kNever : request.arrival_ns + timeout;
}

error gateway_timeout(const generation_request& request) {
  const bool queue = request.queue_timeout_ns.value_or(kNever) <= request.timeout_ns.value_or(kNever);
  return {error_kind::timed_out, "the request waited too long", queue ? "queue_timeout_ms" : "timeout_ms", std::nullopt};
}

std::size_t prompt_bytes_of(const prompt& item) {
  if (const auto* text = std::get_if<std::string>(&item)) return text->size();
  if (const auto* tokens = std::get_if<token_prompt>(&item)) return tokens->size() * sizeof(token_id);
  const auto& chat = std::get<chat_prompt>(item);
  return chat.messages_json.size() + chat.tools_json.size() + chat.template_kwargs_json.size();
}

std::optional<error> check_request(const generation_request& request, const served_model& model) {
  const auto& names = model.names;
  if (!request.model.empty() && !names.empty() && std::find(names.begin(), names.end(), request.model) == names.end()) {
    return error{error_kind::not_found, "this server does not serve the model that was asked for", "model", std::nullopt};
  }
  if (request.prompts.empty()) return invalid_request("prompt", "at least one prompt is needed");
  for (const prompt& p : request.prompts) {
    if (auto bad = check_prompt(p, model)) return bad;
  }
  if (auto bad = check_limits(request)) return bad;
  if (auto bad = check_ids(request.stop_token_ids, model.vocab_size, "stop_token_ids")) return bad;
  return check_sampling(request.sampling, model.vocab_size);
}

result<std::vector<sequence_request>> expand(const generation_request& request, const std::vector<encoded_prompt>& prompts,
                                             const served_model& model, const std::vector<token_id>& eos, std::uint64_t seed) {
  std::vector<sequence_request> sequences;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const auto& tokens = prompts[p].tokens;
    auto limit = output_limit(request, tokens.size(), model.max_model_len);
    if (!limit) return limit.failure();
    if (auto bad = check_ids(tokens, model.vocab_size, "prompt")) return *bad;
    for (std::int32_t i = 0; i < request.n; ++i) {
      sequence_request s;
      s.id = {request.id, static_cast<std::int32_t>(p) * request.n + i};
      s.prompt = tokens;
      if (i > 0) s.same_prompt_as = static_cast<std::int32_t>(p) * request.n;
      s.sampling = request.sampling;
      s.sampling.seed = seed + static_cast<std::uint64_t>(i);
      s.stop = stops_of(request, eos, *limit);
      s.sampling.min_tokens = request.min_tokens;
      s.sampling.suppressed = request.min_tokens > 0 ? s.stop.stop_token_ids : std::vector<token_id>{};
      if (i == 0 && request.echo) s.prompt_logprobs = request.prompt_logprobs;
      s.priority = request.priority;
      s.cache_salt = request.cache_salt;
      s.arrival_ns = request.arrival_ns;
      if (request.queue_timeout_ns) s.queue_deadline_ns = request.arrival_ns + *request.queue_timeout_ns;
      if (request.timeout_ns) s.total_deadline_ns = request.arrival_ns + *request.timeout_ns;
      sequences.push_back(std::move(s));
    }
  }
  return sequences;
}

open_request describe(const generation_request& request, std::vector<encoded_prompt> prompts, const stop_conditions& stop) {
  open_request open;
  open.id = request.id;
  open.arrival_ns = request.arrival_ns;
  open.n = request.n;
  open.stop = stop;
  open.echo = request.echo;
  open.prompt_scores = request.echo && request.prompt_logprobs.has_value();
  open.logprobs = request.sampling.top_logprobs.has_value();
  for (encoded_prompt& p : prompts) {
    prompt_info info;
    info.token_count = static_cast<std::int32_t>(p.tokens.size());
    info.tail.assign(p.tokens.end() - static_cast<std::ptrdiff_t>(std::min(kPromptTail, p.tokens.size())), p.tokens.end());
    if (request.echo) info.report = std::move(p);
    open.prompts.push_back(std::move(info));
  }
  return open;
}

} // namespace troupe::actors
