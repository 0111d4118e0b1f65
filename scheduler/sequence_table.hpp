// All sequences, in the order in which they wait and run, and the slots of those that run.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "scheduler/sequence_state.hpp"

namespace troupe {

// Order of the queue, and of who is preempted last: priority, then arrival.
struct earlier_rank {
  bool operator()(const sequence_state* a, const sequence_state* b) const;
};

// States keep their address until they are erased.
class sequence_table {
 public:
  explicit sequence_table(std::int32_t slots);

  // A new sequence waits. Throws std::logic_error when its id is known.
  sequence_state& add(sequence_state state);
  sequence_state* find(sequence_id id);
  // Waiting -> running, in a slot, in a life of its own. There must be a free slot.
  void start(sequence_state& s);
  // Running -> waiting; what belonged to its life is reset. Its blocks must have been given back.
  void stop(sequence_state& s);
  // A waiting sequence is forgotten.
  void erase(sequence_state& s);

  // Who runs in `slot` in just this life, or null.
  sequence_state* at(slot_id slot, std::uint64_t life) const;
  bool has_free_slot() const { return !free_slots_.empty(); }
  const std::vector<sequence_state*>& running() const { return running_; }
  const std::set<sequence_state*, earlier_rank>& waiting() const { return waiting_; }
  std::int32_t free_slots() const { return static_cast<std::int32_t>(free_slots_.size()); }

 private:
  std::map<sequence_id, sequence_state> sequences_;
  std::set<sequence_state*, earlier_rank> waiting_;
  std::vector<sequence_state*> running_; // in order of rank
  std::vector<sequence_state*> by_slot_; // null: free
  std::vector<slot_id> free_slots_;
  std::uint64_t lives_ = 0;
};

} // namespace troupe
