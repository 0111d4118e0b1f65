// Which route a request line names. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::http {

enum class route : std::uint8_t {
  models,
  model,
  completions,
  chat_completions,
  tokenize,
  detokenize,
  version,
  livez,
  readyz,
  health,
  metrics,
  unknown,
};

struct route_match {
  route target = route::unknown;
  std::string_view name = "other"; // from a closed set, fit to be a metric's label: "/v1/models/{id}", never client text
  std::string_view allow;          // methods for the Allow header; empty for an unknown route
  bool method_allowed = false;
  std::string argument; // {id}, percent-decoded
};

// `target` is a request target in origin or absolute form; its query is ignored.
route_match find_route(std::string_view method, std::string_view target);

// Routes that stay open when API keys are set: an orchestrator's probes carry none.
bool is_open_to_all(route target);
// Routes whose answer comes from the request_handler, later.
bool takes_work(route target);

} // namespace troupe::http
