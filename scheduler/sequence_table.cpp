#include "scheduler/sequence_table.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace troupe {

bool earlier_rank::operator()(const sequence_state* a, const sequence_state* b) const {
  const sequence_request& x = a->request;
  const sequence_request& y = b->request;
  return std::tie(x.priority, x.arrival_ns, x.id) < std::tie(y.priority, y.arrival_ns, y.id);
}

sequence_table::sequence_table(std::int32_t slots) : by_slot_(static_cast<std::size_t>(slots), nullptr) {
  for (slot_id slot = slots; slot-- > 0;) free_slots_.push_back(slot);
}

sequence_state& sequence_table::add(sequence_state state) {
  const sequence_id id = state.request.id;
  const auto [at, added] = sequences_.emplace(id, std::move(state));
  if (!added) throw std::logic_error("sequence added twice");
  waiting_.insert(&at->second);
  return at->second;
}

sequence_state* sequence_table::find(sequence_id id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second;
}

void sequence_table::start(sequence_state& s) {
  waiting_.erase(&s);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &s, earlier_rank{}), &s);
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  s.life = ++lives_;
  by_slot_[static_cast<std::size_t>(*s.slot)] = &s;
}

void sequence_table::stop(sequence_state& s) {
  running_.erase(std::lower_bound(running_.begin(), running_.end(), &s, earlier_rank{}));
  by_slot_[static_cast<std::size_t>(*s.slot)] = nullptr;
  free_slots_.push_back(*s.slot);
  s.leave_device();
  waiting_.insert(&s);
}

void sequence_table::erase(sequence_state& s) {
  waiting_.erase(&s);
  sequences_.erase(s.request.id);
}

sequence_state* sequence_table::at(slot_id slot, std::uint64_t life) const {
  sequence_state* s = by_slot_[static_cast<std::size_t>(slot)];
  return s != nullptr && s->life == life ? s : nullptr;
}

} // namespace troupe
