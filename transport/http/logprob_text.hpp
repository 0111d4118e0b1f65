// Log-probabilities of one choice as JSON, in the shape of either API.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/request.hpp"
#include "transport/http/openai_request.hpp"

namespace troupe::http {

// Positions are appended as JSON text when they arrive. Completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; chat:
// {"content":
// [{"token", "logprob", "bytes", "top_logprobs"}]}. A token that is not UTF-8 by itself shows U+FFFD in its text.
class logprob_text {
 public:
  explicit logprob_text(api_kind kind = api_kind::completion) : kind_(kind) {}

  void add(const position_logprobs& position);
  // A prompt's token; the first one of a prompt has no probability.
  void add_prompt(std::string_view token_bytes, const std::optional<position_logprobs>& position);
  // Text offsets go on from `characters`.
  void set_offset(std::int64_t characters) { offset_ = characters; }
  std::string json() const;
  // Forgets the positions but not the offset.
  void clear();

 private:
  void add_completion(std::string_view token_bytes, const position_logprobs* position);
  void add_chat(const position_logprobs& position);

  api_kind kind_;
  std::string tokens_; // completions: tokens; chat: content
  std::string logprobs_;
  std::string tops_;
  std::string offsets_;
  std::int64_t offset_ = 0; // characters before the next token
};

} // namespace troupe::http
