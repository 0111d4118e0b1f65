#include "actors/tokenizer_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

#include "actors/text_jobs.hpp"

namespace troupe::actors {

tokenizer_actor::behavior_type run_tokenizer(actor_pointer<tokenizer_actor, tokenizer_state>, shared_state shared) {
  return {
      [shared](const encode_job& job) { return run_job(job, shared->parts); },
      [shared](const decode_job& job) { return run_job(job, shared->parts); },
  };
}

} // namespace troupe::actors
