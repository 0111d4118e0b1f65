// The bodies that are not generated text: errors, models, tokens.
#include <array>

#include "transport/http/json_text.hpp"
#include "transport/http/openai_response.hpp"

namespace troupe::http {

namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

std::string_view code_of(const error& failure, int status) {
  switch (status) {
    case 401:
      return "invalid_api_key";
    case 404:
      return failure.param == "model" ? "model_not_found" : "not_found";
    case 405:
      return "method_not_allowed";
    case 408:
      return "request_timeout";
    case 413:
      return "request_too_large";
    case 415:
      return "unsupported_media_type";
    case 429:
      return "overloaded";
    case 431:
      return "header_too_large";
    case 503:
      return "unavailable";
    default:
      return "";
  }
}

void append_optional(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_quoted(out, text);
  }
}

void append_model(std::string& out, const served_model& model, std::string_view name) {
  out += "{\"id\":";
  append_quoted(out, name);
  out += ",\"object\":\"model\",\"created\":";
  append_integer(out, model.created);
  out += ",\"owned_by\":\"troupe\",\"root\":";
  append_quoted(out, model.names.empty() ? name : model.names.front());
  out += ",\"max_model_len\":";
  append_integer(out, model.max_model_len);
  out += '}';
}

} // namespace

int status_of(error_kind kind) {
  switch (kind) {
    case error_kind::invalid_request:
      return 400;
    case error_kind::not_found:
      return 404;
    case error_kind::overloaded:
      return 429;
    case error_kind::unavailable:
      return 503;
    case error_kind::timed_out:
      return 504;
    case error_kind::cancelled:
      return 503; // nobody reads it when it was the client who went away
    case error_kind::internal:
      break;
  }
  return 500;
}

std::string error_body(const error& failure, int status) {
  std::string out = "{\"error\":{\"message\":";
  append_quoted(out, failure.message);
  out += ",\"type\":";
  append_quoted(out, type_of(status));
  out += ",\"param\":";
  append_optional(out, failure.param);
  out += ",\"code\":";
  append_optional(out, code_of(failure, status));
  out += "}}";
  return out;
}

std::string error_event(const error& failure) { return "data: " + error_body(failure, status_of(failure.kind)) + "\n\n"; }

std::string models_body(const served_model& model) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  for (std::size_t i = 0; i < model.names.size(); ++i) {
    if (i > 0) out += ',';
    append_model(out, model, model.names[i]);
  }
  out += "]}";
  return out;
}

std::string model_body(const served_model& model, std::string_view name) {
  std::string out;
  append_model(out, model, name);
  return out;
}

std::string tokenize_body(const tokenize_reply& reply, bool want_strings) {
  std::string out = "{\"count\":";
  append_integer(out, static_cast<std::int64_t>(reply.tokens.size()));
  out += ",\"max_model_len\":";
  append_integer(out, reply.max_model_len);
  out += ",\"tokens\":[";
  for (std::size_t i = 0; i < reply.tokens.size(); ++i) {
    if (i > 0) out += ',';
    append_integer(out, reply.tokens[i]);
  }
  out += "],\"token_strs\":";
  if (!want_strings) return out += "null}";
  out += '[';
  for (std::size_t i = 0; i < reply.token_bytes.size(); ++i) {
    if (i > 0) out += ',';
    append_quoted(out, reply.token_bytes[i]);
  }
  out += "]}";
  return out;
}

std::string detokenize_body(std::string_view text) {
  std::string out = "{\"prompt\":";
  append_quoted(out, text);
  out += '}';
  return out;
}

} // namespace troupe::http
