// Which machine offers how many slots, and which group's ranks hold them. Thread-safe: supervisors claim, the cluster's actor adds and
// removes machines.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/placement.hpp"

namespace troupe::actors {

class slot_board {
 public:
  // Of groups that are all alike. Nothing is placed before `least_nodes` other machines have joined, counted once.
  slot_board(std::int32_t tp, std::int32_t stages, std::int32_t local_slots, std::int32_t least_nodes);

  void add(node_number node, std::string name, std::int32_t slots);
  void remove(node_number node);      // lost or gone; its slots go with it
  void set_leaving(node_number node); // nobody gets its slots any more; who holds them keeps them

  // Slots for all ranks of a replica's group, instead of those that it holds; none when there are too few, and then it holds none.
  std::optional<placement> claim(std::int32_t replica);
  void release(std::int32_t replica);
  // Would a claim succeed now?
  bool could_claim(std::int32_t replica) const;

  bool has(node_number node) const;
  bool is_leaving(node_number node) const;
  std::int32_t used(node_number node) const;        // slots that are held
  std::int32_t slots_in_all() const;                // of machines that stay
  std::string where_is(std::int32_t replica) const; // "rank 0 on a, rank 1 on b"; empty while it holds no slots
  std::int32_t ranks_of_group() const { return tp_ * stages_; }

 private:
  struct machine {
    std::string name;
    std::int32_t slots = 0;
    bool leaving = false;
  };

  std::vector<free_slots> free_for(std::int32_t replica) const; // what others hold is not free

  mutable std::mutex mutex_;
  const std::int32_t tp_, stages_;
  std::int32_t awaited_; // machines that have to join yet
  std::map<node_number, machine> machines_;
  std::map<std::int32_t, std::vector<place>> held_; // by replica
};

} // namespace troupe::actors
