// The border between the network side and the serving side: two interfaces that know neither CAF nor HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/request.hpp"

namespace troupe {

// Receives what one request produces. Called from actor threads, never concurrently for one request; must not block and must
// not throw. Exactly one of on_finished and on_error is the last call.
class token_sink {
 public:
  virtual ~token_sink() = default;
  virtual void on_prompt(const prompt_report& report) = 0; // only when echo was asked for
  virtual void on_output(const output_chunk& chunk) = 0;
  virtual void on_finished(const usage_report& usage) = 0;
  virtual void on_error(const error& failure) = 0;
};

struct service_status {
  bool live = true;      // the process can still do its work, or is loading
  bool ready = false;    // requests are accepted now
  bool draining = false; // SIGTERM seen: no new requests
  std::string reason;    // why not ready, what is missing though ready, or empty
};

struct served_model {
  std::vector<std::string> names; // the first is the primary; all are accepted in "model"
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0; // ids 0 .. vocab_size-1 are valid in prompts, logit_bias and stop_token_ids
  std::int64_t created = 0;    // Unix seconds
  bool has_chat_template = false;
};

// The serving side as transport sees it. All calls are thread-safe and return at once.
class request_handler {
 public:
  virtual ~request_handler() = default;
  // A refusal comes through sink->on_error, before submit returns or after.
  virtual void submit(generation_request request, std::shared_ptr<token_sink> sink) = 0;
  // Idempotent; an unknown or ended request is ignored. The sink may still see calls that were under way, then on_error(cancelled).
  virtual void cancel(request_id id) = 0;
  virtual void tokenize(tokenize_request request, std::function<void(result<tokenize_reply>)> reply) = 0;
  virtual void detokenize(std::vector<token_id> tokens, std::function<void(result<std::string>)> reply) = 0;
  virtual service_status status() const = 0;
  virtual const served_model& model() const = 0;
};

} // namespace troupe
