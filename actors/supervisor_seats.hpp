// The places of a group's ranks: who is started for them, who is there, and how they are told to go. Part of the supervisor.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "actors/actor_pointer.hpp"
#include "actors/supervisor_actor.hpp"

namespace troupe::actors {

using supervisor_pointer = actor_pointer<supervisor_actor, supervisor_state>;

// A group_timeout after that time, with the generation and the losses of now.
void set_timer(supervisor_pointer self, group_wait wait, std::chrono::milliseconds delay);
// "rank 1: " where there are several.
std::string rank_name(const supervisor_state& s, std::int32_t rank);
// Null when no rank of this group was given `token`.
rank_seat* find_seat(supervisor_state& s, const std::string& token);
bool all_ended(const supervisor_state& s);

// In a cluster: slots for all ranks, instead of those held so far. False when there are too few.
bool claim_places(supervisor_pointer self);
// What ranks on that machine run.
program_number program_on(const supervisor_state& s, node_number machine);
// The processes on a node that is lost are ended. Their number.
std::int32_t ranks_on(const supervisor_state& s, node_number node);
void drop_ranks_on(supervisor_state& s, node_number node);

// A thread or a process for every rank, which will say hello. Throws std::runtime_error; some may have started then.
void start_ranks(supervisor_pointer self);
// Tells the rank which one it is, once it has said hello and it is known where the group meets: rank 0 says that, so the others wait for
// it.
void tell_place(supervisor_pointer self, rank_seat& seat);
// No one else may connect once all children are there. Nothing to do where none is open.
void close_port(supervisor_pointer self);

// The child of a seat has ended, or is killed: reaps it.
void reap(supervisor_state& s, std::int32_t rank);
// Tells every rank that is still there to go: processes are killed, threads asked.
void dismiss_ranks(supervisor_pointer self);
// The same in good order: nobody waits for them, so they may give back what they hold and end by themselves.
void release_ranks(supervisor_pointer self);
// Reaps all children, waiting for their ends, and ends the registrar that they watch. Threads are left to themselves.
void clear_seats(supervisor_pointer self);

} // namespace troupe::actors
