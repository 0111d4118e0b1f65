// Text work of one worker: templates and encoding, on a thread of its own, never on the network's.
#pragma once

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving_state.hpp"

namespace troupe::actors {

struct tokenizer_state {
  static constexpr const char* name = "tokenizer";
};

tokenizer_actor::behavior_type run_tokenizer(actor_pointer<tokenizer_actor, tokenizer_state> self, shared_state shared);

} // namespace troupe::actors
