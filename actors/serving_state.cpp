#include "actors/serving_state.hpp"

namespace troupe::actors {

telemetry::outcome outcome_of(const error& reason) {
  switch (reason.kind) {
    case error_kind::invalid_request:
    case error_kind::not_found:
    case error_kind::overloaded:
      return telemetry::outcome::rejected;
    case error_kind::cancelled:
      return telemetry::outcome::cancelled;
    case error_kind::unavailable:
    case error_kind::timed_out:
    case error_kind::internal:
      return telemetry::outcome::failed;
  }
  return telemetry::outcome::failed;
}

void end_with_error(serving_state& state, request_id id, const error& reason, const telemetry::request_times& times) {
  auto sink = state.registry.take(id);
  if (sink == nullptr) return;
  state.parts.metrics->request_finished(outcome_of(reason), times);
  sink->on_error(reason);
}

void refuse(serving_state& state, token_sink& sink, const error& reason) {
  const bool not_our_day = reason.kind == error_kind::unavailable; // stopping or failed: turned away like a full queue
  state.parts.metrics->request_finished(not_our_day ? telemetry::outcome::rejected : outcome_of(reason), {});
  sink.on_error(reason);
}

} // namespace troupe::actors
