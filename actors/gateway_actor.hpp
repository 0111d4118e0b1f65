// From request to sequences: hands prompts to idle tokenizers, decides admission, chooses the replica, opens the request at the detokenizer
// and the replica's scheduler. Owns a request until then; everything after is the detokenizer's. Sequences whose group does not come back
// are given to another replica here, too.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <variant>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving_state.hpp"
#include "scheduler/replica_router.hpp"

namespace troupe::actors {

struct request_job {
  request_id id = 0;
};

struct gateway_state {
  static constexpr const char* name = "gateway";

  shared_state shared;
  std::vector<scheduler_actor> schedulers; // one per replica
  detokenizer_actor detokenizer;
  std::optional<replica_router> router;   // from the first request on: the devices' limits are known then
  std::vector<std::uint64_t> losses_seen; // of each replica, by the router
  std::vector<token_id> eos;
  std::vector<tokenizer_actor> idle;                                          // each works on one job at a time
  std::deque<std::variant<request_job, tokenize_call, detokenize_call>> jobs; // a request may be cancelled while it waits here
  std::map<request_id, generation_request> requests;                          // waiting or being tokenized
  std::mt19937_64 seeds{std::random_device{}()};
  std::optional<error> ended; // end_all came
  bool ticking = false;       // the timer of deadlines runs
};

gateway_actor::behavior_type run_gateway(actor_pointer<gateway_actor, gateway_state> self, shared_state shared,
                                         std::vector<scheduler_actor> schedulers, detokenizer_actor detokenizer);

} // namespace troupe::actors
