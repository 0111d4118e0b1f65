// What was generated -> OpenAI-shaped JSON, whole or as server-sent events. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.hpp"
#include "core/service.hpp"
#include "transport/http/logprob_text.hpp"
#include "transport/http/openai_request.hpp"

namespace troupe::http {

// What every body of one answer repeats.
struct answer_head {
  std::string id;           // "cmpl-.." or "chatcmpl-.."
  std::int64_t created = 0; // Unix seconds
  std::string model;
  api_kind kind = api_kind::completion;
  std::int32_t n = 1;
  std::int32_t choices = 1; // n * prompts
  bool logprobs = false;
  bool include_usage = false;
  bool token_ids = false;
  finish_reason unfinished = finish_reason::stop; // of a choice whose end was not reported: length when max_tokens is 0
};

answer_head head_of(const api_request& request, std::string id, std::int64_t created);

// Gathers one whole answer.
class whole_answer {
 public:
  explicit whole_answer(answer_head head);

  void prompt(const prompt_report& report);
  // False when the chunk belongs to no choice of this request.
  bool output(const output_chunk& chunk);
  std::string finish(const usage_report& usage);

 private:
  struct choice {
    std::string text;
    logprob_text logprobs;
    std::optional<finish_reason> finish;
    std::string stop_reason;
    std::vector<token_id> tokens;
  };
  void append_choice(std::string& out, std::size_t index) const;

  answer_head head_;
  std::vector<choice> choices_;
};

// Writes one streamed answer, event by event: per choice the role (chat), text and then a reason to finish; last the usage when it was
// asked for, and [DONE].
class event_writer {
 public:
  explicit event_writer(answer_head head);

  void prompt(const prompt_report& report, std::string& out);
  // False when the chunk belongs to no choice of this request.
  bool output(const output_chunk& chunk, std::string& out);
  void finish(const usage_report& usage, std::string& out);

 private:
  struct choice {
    logprob_text logprobs;
    bool begun = false;
    bool finished = false;
  };
  void open(std::string& out, std::int32_t index);
  void close(std::string& out, std::optional<finish_reason> reason, std::string_view stop_reason);
  void text_event(std::string& out, std::int32_t index, std::string_view text, std::optional<finish_reason> reason,
                  std::string_view stop_reason);
  void delta_event(std::string& out, std::int32_t index, std::string_view delta);
  void finish_event(std::string& out, std::int32_t index, finish_reason reason, std::string_view stop_reason);
  void end_choice(std::string& out, std::int32_t index, finish_reason reason, std::string_view stop_reason);

  answer_head head_;
  std::string prefix_; // `data: {..,"choices":[`
  std::string suffix_; // what follows the choices, to the end of the event
  std::vector<choice> choices_;
};

int status_of(error_kind kind);
// {"error": {"message", "type", "param", "code"}}
std::string error_body(const error& failure, int status);
// The same as the last event of a stream that cannot go on.
std::string error_event(const error& failure);

std::string models_body(const served_model& model);
std::string model_body(const served_model& model, std::string_view name);
std::string tokenize_body(const tokenize_reply& reply, bool want_strings);
std::string detokenize_body(std::string_view text);

} // namespace troupe::http
