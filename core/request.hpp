// One client request as the gateway takes it, and what comes back for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/ids.hpp"
#include "core/sampling.hpp"

namespace troupe {

// A chat prompt, still as JSON text (checked: an array of objects, content normalised to a string).
struct chat_prompt {
  std::string messages_json;        // [{"role": .., "content": .., ..}, ..]
  std::string tools_json;           // array, or empty when none were sent
  std::string template_kwargs_json; // object, or empty
  bool add_generation_prompt = true;

  friend bool operator==(const chat_prompt&, const chat_prompt&) = default;
};

using token_prompt = std::vector<token_id>; // used as it is
using prompt = std::variant<std::string, token_prompt, chat_prompt>;

struct generation_request {
  request_id id = 0;
  std::uint64_t arrival_ns = 0; // steady clock, when the first byte of the request was complete in transport/http
  std::string model;
  std::vector<prompt> prompts;            // at least one; a chat request has exactly one
  bool add_special_tokens = true;         // text prompts: BOS where the tokenizer asks for it
  std::int32_t n = 1;                     // choices per prompt; choice index = prompt * n + i
  std::optional<std::int32_t> max_tokens; // none: up to the context limit
  sampling_params sampling;               // min_tokens and suppressed are filled by the gateway
  std::optional<std::uint64_t> seed;      // none: the gateway draws one; choice i uses seed + i
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<token_id> stop_token_ids;
  std::vector<std::string> stop_strings;
  bool include_stop_string = false;
  bool echo = false;                           // report the prompt first
  std::optional<std::int32_t> prompt_logprobs; // with this many best alternatives
  std::int32_t priority = 0;                   // lower is earlier
  std::optional<std::uint64_t> queue_timeout_ns; // from arrival until a device works on it; none: no limit
  std::optional<std::uint64_t> timeout_ns;       // from arrival until its end; none: no limit
  std::string cache_salt;                      // cached prefixes are shared among requests of equal salt only
};

struct token_logprob {
  token_id token = 0;
  float logprob = 0;
  std::string bytes; // the token's own bytes, maybe part of a character
};

struct position_logprobs {
  token_logprob chosen;
  std::vector<token_logprob> top; // best first; may or may not hold `chosen`
};

// The prompt, for echo: once per prompt, before any output of its choices.
struct prompt_report {
  std::int32_t prompt_index = 0;
  std::string text;
  std::vector<token_id> tokens;
  std::vector<std::string> token_bytes;                   // one per token
  std::vector<std::optional<position_logprobs>> logprobs; // empty, or one per token; the first is none
};

// New output of one choice. `text` is valid UTF-8 and is sent once; joined, the chunks are the whole text.
struct output_chunk {
  std::int32_t index = 0;
  std::string text;
  std::vector<token_id> tokens;            // tokens generated since the last chunk (text may lag behind them)
  std::vector<position_logprobs> logprobs; // one per token in `tokens`, when asked for
  std::optional<finish_reason> finish;     // set on the choice's last chunk
  std::string stop_reason;                 // the stop string that matched, or empty
};

struct usage_report {
  std::int64_t prompt_tokens = 0; // each prompt once, whatever n
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0; // 0 <= cached <= prompt
};

struct tokenize_request {
  prompt input;
  bool add_special_tokens = true;
};

struct tokenize_reply {
  std::vector<token_id> tokens;
  std::vector<std::string> token_bytes;
  std::int32_t max_model_len = 0;
};

} // namespace troupe
