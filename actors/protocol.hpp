// Every message and every actor interface. Messages carry ids, tokens, text and integers: never pointers, never floats.
//
//   serving --generation_request--> gateway --encode_job--> tokenizer
//   gateway --open_request--> detokenizer, --add_sequences--> scheduler (of the replica that it chose)
//   scheduler --step_plan--> every device of the group --step_done | step_failed--> scheduler
//   scheduler --step_updates--> detokenizer (one message a step, all sequences) --> token_sink
//   device --device_hello--> supervisor --rank_start--> device --rendezvous (rank 0), device_ready | device_start_failed--> supervisor
//   supervisor --attach/detach/migrate--> scheduler --group_suspect--> supervisor
//   scheduler --moved_sequences--> gateway --moved_sequences--> scheduler of another replica
//   supervisor --pause_group--> scheduler --group_paused--> supervisor   (for another program, or a node that leaves)
#pragma once

#include <caf/replies_to.hpp>
#include <caf/type_id.hpp>
#include <caf/typed_actor.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster_messages.hpp"
#include "actors/inspect.hpp"
#include "actors/program_messages.hpp"
#include "actors/serving.hpp"
#include "scheduler/scheduler.hpp"

namespace troupe::actors {

// Counts a group's formations, from 1: a message about an earlier one is ignored.
using generation_number = std::uint64_t;

// -- text -------------------------------------------------------------------------------------------------------------------------

struct encode_job {
  std::vector<prompt> prompts;
  bool add_special_tokens = true;
  bool want_text = false; // also text and token bytes, as echo and /tokenize need them
};

struct encoded_prompt {
  std::string text;
  std::vector<token_id> tokens;
  std::vector<std::string> token_bytes; // one per token, when asked for
};

struct encode_done {
  std::vector<encoded_prompt> prompts; // as many as the job had, or none with a failure
  std::vector<error> failure;          // at most one
};

struct decode_job {
  std::vector<token_id> tokens;
};

struct decode_done {
  std::string text;
  std::vector<error> failure; // at most one
};

// -- gateway ----------------------------------------------------------------------------------------------------------------------

// A tokenize or detokenize call; `call` names its reply function in the registry.
struct tokenize_call {
  std::uint64_t call = 0;
  prompt input;
  bool add_special_tokens = true;
};

struct detokenize_call {
  std::uint64_t call = 0;
  std::vector<token_id> tokens;
};

struct cancel_request {
  request_id id = 0;
};

// Everything that is under way ends with this error, and so does whatever comes later.
struct end_all {
  error reason;
};

// -- detokenizer ------------------------------------------------------------------------------------------------------------------

// What the detokenizer must know of one prompt of a request before its first output.
struct prompt_info {
  std::int32_t token_count = 0;
  std::vector<token_id> tail; // its last tokens: generated text joins on to them
  encoded_prompt report;      // for echo, else empty
};

struct open_request {
  request_id id = 0;
  std::uint64_t arrival_ns = 0;
  std::int32_t n = 1; // choices per prompt
  std::vector<prompt_info> prompts;
  stop_conditions stop;
  bool echo = false;
  bool prompt_scores = false; // the echo waits for them
  bool logprobs = false;
};

struct refuse_request {
  request_id id = 0;
  error reason;
};

// What one step made of all its sequences.
struct step_updates {
  std::uint64_t now_ns = 0;
  std::vector<sequence_update> updates;
};

// -- scheduler --------------------------------------------------------------------------------------------------------------------

// All sequences of one request: admitted together or refused together.
struct add_sequences {
  std::vector<sequence_request> sequences;
};

struct remove_sequences {
  std::vector<sequence_id> ids;
};

// Sequences that leave a scheduler whose group is not back in time; each keeps its outputs.
struct moved_sequences {
  std::int32_t from = 0; // replica
  std::vector<sequence_progress> sequences;
};

// A rank's answer to a plan.
struct step_done {
  std::int32_t rank = 0;
  step_result result;
};

struct step_failed {
  epoch_number epoch = 0;
  std::int32_t rank = 0;
  std::string reason;
  bool by_peer = false; // this and the next as in step_failure
  std::optional<collective_fault> collective;
};

// Its state is gone; what it was working on goes back to the queue.
struct detach_group {
  generation_number generation = 0;
  loss_cause cause = loss_cause::fault;
};

// -- supervisor -------------------------------------------------------------------------------------------------------------------

// A device introduces itself and is told which rank it is; `token` proves that it is the one that was started for it.
struct device_hello {
  std::string token;
};

// Rank 0 says where the others find it.
struct group_rendezvous {
  std::string token;
  std::string text;
};

struct device_ready {
  std::string token;
  executor_info info;
  bool kv_kept = false; // as of step_executor
};

struct device_start_failed {
  std::string token;
  std::string reason;
  bool bad_checkpoint = false; // a load_error: starting again will not help
};

// The scheduler has given a group up; `by_peer`: it waits to be told why, and detaches then.
struct group_suspect {
  generation_number generation = 0;
  std::string reason;
  bool by_peer = false;
};

// No plan is made any more; the group is let go once all that were made are done.
struct pause_group {
  generation_number generation = 0;
};

struct group_paused {
  generation_number generation = 0;
};

// The child process of a rank was stopped, or has ended (it is not reaped yet).
struct child_changed {
  generation_number generation = 0;
  std::int32_t rank = 0;
  std::int32_t status = 0; // as of waitpid
};

// What the supervisor waits for, with a limit.
enum class group_wait : std::uint8_t {
  start,   // of all ranks
  cause,   // of a loss: a child that hung up was killed, or is frozen; a rank that waited in vain did so for another
  end,     // of ranks that were told to go
  retry,   // a start failed: before the next
  move,    // of requests: the group is not back
  places,  // for the ranks: too few slots are free
  begin,   // of a change of the program: the group is not up
  proof,   // of a new program: the group has lasted
  standby, // the next processes that stand by
  answer   // of a standby that was called
};

struct group_timeout {
  generation_number generation = 0;
  group_wait wait = group_wait::start;
  std::uint64_t losses = 0; // of the group when it was set
};

// -- inspect ----------------------------------------------------------------------------------------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, encode_job& x) {
  return f(caf::meta::type_name("encode_job"), x.prompts, x.add_special_tokens, x.want_text);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, encoded_prompt& x) {
  return f(caf::meta::type_name("encoded_prompt"), x.text, x.tokens, x.token_bytes);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, encode_done& x) {
  return f(caf::meta::type_name("encode_done"), x.prompts, x.failure);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, decode_job& x) {
  return f(caf::meta::type_name("decode_job"), x.tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, decode_done& x) {
  return f(caf::meta::type_name("decode_done"), x.text, x.failure);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, tokenize_call& x) {
  return f(caf::meta::type_name("tokenize_call"), x.call, x.input, x.add_special_tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, detokenize_call& x) {
  return f(caf::meta::type_name("detokenize_call"), x.call, x.tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, cancel_request& x) {
  return f(caf::meta::type_name("cancel_request"), x.id);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, end_all& x) {
  return f(caf::meta::type_name("end_all"), x.reason);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, prompt_info& x) {
  return f(caf::meta::type_name("prompt_info"), x.token_count, x.tail, x.report);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, open_request& x) {
  return f(caf::meta::type_name("open_request"), x.id, x.arrival_ns, x.n, x.prompts, x.stop, x.echo, x.prompt_scores, x.logprobs);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, refuse_request& x) {
  return f(caf::meta::type_name("refuse_request"), x.id, x.reason);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_updates& x) {
  return f(caf::meta::type_name("step_updates"), x.now_ns, x.updates);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, add_sequences& x) {
  return f(caf::meta::type_name("add_sequences"), x.sequences);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, remove_sequences& x) {
  return f(caf::meta::type_name("remove_sequences"), x.ids);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_start& x) {
  auto num_blocks = wire::to_pair(x.num_blocks);
  return f(caf::meta::type_name("rank_start"), x.replica, x.rank, x.size, x.generation, x.rendezvous, num_blocks, x.kv_usable,
           wire::after_load([&] { x.num_blocks = wire::to_optional(num_blocks); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, moved_sequences& x) {
  return f(caf::meta::type_name("moved_sequences"), x.from, x.sequences);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_done& x) {
  return f(caf::meta::type_name("step_done"), x.rank, x.result);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_failed& x) {
  auto collective = wire::to_pair(x.collective);
  return f(caf::meta::type_name("step_failed"), x.epoch, x.rank, x.reason, x.by_peer, collective,
           wire::after_load([&] { x.collective = wire::to_optional(collective); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, detach_group& x) {
  return f(caf::meta::type_name("detach_group"), x.generation, x.cause);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, device_hello& x) {
  return f(caf::meta::type_name("device_hello"), x.token);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_rendezvous& x) {
  return f(caf::meta::type_name("group_rendezvous"), x.token, x.text);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, device_ready& x) {
  return f(caf::meta::type_name("device_ready"), x.token, x.info, x.kv_kept);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, device_start_failed& x) {
  return f(caf::meta::type_name("device_start_failed"), x.token, x.reason, x.bad_checkpoint);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_suspect& x) {
  return f(caf::meta::type_name("group_suspect"), x.generation, x.reason, x.by_peer);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, pause_group& x) {
  return f(caf::meta::type_name("pause_group"), x.generation);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_paused& x) {
  return f(caf::meta::type_name("group_paused"), x.generation);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, child_changed& x) {
  return f(caf::meta::type_name("child_changed"), x.generation, x.rank, x.status);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_timeout& x) {
  return f(caf::meta::type_name("group_timeout"), x.generation, x.wait, x.losses);
}

// -- interfaces -------------------------------------------------------------------------------------------------------------------

// Learns which rank it is, then answers each plan with a step_done or a step_failed to its sender.
using device_actor = caf::typed_actor<caf::reacts_to<rank_start>, caf::reacts_to<step_plan>>;

// Where devices introduce themselves. Published on loopback while they are expected.
using registrar_actor = caf::typed_actor<caf::reacts_to<device_hello>, caf::reacts_to<group_rendezvous>, caf::reacts_to<device_ready>,
                                         caf::reacts_to<device_start_failed>>;

using supervisor_actor =
    registrar_actor::extend<caf::reacts_to<group_suspect>, caf::reacts_to<child_changed>, caf::reacts_to<worker_changed>,
                            caf::reacts_to<node_change>, caf::reacts_to<group_timeout>, caf::reacts_to<group_paused>, //
                            caf::replies_to<program_change>::with<program_changed>, caf::reacts_to<caf::close_atom>>;

// Who asks for another program.
using upgrade_listener = caf::typed_actor<caf::reacts_to<upgrade_note>, caf::reacts_to<upgrade_end>>;

// Changes the program of one machine at a time; answers with notes and one end. Who asks meanwhile waits. leave: a node wants to go,
// so that a change of its program that has not begun is called off.
using upgrade_actor = caf::typed_actor<caf::reacts_to<machine_upgrade>, caf::reacts_to<caf::leave_atom, node_number>>;

// A node, as the head sees it. leave: it wants to; close: it may.
using node_actor =
    caf::typed_actor<caf::reacts_to<node_welcome>, caf::reacts_to<node_refusal>, caf::reacts_to<start_worker>, caf::reacts_to<stop_worker>,
                     caf::reacts_to<worker_changed>, caf::reacts_to<program_offer>, caf::reacts_to<upgrade_note>,
                     caf::reacts_to<upgrade_end>, caf::reacts_to<caf::leave_atom>, caf::reacts_to<caf::close_atom>>;

// The head, as nodes and supervisors see it. leave: a node wants to go. Published on loopback, behind the cluster's gate.
using cluster_actor =
    caf::typed_actor<caf::reacts_to<caf::join_atom, std::int32_t, supervisor_actor>, caf::reacts_to<caf::join_atom, upgrade_actor>,
                     caf::reacts_to<node_hello>, caf::reacts_to<node_ready>, caf::reacts_to<caf::leave_atom>, caf::reacts_to<node_refusal>,
                     caf::reacts_to<start_worker>, caf::reacts_to<stop_worker>, caf::reacts_to<worker_changed>,
                     caf::reacts_to<machine_upgrade>, caf::reacts_to<upgrade_note>, caf::reacts_to<upgrade_end>,
                     caf::reacts_to<caf::tick_atom>>;

using gateway_actor = caf::typed_actor<caf::reacts_to<generation_request>, caf::reacts_to<tokenize_call>, caf::reacts_to<detokenize_call>,
                                       caf::reacts_to<cancel_request>, caf::reacts_to<moved_sequences>, caf::reacts_to<end_all>,
                                       caf::reacts_to<caf::tick_atom>>;

using scheduler_actor =
    caf::typed_actor<caf::reacts_to<add_sequences>, caf::reacts_to<remove_sequences>, caf::reacts_to<moved_sequences>, //
                     caf::reacts_to<caf::join_atom, generation_number, executor_info, bool, std::vector<device_actor>>,
                     caf::reacts_to<detach_group>, caf::reacts_to<pause_group>, caf::reacts_to<caf::migrate_atom, gateway_actor>, //
                     caf::reacts_to<step_done>, caf::reacts_to<step_failed>, caf::reacts_to<caf::tick_atom>>;

using detokenizer_actor =
    caf::typed_actor<caf::reacts_to<caf::join_atom, scheduler_actor>, caf::reacts_to<open_request>, caf::reacts_to<refuse_request>,
                     caf::reacts_to<step_updates>, caf::reacts_to<cancel_request>, caf::reacts_to<end_all>>;

using tokenizer_actor = caf::typed_actor<caf::replies_to<encode_job>::with<encode_done>, caf::replies_to<decode_job>::with<decode_done>>;

} // namespace troupe::actors

// Ids are part of the protocol between a serving process and its device processes: append only.
CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(troupe, (troupe::step_plan))
CAF_ADD_TYPE_ID(troupe, (troupe::executor_info))
CAF_ADD_TYPE_ID(troupe, (troupe::generation_request))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::rank_start))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::step_done))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::step_failed))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::device_hello))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::group_rendezvous))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::device_ready))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::device_start_failed))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::group_suspect))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::group_timeout))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::child_changed))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::detach_group))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::add_sequences))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::remove_sequences))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::moved_sequences))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::step_updates))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::open_request))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::refuse_request))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::cancel_request))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::end_all))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::encode_job))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::encode_done))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::decode_job))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::decode_done))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::tokenize_call))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::detokenize_call))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::device_actor))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::scheduler_actor))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::gateway_actor))
CAF_ADD_TYPE_ID(troupe, (std::vector<troupe::actors::device_actor>))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::pause_group))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::group_paused))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::program_change))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::program_changed))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::supervisor_actor))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::node_hello))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::node_welcome))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::node_ready))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::node_refusal))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::node_change))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::start_worker))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::stop_worker))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::worker_changed))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::machine_upgrade))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::upgrade_note))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::upgrade_end))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::program_offer))
CAF_ADD_TYPE_ID(troupe, (troupe::actors::upgrade_actor))
CAF_END_TYPE_ID_BLOCK(troupe)
