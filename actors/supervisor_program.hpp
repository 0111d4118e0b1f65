// A change of the program that a group's ranks on one machine run: what each event of the group's life means to it. Part of the supervisor.
//
//   waiting --group is up--> pausing --steps are done--> starting --ranks are up--> proving --time is up--> changed
//   starting --a rank does not start--> undoing <--a fault, or a second loss-- proving     undoing --ranks of before are up--> refused
//
// One loss from outside puts nobody off: a change that was pausing waits again, one that was proving proves anew. A process that is frozen,
// and ranks that wait for each other in vain, look like that too: so the second one undoes it. Who has work and ends no step of it has
// proved nothing: it goes on proving until the step's deadline tells.
//
// To undo a change of another time needs no group: what is pausing or starting is undone as above, and where none runs, or the group is
// lost meanwhile, the next start does it.
//
// Every wait ends: for the group to be up with the deadline of a start, for its steps with theirs, for slots at once. So whoever asks may
// wait for the answer, which comes when it is true.
#pragma once

#include <chrono>
#include <string>

#include "actors/actor_pointer.hpp"
#include "actors/supervisor_actor.hpp"

namespace troupe::actors {

using supervisor_pointer = actor_pointer<supervisor_actor, supervisor_state>;

// Begins a change, or answers why it cannot begin. Where that undoes one while the group starts (program_undoes_start), the start is to
// begin anew.
caf::typed_response_promise<program_changed> ask_for_program(supervisor_pointer self, const program_change& wanted);

// The group is up: a waiting change begins, a new program has to last, an undone change is answered.
void program_meets_group(supervisor_pointer self);
// The scheduler has let the group go. True when that was for a change: the ranks are to go, and those that come run the new program.
bool program_meets_pause(supervisor_pointer self);
// The group, which was up, is lost.
void program_meets_loss(supervisor_pointer self, const std::string& reason, loss_cause cause);
// The group has no slots to come back to: what was under way is undone.
void program_meets_no_places(supervisor_pointer self);
// With the machine whose program changes, the change ends.
void program_meets_lost_node(supervisor_pointer self, const node_change& lost);
// The group did not start. True when that was the new program: the one of before is to be started at once.
bool program_meets_failed_start(supervisor_pointer self, const std::string& reason);
// Ranks are starting that run a program which is not to be.
bool program_undoes_start(const supervisor_state& s);
// The ranks of a change go or start, which is no restart.
bool program_is_changing(const supervisor_state& s);
// The ranks of the program of before are started for the first time after a change was undone: no restart either.
bool program_returns(supervisor_state& s);
// The group may not be restarted any more. True when it proves a new program: the one of before is to be started.
bool program_meets_end(supervisor_state& s, const std::string& reason);
void begin_time_is_over(supervisor_pointer self);
void proof_is_over(supervisor_pointer self);
// Answers a change that cannot come to its end.
void end_change(supervisor_pointer self, const std::string& failure);

std::chrono::milliseconds start_deadline_of(const supervisor_state& s);

} // namespace troupe::actors
