#include "transport/http/api.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include "transport/http/answer_sink.hpp"
#include "transport/http/auth.hpp"
#include "transport/http/json_text.hpp"

namespace troupe::http {

namespace {

error unavailable(std::string message) { return {error_kind::unavailable, std::move(message), "", 1}; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

// "application/json; charset=utf-8" and the like, or no type at all from clients other than browsers. Other types are refused, not least
// because a browser lets any web page send text/plain to a local server without asking.
bool is_json(const request_head& head) {
  if (head.content_types > 1 || (head.content_types == 0 && head.from_page)) return false;
  std::string_view type = head.content_type.substr(0, head.content_type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  return type.empty() || equal_ignoring_case(type, "application/json") ||
         (type.size() > 5 && equal_ignoring_case(type.substr(type.size() - 5), "+json"));
}

bool is_identity(std::string_view encoding) { return encoding.empty() || equal_ignoring_case(encoding, "identity"); }

reply wrong_method(const route_match& where) {
  reply out = error_reply(invalid_request("", "this route does not take that method"), 405);
  out.header_lines = "Allow: " + std::string(where.allow) + "\r\n";
  return out;
}

reply unauthorized() {
  reply out = error_reply(invalid_request("", "a valid API key is needed: Authorization: Bearer KEY"), 401);
  out.header_lines = "WWW-Authenticate: Bearer\r\n";
  return out;
}

} // namespace

api::api(const server_options& options, request_handler& handler, const server_hooks& hooks)
    : options_(options), handler_(handler), hooks_(hooks) {}

std::optional<reply> api::refuse(const request_head& head, const route_match& where) const {
  if (head.lacks_host) return error_reply(invalid_request("", "the request must have one Host field"), 400);
  if (!is_open_to_all(where.target) && !is_authorized(head.authorization, options_.api_keys)) return unauthorized();
  if (where.target == route::unknown) return error_reply({error_kind::not_found, "no such route", "", std::nullopt});
  if (!where.method_allowed) return wrong_method(where);
  if (!head.expect.empty() && !equal_ignoring_case(head.expect, "100-continue")) {
    return error_reply(invalid_request("", "the only expectation known here is 100-continue"), 417);
  }
  if (!takes_work(where.target)) return std::nullopt;
  if (!is_identity(head.content_encoding)) return error_reply(invalid_request("", "encoded bodies are not taken"), 415);
  if (!is_json(head)) return error_reply(invalid_request("", "the body must be sent as Content-Type: application/json"), 415);
  if (is_draining()) return error_reply(unavailable("the server is shutting down"));
  const service_status now = handler_.status();
  if (!now.live || !now.ready) return error_reply(unavailable("not ready" + (now.reason.empty() ? "" : ": " + now.reason)));
  return std::nullopt;
}

std::optional<request_id> api::start(call request) noexcept {
  const auto channel = request.channel;
  try {
    return dispatch(request);
  } catch (const std::exception&) {
    try {
      channel->fail({error_kind::internal, "the request could not be handled", "", std::nullopt});
    } catch (...) { // no memory even for that; the connection's own limits end it
    }
  }
  return std::nullopt;
}

std::optional<request_id> api::dispatch(call& request) {
  if (takes_work(request.where.target) && is_draining()) { // begun while the body was on its way
    request.channel->fail(unavailable("the server is shutting down"));
    return std::nullopt;
  }
  switch (request.where.target) {
    case route::completions:
    case route::chat_completions:
      return generate(request);
    case route::tokenize:
      tokenize(request);
      break;
    case route::detokenize:
      detokenize(request);
      break;
    default:
      request.channel->answer(read_only(request.where));
  }
  return std::nullopt;
}

std::optional<request_id> api::generate(call& request) {
  const auto parse = request.where.target == route::chat_completions ? parse_chat : parse_completion;
  auto parsed = parse(request.body, handler_.model(), options_.limits);
  if (!parsed) {
    request.channel->fail(parsed.failure());
    return std::nullopt;
  }
  generation_request& generation = parsed->generation;
  generation.id = ++last_id_;
  generation.arrival_ns = request.arrival_ns;
  const request_id id = generation.id;
  auto sink = make_answer_sink(head_of(*parsed, std::move(request.text_id), std::time(nullptr)), parsed->stream, request.channel);
  try {
    handler_.submit(std::move(generation), std::move(sink));
  } catch (const std::exception&) {
    cancel(id); // it may have been taken before it failed
    throw;
  }
  return id;
}

void api::tokenize(call& request) {
  auto parsed = parse_tokenize(request.body, handler_.model(), options_.limits);
  if (!parsed) return request.channel->fail(parsed.failure());
  handler_.tokenize(std::move(parsed->input), [channel = request.channel, strings = parsed->want_strings](result<tokenize_reply> tokens) {
    if (!tokens) return channel->fail(tokens.failure());
    reply out;
    out.body = tokenize_body(*tokens, strings);
    channel->answer(std::move(out));
  });
}

void api::detokenize(call& request) {
  auto parsed = parse_detokenize(request.body, handler_.model(), options_.limits);
  if (!parsed) return request.channel->fail(parsed.failure());
  handler_.detokenize(std::move(*parsed), [channel = request.channel](result<std::string> text) {
    if (!text) return channel->fail(text.failure());
    reply out;
    out.body = detokenize_body(*text);
    channel->answer(std::move(out));
  });
}

reply api::read_only(const route_match& where) const {
  reply out;
  switch (where.target) {
    case route::models:
      out.body = models_body(handler_.model());
      break;
    case route::model: {
      const auto& names = handler_.model().names;
      if (std::find(names.begin(), names.end(), where.argument) == names.end()) {
        return error_reply({error_kind::not_found, "the model does not exist; GET /v1/models lists what is served", "model", std::nullopt});
      }
      out.body = model_body(handler_.model(), where.argument);
      break;
    }
    case route::version:
      out.body = "{\"version\":";
      append_quoted(out.body, options_.version);
      out.body += '}';
      break;
    case route::livez:
      return health(false);
    case route::metrics:
      return metrics();
    default:
      return health(true);
  }
  return out;
}

reply api::health(bool must_be_ready) const {
  const service_status now = handler_.status();
  const std::string why = now.reason.empty() ? "" : ": " + now.reason;
  if (!now.live) return error_reply(error{error_kind::unavailable, "not live" + why, "", std::nullopt});
  if (must_be_ready && (now.draining || is_draining())) {
    return error_reply(error{error_kind::unavailable, "not ready: draining", "", std::nullopt});
  }
  if (must_be_ready && !now.ready) return error_reply(error{error_kind::unavailable, "not ready" + why, "", std::nullopt});
  reply out;
  out.body = "{\"status\":\"ok\"}";
  return out;
}

reply api::metrics() const {
  if (!hooks_.metrics_text) return error_reply({error_kind::not_found, "metrics are switched off", "", std::nullopt});
  reply out;
  out.content_type = "text/plain; version=0.0.4; charset=utf-8";
  out.body = hooks_.metrics_text();
  return out;
}

void api::cancel(request_id id) noexcept {
  try {
    handler_.cancel(id);
  } catch (...) { // the client is gone either way
  }
}

void api::request_done(std::string_view route, int status) const noexcept {
  try {
    if (hooks_.request_done) hooks_.request_done(route, status);
  } catch (...) { // a lost statistic harms no request
  }
}

void api::slow_reader_dropped() const noexcept {
  try {
    if (hooks_.slow_reader_dropped) hooks_.slow_reader_dropped();
  } catch (...) {
  }
}

} // namespace troupe::http
