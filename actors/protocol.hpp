// Every actor interface, and by what it gathers every message. Messages carry ids, tokens, text and integers: never pointers, never floats.
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
#include <vector>

#include "actors/cluster_messages.hpp"
#include "actors/group_messages.hpp"
#include "actors/inspect.hpp"
#include "actors/program_messages.hpp"
#include "actors/request_messages.hpp"

namespace troupe::actors {

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
