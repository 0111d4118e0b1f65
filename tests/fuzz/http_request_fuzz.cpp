// Bytes as a client might send them -> request reader -> router -> request parsers. No sockets. The first byte chooses how the input is cut
// into reads, and whether what follows is a whole HTTP request or the body of one.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/json.hpp"
#include "transport/http/auth.hpp"
#include "transport/http/http_head.hpp"
#include "transport/http/openai_request.hpp"
#include "transport/http/openai_response.hpp"
#include "transport/http/request_reader.hpp"
#include "transport/http/router.hpp"

namespace {

using namespace troupe;

const served_model& model() {
  static const served_model tiny = [] {
    served_model out;
    out.names = {"tiny"};
    out.vocab_size = 1000;
    out.has_chat_template = true;
    return out;
  }();
  return tiny;
}

void require(bool holds) {
  if (!holds) std::abort();
}

// Every refusal must become JSON that can be read again.
void check_error(const error& failure) {
  const int status = http::status_of(failure.kind);
  require(status == 400 || status == 404);
  require(json::parse(http::error_body(failure, status)).has_value());
}

void check_generation(const http::api_request& request, const http::server_limits& limits) {
  const auto& g = request.generation;
  require(!g.prompts.empty() && g.n >= 1 && static_cast<std::int64_t>(g.prompts.size()) * g.n <= limits.choices);
  require(g.sampling.temperature >= 0 && g.sampling.top_p > 0 && g.sampling.top_p <= 1 && g.sampling.top_k <= model().vocab_size);
  require(g.sampling.repetition_penalty > 0 && g.sampling.logit_bias.size() <= static_cast<std::size_t>(limits.logit_biases));
  for (const auto& item : g.sampling.logit_bias)
    require(item.token >= 0 && item.token < model().vocab_size && item.bias >= -100 && item.bias <= 100);
  for (const token_id id : g.stop_token_ids) require(id >= 0 && id < model().vocab_size);
  for (const auto& text : g.stop_strings) require(!text.empty());
  for (const auto& item : g.prompts) {
    if (const auto* chat = std::get_if<chat_prompt>(&item)) require(json::parse(chat->messages_json).has_value());
  }
}

void parse_body(http::route target, std::string_view body) {
  const http::server_limits limits;
  if (target == http::route::tokenize) {
    const auto parsed = http::parse_tokenize(body, model(), limits);
    if (!parsed) check_error(parsed.failure());
  } else if (target == http::route::detokenize) {
    const auto parsed = http::parse_detokenize(body, model(), limits);
    if (!parsed) check_error(parsed.failure());
  } else {
    const auto parse = target == http::route::chat_completions ? http::parse_chat : http::parse_completion;
    const auto parsed = parse(body, model(), limits);
    if (parsed) {
      check_generation(*parsed, limits);
    } else {
      check_error(parsed.failure());
    }
  }
}

void handle(const http::request_reader& reader) {
  const auto where = http::find_route(reader.method(), reader.target());
  static const std::vector<std::string> keys = {"key"};
  http::is_authorized(reader.header("Authorization"), keys);
  http::is_echoable_id(reader.header("x-request-id"));
  if (where.method_allowed && http::takes_work(where.target)) parse_body(where.target, reader.body());
}

void feed(std::string_view bytes, std::size_t piece) {
  http::server_limits limits;
  limits.header_bytes = 2000;
  limits.body_bytes = 4000;
  http::request_reader reader(limits);
  std::string pending;
  while (!bytes.empty()) {
    pending += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
    for (bool more = true; more;) {
      const auto step = reader.feed(pending);
      require(step.consumed <= pending.size());
      pending.erase(0, step.consumed);
      if (step.state == http::request_reader::progress::failed) return require(reader.failure_status() >= 400);
      more = step.state != http::request_reader::progress::need_more;
      if (step.state == http::request_reader::progress::complete) {
        require(reader.body().size() <= limits.body_bytes);
        handle(reader);
        reader.reset();
        more = !pending.empty();
      }
    }
    require(pending.size() <= limits.header_bytes + (16U << 10) + piece);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr http::route bodies[] = {http::route::completions, http::route::chat_completions, http::route::tokenize,
                                    http::route::detokenize};
  if (data[0] < 128) {
    parse_body(bodies[data[0] % 4], rest);
  } else {
    feed(rest, data[0] == 255 ? rest.size() + 1 : static_cast<std::size_t>(data[0]) - 127);
  }
  return 0;
}
