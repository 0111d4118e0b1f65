// Turns step updates into the calls of token sinks. The only actor that calls a request's sink once the request is open here, and the
// one that ends it.
#pragma once

#include <map>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/request_output.hpp"
#include "actors/serving_state.hpp"

namespace troupe::actors {

struct detokenizer_state {
  static constexpr const char* name = "detokenizer";

  shared_state shared;
  std::vector<scheduler_actor> schedulers; // one per replica
  std::map<request_id, request_output> open;
};

detokenizer_actor::behavior_type run_detokenizer(actor_pointer<detokenizer_actor, detokenizer_state> self, shared_state shared);

} // namespace troupe::actors
