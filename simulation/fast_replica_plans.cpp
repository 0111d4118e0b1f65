// One plan after the other, as the scheduler makes them.
#include <algorithm>
#include <functional>
#include <utility>

#include "kvcache/block_pool.hpp"
#include "simulation/fast_replica.hpp"

namespace troupe::simulation {

bool fast_replica::plan() {
  flight& slot = in_flight_[(in_flight_first_ + in_flight_size_) % kPlansInFlight];
  slot.first.clear();
  slot.last.clear();
  draft d;
  d.budget = table_.limits.max_batched_tokens;
  d.out = &slot;
  plan_decodes(d);
  for (std::size_t i = 0; i < prefilling_.size() && d.budget > 0;) i += plan_chunk(d, prefilling_[i]) ? 0 : 1;
  if (!d.preempted) admit(d);
  if (d.shape.decode_rows + d.shape.prefill_tokens == 0) return false;
  if (d.shape.prefill_tokens > 0) d.shape.prefill_context /= d.shape.prefill_tokens;
  commit(d);
  join_decodes();
  return true;
}

void fast_replica::plan_decodes(draft& d) {
  while (!decoding_.empty() && needs_block_[phase(tick_)] > free_blocks_ && preempt_last()) d.preempted = true;
  if (decoding_.empty()) return;
  const auto rows = static_cast<double>(decoding_.size());
  free_blocks_ -= needs_block_[phase(tick_)];
  d.shape.decode_rows = rows;
  d.shape.decode_context = context_ / rows;
  d.budget -= static_cast<std::int32_t>(decoding_.size());
  context_ += rows;
  ++tick_;
  while (!decoding_.empty() && decoding_.front().first == tick_) {
    const std::uint32_t at = decoding_.front().second;
    leave_decodes(at);
    std::pop_heap(decoding_.begin(), decoding_.end(), std::greater<>());
    decoding_.pop_back();
    d.out->last.push_back(at);
  }
}

// Takes a sequence out of what all decode rows share, and settles its blocks.
void fast_replica::leave_decodes(std::uint32_t at) {
  sequence& s = places_[at];
  const std::int64_t next = position(s, tick_);
  context_ -= static_cast<double>(next);
  --needs_block_[phase(s.first_tick - s.known())];
  s.blocks = blocks_for(next, table_.limits.block_size);
}

// True when its last chunk was planned, and so it left the list.
bool fast_replica::plan_chunk(draft& d, std::uint32_t at) {
  sequence& s = places_[at];
  const std::int32_t count = std::min(d.budget, s.known() - s.planned);
  d.shape.prefill_tokens += count;
  d.shape.prefill_context += static_cast<double>(s.planned) * count;
  d.budget -= count;
  s.planned += count;
  if (s.planned < s.known()) return false;
  prefilling_.erase(std::find(prefilling_.begin(), prefilling_.end(), at));
  d.out->first.push_back(at);
  if (s.produced + 1 == s.outputs) {
    d.out->last.push_back(at);
  } else {
    starting_.push_back(at);
  }
  return true;
}

void fast_replica::admit(draft& d) {
  while (!waiting_.empty() && d.budget > 0 && free_slots_ > 0) {
    const std::uint32_t at = waiting_.front();
    sequence& s = places_[at];
    const std::int32_t need = blocks_for(s.known(), table_.limits.block_size);
    if (free_blocks_ < need + (running_ == 0 ? 0 : reserve_)) return;
    waiting_.pop_front();
    free_blocks_ -= need;
    s.blocks = need;
    --free_slots_;
    ++running_;
    prefilling_.push_back(at);
    plan_chunk(d, at);
  }
}

// Those whose first sample is in the plan that has just been made decode from the next one on.
void fast_replica::join_decodes() {
  for (const std::uint32_t at : starting_) {
    sequence& s = places_[at];
    s.first_tick = tick_;
    s.last_tick = tick_ + s.outputs - s.produced - 1;
    context_ += s.known();
    ++needs_block_[phase(s.first_tick - s.known())];
    decoding_.emplace_back(s.last_tick, at);
    std::push_heap(decoding_.begin(), decoding_.end(), std::greater<>());
  }
  starting_.clear();
}

// The last to come goes back to the queue; the tokens that are in flight for it are lost.
bool fast_replica::preempt_last() {
  const auto newer = [&](std::uint32_t a, std::uint32_t b) { return places_[a].id < places_[b].id; };
  const auto decoding = std::max_element(decoding_.begin(), decoding_.end(), [&](auto& a, auto& b) { return newer(a.second, b.second); });
  const auto prefilling = std::max_element(prefilling_.begin(), prefilling_.end(), newer);
  std::uint32_t at = decoding->second;
  if (prefilling != prefilling_.end() && newer(at, *prefilling)) {
    at = *prefilling;
    prefilling_.erase(prefilling);
  } else {
    stop_decoding(at);
    decoding_.erase(decoding);
    std::make_heap(decoding_.begin(), decoding_.end(), std::greater<>());
  }
  queue_again(at);
  return true;
}

void fast_replica::stop_decoding(std::uint32_t at) {
  leave_decodes(at);
  sequence& s = places_[at];
  const std::int64_t sampled = 1 + tick_ - s.first_tick;
  s.produced += static_cast<std::int32_t>(sampled - std::min<std::int64_t>(sampled, static_cast<std::int64_t>(in_flight_size_)));
  for (flight& f : in_flight_) std::erase(f.first, at);
}

void fast_replica::queue_again(std::uint32_t at) {
  sequence& s = places_[at];
  s.planned = 0;
  free_blocks_ += std::exchange(s.blocks, 0);
  ++free_slots_;
  --running_;
  ++results_.preemptions;
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](std::uint32_t w) { return places_[w].id > s.id; });
  waiting_.insert(place, at);
}

} // namespace troupe::simulation
