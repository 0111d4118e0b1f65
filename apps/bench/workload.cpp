#include "apps/bench/workload.hpp"

#include <array>
#include <charconv>
#include <random>
#include <system_error>
#include <utility>

#include "core/json.hpp"

namespace troupe::bench {
namespace {

constexpr std::array<const char*, 32> words = {"river",  "stone",  "light", "garden", "paper",  "winter", "music",  "north",
                                               "silver", "window", "bread", "cloud",  "road",   "green",  "story",  "water",
                                               "bridge", "summer", "clock", "field",  "island", "glass",  "horse",  "table",
                                               "quiet",  "market", "wood",  "letter", "train",  "apple",  "harbor", "night"};

std::optional<std::int64_t> parse_length(std::string_view text) {
  std::int64_t parsed = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (failure != std::errc{} || end != text.data() + text.size() || parsed < 1 || parsed > 1'000'000'000) return std::nullopt;
  return parsed;
}

std::int64_t draw(std::mt19937_64& random, length_range range) {
  return std::uniform_int_distribution<std::int64_t>(range.low, range.high)(random);
}

value random_tokens(std::mt19937_64& random, value_array prefix, std::int64_t count, std::int64_t vocab_size) {
  std::uniform_int_distribution<std::int64_t> id(0, vocab_size - 1);
  for (std::int64_t i = 0; i < count; ++i) prefix.emplace_back(id(random));
  return prefix;
}

std::string random_words(std::mt19937_64& random, std::string prefix, std::int64_t count) {
  std::uniform_int_distribution<std::size_t> word(0, words.size() - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!prefix.empty()) prefix += ' ';
    prefix += words[word(random)];
  }
  return prefix;
}

value user_message(std::string text) {
  value_object message;
  message.set("role", "user");
  message.set("content", std::move(text));
  return value_array{std::move(message)};
}

// `input` is "prompt" of a completion, or "messages" of a chat.
planned_request plan(const workload_options& options, value input, std::int64_t prompt_tokens, std::int64_t max_tokens) {
  const bool chat = options.target == endpoint::chat;
  value_object body;
  body.set("model", options.model);
  body.set(chat ? "messages" : "prompt", std::move(input));
  body.set(chat ? "max_completion_tokens" : "max_tokens", max_tokens);
  body.set("temperature", options.temperature);
  if (options.ignore_eos) body.set("ignore_eos", true);
  body.set("stream", true);
  value_object stream_options;
  stream_options.set("include_usage", true);
  body.set("stream_options", std::move(stream_options));
  return {chat ? "/v1/chat/completions" : "/v1/completions", json::dump(std::move(body)), prompt_tokens};
}

struct file_prompt {
  value input;
  std::optional<std::int64_t> max_tokens;
};

value as_input(std::string text, endpoint target) {
  return target == endpoint::chat ? user_message(std::move(text)) : value(std::move(text));
}

result<file_prompt> read_json_line(std::string_view line, endpoint target) {
  const auto parsed = json::parse(line);
  if (!parsed) return parsed.failure();
  file_prompt out;
  const auto* prompt = parsed->find("prompt");
  const auto* messages = parsed->find("messages");
  if (prompt && prompt->is_string()) {
    out.input = as_input(prompt->as_string(), target);
  } else if (messages && messages->is_array() && target == endpoint::chat) {
    out.input = *messages;
  } else {
    return invalid_request(
        "", target == endpoint::chat ? "it has neither a string \"prompt\" nor an array \"messages\"" : "it has no string \"prompt\"");
  }
  const auto* max_tokens = parsed->find("max_tokens");
  if (!max_tokens) return out;
  if (!max_tokens->is_int() || max_tokens->as_int() < 1) return invalid_request("", "\"max_tokens\" is no positive integer");
  out.max_tokens = max_tokens->as_int();
  return out;
}

result<std::vector<file_prompt>> read_prompts(std::string_view text, bool json_lines, endpoint target) {
  std::vector<file_prompt> prompts;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    auto line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (!json_lines) {
      prompts.push_back({as_input(std::string(line), target), std::nullopt});
      continue;
    }
    auto prompt = read_json_line(line, target);
    if (!prompt) return invalid_request("", "line " + std::to_string(number) + ": " + prompt.failure().message);
    prompts.push_back(std::move(*prompt));
  }
  if (prompts.empty()) return invalid_request("", "it holds no prompt");
  return prompts;
}

} // namespace

std::optional<length_range> parse_range(std::string_view text) {
  const auto colon = text.find(':');
  const auto low = parse_length(text.substr(0, colon));
  const auto high = colon == std::string_view::npos ? low : parse_length(text.substr(colon + 1));
  if (!low || !high || *low > *high) return std::nullopt;
  return length_range{*low, *high};
}

std::vector<planned_request> random_workload(const workload_options& options, std::size_t count) {
  std::mt19937_64 random(options.seed);
  const bool chat = options.target == endpoint::chat;
  const value prefix_tokens = chat ? value() : random_tokens(random, {}, options.prefix_length, options.vocab_size);
  const std::string prefix_words = chat ? random_words(random, {}, options.prefix_length) : std::string();
  std::vector<planned_request> requests;
  requests.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto input = draw(random, options.input);
    const auto output = draw(random, options.output);
    requests.push_back(chat ? plan(options, user_message(random_words(random, prefix_words, input)), 0, output)
                            : plan(options, random_tokens(random, prefix_tokens.as_array(), input, options.vocab_size),
                                   options.prefix_length + input, output));
  }
  return requests;
}

result<std::vector<planned_request>> file_workload(std::string_view text, bool json_lines, const workload_options& options,
                                                   std::size_t count) {
  const auto prompts = read_prompts(text, json_lines, options.target);
  if (!prompts) return prompts.failure();
  std::mt19937_64 random(options.seed);
  std::vector<planned_request> requests;
  requests.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& prompt = (*prompts)[i % prompts->size()];
    const auto drawn = draw(random, options.output); // drawn for every one, so that a line's own length shifts no other's
    requests.push_back(plan(options, prompt.input, 0, prompt.max_tokens.value_or(drawn)));
  }
  return requests;
}

} // namespace troupe::bench
