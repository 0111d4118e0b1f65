// What is said of requests, from their text to their tokens and back. Part of protocol.hpp.
#pragma once

#include <caf/meta/type_name.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/inspect.hpp"
#include "scheduler/scheduler.hpp"

namespace troupe::actors {

// -- text -------------------------------------------------------------------------------------------------------------------------

struct encode_job {
  std::vector<prompt> prompts;
  bool add_special_tokens = true;
  bool want_text = false; // also text and token bytes, as echo and /tokenize need them
};

struct encoded_prompt {
  std::string text;
  std::vector<token_id> tokens;
  std::vector<std::string> token_bytes; // one per token, when asked for
};

struct encode_done {
  std::vector<encoded_prompt> prompts; // as many as the job had, or none with a failure
  std::vector<error> failure;          // at most one
};

struct decode_job {
  std::vector<token_id> tokens;
};

struct decode_done {
  std::string text;
  std::vector<error> failure; // at most one
};

// -- gateway ----------------------------------------------------------------------------------------------------------------------

// A tokenize or detokenize call; `call` names its reply function in the registry.
struct tokenize_call {
  std::uint64_t call = 0;
  prompt input;
  bool add_special_tokens = true;
};

struct detokenize_call {
  std::uint64_t call = 0;
  std::vector<token_id> tokens;
};

struct cancel_request {
  request_id id = 0;
};

// Everything that is under way ends with this error, and so does whatever comes later.
struct end_all {
  error reason;
};

// -- detokenizer ------------------------------------------------------------------------------------------------------------------

// What the detokenizer must know of one prompt of a request before its first output.
struct prompt_info {
  std::int32_t token_count = 0;
  std::vector<token_id> tail; // its last tokens: generated text joins on to them
  encoded_prompt report;      // for echo, else empty
};

struct open_request {
  request_id id = 0;
  std::uint64_t arrival_ns = 0;
  std::int32_t n = 1; // choices per prompt
  std::vector<prompt_info> prompts;
  stop_conditions stop;
  bool echo = false;
  bool prompt_scores = false; // the echo waits for them
  bool logprobs = false;
};

struct refuse_request {
  request_id id = 0;
  error reason;
};

// What one step made of all its sequences.
struct step_updates {
  std::uint64_t now_ns = 0;
  std::vector<sequence_update> updates;
};

// -- scheduler --------------------------------------------------------------------------------------------------------------------

// All sequences of one request: admitted together or refused together.
struct add_sequences {
  std::vector<sequence_request> sequences;
};

struct remove_sequences {
  std::vector<sequence_id> ids;
};

// Sequences that leave a scheduler whose group is not back in time; each keeps its outputs.
struct moved_sequences {
  std::int32_t from = 0; // replica
  std::vector<sequence_progress> sequences;
};

// -- inspect ----------------------------------------------------------------------------------------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, encode_job& x) {
  return f(caf::meta::type_name("encode_job"), x.prompts, x.add_special_tokens, x.want_text);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, encoded_prompt& x) {
  return f(caf::meta::type_name("encoded_prompt"), x.text, x.tokens, x.token_bytes);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, encode_done& x) {
  return f(caf::meta::type_name("encode_done"), x.prompts, x.failure);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, decode_job& x) {
  return f(caf::meta::type_name("decode_job"), x.tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, decode_done& x) {
  return f(caf::meta::type_name("decode_done"), x.text, x.failure);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, tokenize_call& x) {
  return f(caf::meta::type_name("tokenize_call"), x.call, x.input, x.add_special_tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, detokenize_call& x) {
  return f(caf::meta::type_name("detokenize_call"), x.call, x.tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, cancel_request& x) {
  return f(caf::meta::type_name("cancel_request"), x.id);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, end_all& x) {
  return f(caf::meta::type_name("end_all"), x.reason);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, prompt_info& x) {
  return f(caf::meta::type_name("prompt_info"), x.token_count, x.tail, x.report);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, open_request& x) {
  return f(caf::meta::type_name("open_request"), x.id, x.arrival_ns, x.n, x.prompts, x.stop, x.echo, x.prompt_scores, x.logprobs);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, refuse_request& x) {
  return f(caf::meta::type_name("refuse_request"), x.id, x.reason);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_updates& x) {
  return f(caf::meta::type_name("step_updates"), x.now_ns, x.updates);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, add_sequences& x) {
  return f(caf::meta::type_name("add_sequences"), x.sequences);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, remove_sequences& x) {
  return f(caf::meta::type_name("remove_sequences"), x.ids);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, moved_sequences& x) {
  return f(caf::meta::type_name("moved_sequences"), x.from, x.sequences);
}

} // namespace troupe::actors
