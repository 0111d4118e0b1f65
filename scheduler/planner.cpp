#include "scheduler/planner.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

planner::planner(scheduler_core& core, std::uint64_t now_ns)
    : core_(core), now_ns_(now_ns), budget_(core.config.device.max_batched_tokens) {}

std::optional<step_plan> planner::run() {
  plan_.items.reserve(core_.sequences.running().size() + 1);
  record_.rows.reserve(plan_.items.capacity());
  plan_decodes();
  plan_prefills();
  if (!preempted_) admit(); // else the victim would come straight back
  if (plan_.items.empty()) return std::nullopt;
  add_changes();
  plan_.closed = std::exchange(core_.to_close, {});
  plan_.epoch = core_.epoch;
  plan_.step = record_.step = ++core_.last_step;
  core_.in_flight.push_back(std::move(record_));
  return std::move(plan_);
}

// Decodes come before prefills: a long prompt never holds up those who already speak. Whoever is preempted stands behind in rank, so
// that nobody is moved who is still to be looked at before it.
void planner::plan_decodes() {
  const std::vector<sequence_state*>& running = core_.sequences.running();
  for (std::size_t i = 0; i < running.size() && budget_ > 0; ++i) {
    sequence_state& s = *running[i];
    if (!s.can_decode() || !ensure_block(s)) continue;
    add_item(s, {*s.slot, work_kind::decode, s.planned, 1, true, std::nullopt});
  }
}

void planner::plan_prefills() {
  for (sequence_state* s : core_.sequences.running()) {
    if (budget_ == 0) return;
    if (s->can_prefill()) add_chunk(*s);
  }
}

// In rank order, whole refills only; the first that does not fit keeps its place, so that nobody overtakes it for ever.
void planner::admit() {
  bool suspects = suspect_running();
  const auto& waiting = core_.sequences.waiting();
  for (auto next = waiting.begin(); next != waiting.end() && budget_ > 0 && core_.sequences.has_free_slot();) {
    sequence_state& s = **next++;
    if (s.suspect() && suspects) continue; // one at a time; others may pass
    if (!open(s)) return;
    suspects = suspects || s.suspect();
    add_chunk(s);
  }
}

// Takes what it needs beyond its cached prefix, and leaves the running some room to grow. False when that is not there.
bool planner::open(sequence_state& s) {
  const std::int32_t reserve = core_.sequences.running().empty() ? 0 : (core_.cache.total() + 99) / 100;
  std::vector<block_id> blocks = core_.find_prefix(s);
  const auto cached = static_cast<std::int32_t>(blocks.size());
  const std::int32_t need = core_.blocks_of(s.known()) - cached;
  if (core_.cache.available() < need + reserve) {
    core_.cache.give_back(blocks);
    return false;
  }
  const std::vector<block_id> fresh = *core_.cache.take(need);
  blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  core_.sequences.start(s);
  s.blocks = std::move(blocks);
  s.indexed = cached;
  s.planned = s.confirmed = cached * core_.config.device.block_size;
  if (s.times.scheduled_ns == 0) {
    s.times.scheduled_ns = now_ns_;
    s.cached_tokens = s.planned;
  }
  plan_.opened.push_back({*s.slot, s.prompt_size(), s.request.sampling});
  plan_.grants.push_back({*s.slot, 0, s.blocks});
  return true;
}

bool planner::suspect_running() const {
  const auto& running = core_.sequences.running();
  return std::any_of(running.begin(), running.end(), [](const sequence_state* s) { return s->suspect(); });
}

void planner::add_item(sequence_state& s, work_item item) {
  record_.rows.push_back({s.life, *s.slot, item.first_position, item.token_count, item.sample});
  budget_ -= item.token_count;
  s.planned += item.token_count;
  if (item.sample) {
    ++s.samples_in_flight;
    s.primed = true;
  }
  plan_.items.push_back(item);
}

void planner::add_chunk(sequence_state& s) {
  work_item item{*s.slot, work_kind::prefill, s.planned, std::min(budget_, s.known() - s.planned), false, std::nullopt};
  const std::int32_t end = item.first_position + item.token_count;
  item.sample = end == s.known() && s.wants_output();
  for (std::int32_t p = item.first_position; p < end; ++p) plan_.tokens.push_back(s.token_at(p));
  if (s.wants_scores() && item.first_position + 1 < s.prompt_size()) {
    item.prompt_logprobs = s.request.prompt_logprobs;
    if (end < s.prompt_size()) plan_.tokens.push_back(s.token_at(end)); // target of the chunk's last row
  }
  add_item(s, item);
}

// Last, when it is known who keeps its slot.
void planner::add_changes() {
  for (const block_change& change : std::exchange(core_.changes, {})) {
    if (core_.sequences.at(change.slot, change.life) != nullptr) plan_.grants.push_back({change.slot, change.index, {change.block}});
  }
}

// Makes room for position `s.planned`, at the cost of the last in rank, which this plan does not hold yet. False when `s` itself had to
// go.
bool planner::ensure_block(sequence_state& s) {
  if (s.planned < static_cast<std::int32_t>(s.blocks.size()) * core_.config.device.block_size) return true;
  auto block = core_.cache.take(1);
  while (!block) {
    sequence_state& victim = *core_.sequences.running().back();
    const bool self = &victim == &s;
    preempt(victim);
    if (self) return false;
    block = core_.cache.take(1);
  }
  plan_.grants.push_back({*s.slot, static_cast<std::int32_t>(s.blocks.size()), *block});
  s.blocks.push_back(block->front());
  return true;
}

void planner::preempt(sequence_state& s) {
  core_.release(s);
  preempted_ = true;
  ++core_.preemptions;
}

} // namespace troupe
