// Chat templates: the part of Jinja2 that real models use, with budgets and no access to the host.
//
// The reference is Jinja2's immutable sandbox as transformers sets it up (trim_blocks, lstrip_blocks, break and continue,
// {% generation %}, its tojson, raise_exception, strftime_now). Left out, each a load error: include, import, extends, block,
// recursive loops, character names in strings. Integers are 64 bits wide, and going beyond is an error; `safe` and `escape` give plain
// strings, for nothing is escaped automatically.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/ids.hpp"
#include "core/value.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe {

struct template_limits {
  std::size_t max_steps = 2'000'000;       // evaluated nodes
  std::size_t max_depth = 64;              // nested brackets, operators and blocks of the source; evaluation, with its macro calls, 8 times as deep
  std::size_t max_output = 16U << 20;      // bytes, of the output and of any one string
  std::chrono::milliseconds max_time{2000};
};

class chat_template {
 public:
  // Throws load_error on a syntax error or an unknown construct: name, line, reason.
  chat_template(std::string_view source, std::string_view name, template_limits limits = {});
  ~chat_template();
  chat_template(chat_template&&) noexcept;
  chat_template& operator=(chat_template&&) noexcept;

  // `variables`: an object (messages, tools, add_generation_prompt, bos_token, eos_token, and the client's own kwargs).
  // raise_exception(..) and a spent budget are invalid_request errors on "messages". Thread-safe. trim_blocks and lstrip_blocks are on,
  // as in transformers. strftime_now uses `now` (Unix seconds, UTC).
  result<std::string> render(const value& variables, std::int64_t now) const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Renders and tokenizes a chat so that only the template's own text can become control tokens: control-token text inside message
// strings stays plain text (docs/architecture.md says how), in whatever ASCII case the template prints it, unless the template itself
// removes or replaces characters inside such a string and so spells a control token. That goes for every variable but bos_token and
// eos_token, which are the checkpoint's: do not let a client set those. A control token whose text is a single character cannot be kept
// out this way. Never adds a BOS that the template did not print.
result<std::vector<token_id>> encode_chat(const chat_template& source, const tokenizer& tokens, const value& variables, std::int64_t now);

} // namespace troupe
