#include "simulation/fast_replica.hpp"

#include <algorithm>

namespace troupe::simulation {

void fast_replica::advance(double until_ns) {
  while (in_flight_size_ > 0 && front().end_ns <= until_ns) {
    if (skip_run(until_ns)) continue;
    absorb();
    pump();
  }
}

void fast_replica::add(const traffic& t, std::int32_t cached_tokens) {
  const double reached_ns = t.arrival_ns + config_.overhead_ns + table_.serving.request_ns;
  advance(reached_ns);
  now_ns_ = std::max(now_ns_, reached_ns);
  const auto& limits = table_.limits;
  const std::int64_t room = limits.max_model_len - t.prompt_tokens;
  const std::int64_t outputs = std::min<std::int64_t>(t.output_tokens, room);
  const std::int64_t pool = static_cast<std::int64_t>(limits.num_blocks) * limits.block_size;
  if (outputs < 1 || t.prompt_tokens + outputs - 1 > pool || static_cast<std::int32_t>(waiting_.size()) >= config_.max_waiting) {
    ++results_.rejected;
    return;
  }
  const std::uint32_t at = take_place();
  sequence& s = places_[at];
  s = {};
  s.arrival_ns = t.arrival_ns;
  s.id = ++last_id_;
  s.prompt = t.prompt_tokens;
  s.outputs = static_cast<std::int32_t>(outputs);
  s.planned = std::min(cached_tokens, t.prompt_tokens - 1);
  results_.cached_tokens += s.planned;
  waiting_.push_back(at);
  ++open_;
  pump();
}

std::uint32_t fast_replica::take_place() {
  if (free_places_.empty()) {
    places_.emplace_back();
    return static_cast<std::uint32_t>(places_.size() - 1);
  }
  const std::uint32_t at = free_places_.back();
  free_places_.pop_back();
  return at;
}

void fast_replica::absorb() {
  flight& done = front();
  now_ns_ = done.end_ns;
  for (const std::uint32_t at : done.first) {
    if (places_[at].first_ns == 0) places_[at].first_ns = now_ns_;
  }
  for (const std::uint32_t at : done.last) {
    const sequence& s = places_[at];
    results_.finish(s.arrival_ns, s.first_ns, now_ns_, s.prompt, s.outputs, config_.wanted);
    free_blocks_ += s.blocks;
    ++free_slots_;
    --running_;
    --open_;
    free_places_.push_back(at);
  }
  in_flight_first_ = (in_flight_first_ + 1) % kPlansInFlight;
  --in_flight_size_;
}

void fast_replica::pump() {
  while (in_flight_size_ < kPlansInFlight && plan()) {
  }
}

void fast_replica::commit(draft& d) {
  const double cost = table_.step_ns(d.shape);
  const double start = std::max(device_free_ns_, now_ns_);
  d.out->end_ns = start + cost;
  if (d.shape.decode_rows > 0) results_.itl.add(d.out->end_ns - device_free_ns_, d.shape.decode_rows);
  device_free_ns_ = d.out->end_ns;
  results_.busy_ns += cost;
  ++results_.steps;
  ++in_flight_size_;
}

std::unique_ptr<replica> make_fast_replica(const replica_config& config) { return std::make_unique<fast_replica>(config); }

} // namespace troupe::simulation
