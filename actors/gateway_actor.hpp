// From request to sequences: hands prompts to idle tokenizers, decides admission, opens the request at the detokenizer and the
// scheduler. Owns a request until then; everything after is the detokenizer's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <variant>
#include <vector>

#include "actors/actor_pointer.hpp"
#include "actors/protocol.hpp"
#include "actors/serving_state.hpp"

namespace troupe::actors {

struct request_job {
  request_id id = 0;
};

struct gateway_state {
  static constexpr const char* name = "gateway";

  shared_state shared;
  scheduler_actor scheduler;
  detokenizer_actor detokenizer;
  std::vector<token_id> eos;
  std::vector<tokenizer_actor> idle;                                          // each works on one job at a time
  std::deque<std::variant<request_job, tokenize_call, detokenize_call>> jobs; // a request may be cancelled while it waits here
  std::map<request_id, generation_request> requests;                          // waiting or being tokenized
  std::mt19937_64 seeds{std::random_device{}()};
  std::optional<error> ended; // end_all came
  bool ticking = false;       // the timer of deadlines runs
};

gateway_actor::behavior_type run_gateway(actor_pointer<gateway_actor, gateway_state> self, shared_state shared, scheduler_actor scheduler,
                                         detokenizer_actor detokenizer);

} // namespace troupe::actors
