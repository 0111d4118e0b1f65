#include "actors/slot_board.hpp"

#include <algorithm>
#include <utility>

#include "telemetry/metrics.hpp"

namespace troupe::actors {

slot_board::slot_board(std::int32_t tp, std::int32_t stages, std::int32_t local_slots, std::int32_t least_nodes)
    : tp_(tp), stages_(stages), awaited_(least_nodes) {
  if (local_slots > 0) machines_[this_machine] = {std::string(telemetry::head_machine), local_slots, false};
}

void slot_board::add(node_number node, std::string name, std::int32_t slots) {
  const std::lock_guard lock(mutex_);
  machines_[node] = {std::move(name), slots, false};
  if (awaited_ > 0) --awaited_;
}

void slot_board::remove(node_number node) {
  const std::lock_guard lock(mutex_);
  machines_.erase(node);
}

void slot_board::set_leaving(node_number node) {
  const std::lock_guard lock(mutex_);
  if (const auto found = machines_.find(node); found != machines_.end()) found->second.leaving = true;
}

std::vector<free_slots> slot_board::free_for(std::int32_t replica) const {
  std::vector<free_slots> free;
  if (awaited_ > 0) return free;
  for (const auto& [node, at] : machines_) {
    if (at.leaving) continue;
    free.push_back({node, {}});
    for (std::int32_t slot = 0; slot < at.slots; ++slot) {
      const place here{node, slot};
      const bool taken = std::any_of(held_.begin(), held_.end(), [&](const auto& holder) {
        return holder.first != replica && std::find(holder.second.begin(), holder.second.end(), here) != holder.second.end();
      });
      if (!taken) free.back().slots.push_back(slot);
    }
  }
  return free;
}

std::optional<placement> slot_board::claim(std::int32_t replica) {
  const std::lock_guard lock(mutex_);
  auto placed = place_group(free_for(replica), tp_, stages_);
  if (placed) {
    held_[replica] = placed->ranks;
  } else {
    held_.erase(replica);
  }
  return placed;
}

void slot_board::release(std::int32_t replica) {
  const std::lock_guard lock(mutex_);
  held_.erase(replica);
}

bool slot_board::could_claim(std::int32_t replica) const {
  const std::lock_guard lock(mutex_);
  return place_group(free_for(replica), tp_, stages_).has_value();
}

bool slot_board::has(node_number node) const {
  const std::lock_guard lock(mutex_);
  return machines_.contains(node);
}

bool slot_board::is_leaving(node_number node) const {
  const std::lock_guard lock(mutex_);
  const auto found = machines_.find(node);
  return found != machines_.end() && found->second.leaving;
}

std::int32_t slot_board::used(node_number node) const {
  const std::lock_guard lock(mutex_);
  std::int32_t count = 0;
  for (const auto& [replica, places] : held_) {
    count += static_cast<std::int32_t>(std::count_if(places.begin(), places.end(), [&](const place& p) { return p.node == node; }));
  }
  return count;
}

std::int32_t slot_board::slots_in_all() const {
  const std::lock_guard lock(mutex_);
  std::int32_t count = 0;
  for (const auto& [node, at] : machines_) count += at.leaving ? 0 : at.slots;
  return count;
}

std::string slot_board::where_is(std::int32_t replica) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto held = held_.find(replica);
  if (held == held_.end()) return text;
  for (std::size_t rank = 0; rank < held->second.size(); ++rank) {
    const auto at = machines_.find(held->second[rank].node);
    text += (rank > 0 ? ", rank " : "rank ") + std::to_string(rank) + " on " +
            (at == machines_.end() ? "a machine that has gone" : at->second.name);
  }
  return text;
}

} // namespace troupe::actors
