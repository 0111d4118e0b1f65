// JSON bodies -> plain requests. Pure; docs/api.md lists every field and range.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/request.hpp"
#include "core/service.hpp"
#include "transport/http/server.hpp"

namespace troupe::http {

enum class api_kind : std::uint8_t { completion, chat };

struct api_request {
  api_kind kind = api_kind::completion;
  generation_request generation; // id and arrival_ns are left to the caller
  bool stream = false;
  bool include_usage = false;    // stream_options.include_usage
  bool return_token_ids = false; // whole answers only
};

struct token_request {
  tokenize_request input;
  bool want_strings = false; // return_token_strs
};

// Members that are null count as absent and unknown ones are ignored. The error's `param` names the member at fault; the model's name at
// fault is error_kind::not_found, everything else invalid_request.
result<api_request> parse_completion(std::string_view body, const served_model& model, const server_limits& limits);
result<api_request> parse_chat(std::string_view body, const served_model& model, const server_limits& limits);
result<token_request> parse_tokenize(std::string_view body, const served_model& model, const server_limits& limits);
result<std::vector<token_id>> parse_detokenize(std::string_view body, const served_model& model, const server_limits& limits);

} // namespace troupe::http
