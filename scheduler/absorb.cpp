#include "scheduler/absorb.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace troupe {
namespace {

constexpr std::int32_t kFaultsToQuarantine = 2;
constexpr std::int32_t kLossesToQuarantine = 8;

sequence_update update_for(const sequence_state& s) {
  sequence_update u;
  u.id = s.request.id;
  u.cached_tokens = s.cached_tokens;
  u.output_tokens = s.output_size();
  u.times = s.times;
  return u;
}

bool is_stop_token(const sequence_state& s, token_id token) {
  const auto& ids = s.request.stop.stop_token_ids;
  return s.output_size() >= s.request.stop.min_tokens && std::find(ids.begin(), ids.end(), token) != ids.end();
}

// Prompt positions first_position+1 .. were scored; a refill scores some a second time.
void absorb_scores(sequence_state& s, const planned_row& row, const slot_output& out, sequence_update& u) {
  for (std::size_t i = 0; i < out.prompt_scores.size(); ++i) {
    const std::int32_t position = row.first_position + 1 + static_cast<std::int32_t>(i);
    if (position != s.scored + 1 || position >= s.prompt_size()) continue;
    u.prompt_scores.push_back(out.prompt_scores[i]);
    s.scored = position;
  }
}

// The sampled token's effect: an output, and maybe the end.
void absorb_token(sequence_state& s, const slot_output& out, sequence_update& u, std::uint64_t now_ns) {
  const token_id token = out.tokens.front();
  const bool stops = is_stop_token(s, token);
  s.faults_in_a_row = s.losses_in_a_row = 0;
  s.proven = true;
  s.outputs.push_back(token);
  if (s.times.first_token_ns == 0) s.times.first_token_ns = now_ns;
  if (stops) {
    u.finish = finish_reason::stop;
  } else {
    u.tokens.push_back(token);
    u.scores.insert(u.scores.end(), out.scores.begin(), out.scores.end());
    if (s.output_size() >= s.request.stop.max_tokens) u.finish = finish_reason::length;
  }
}

std::optional<sequence_update> absorb_row(scheduler_core& core, sequence_state& s, const planned_row& row, const slot_output& out,
                                          std::uint64_t now_ns) {
  if (out.numeric_fault || (row.sample && out.tokens.empty())) {
    return fail_sequence(core, s, {error_kind::internal, "the model's logits are not finite", "", std::nullopt}, now_ns);
  }
  s.confirmed = row.first_position + row.token_count;
  core.index_blocks(s);
  sequence_update u = update_for(s);
  absorb_scores(s, row, out, u);
  if (row.sample) {
    --s.samples_in_flight;
    absorb_token(s, out, u, now_ns);
  } else if (s.request.stop.max_tokens == 0 && s.confirmed >= s.prompt_size()) {
    u.finish = finish_reason::length;
  }
  if (u.finish) {
    s.times.finished_ns = now_ns;
    core.stay_ns.observe(static_cast<double>(now_ns - s.times.scheduled_ns));
  }
  u.output_tokens = s.output_size();
  u.times = s.times;
  if (u.finish) {
    core.end(s);
  } else if (u.tokens.empty() && u.prompt_scores.empty()) {
    return std::nullopt;
  }
  return u;
}

std::vector<sequence_update> blame(scheduler_core& core, const std::set<sequence_id>& caught, std::uint64_t now_ns, loss_cause cause) {
  std::vector<sequence_update> quarantined;
  for (const sequence_id& id : caught) {
    sequence_state& s = *core.sequences.find(id);
    ++s.losses_in_a_row;
    if (cause == loss_cause::fault) ++s.faults_in_a_row;
    if (s.faults_in_a_row >= kFaultsToQuarantine || s.losses_in_a_row >= kLossesToQuarantine) {
      quarantined.push_back(fail_sequence(
          core, s, {error_kind::internal, "the device failed repeatedly while it worked on this request", "", std::nullopt}, now_ns));
    }
  }
  return quarantined;
}

} // namespace

sequence_update fail_sequence(scheduler_core& core, sequence_state& s, error reason, std::uint64_t now_ns) {
  s.times.finished_ns = now_ns;
  sequence_update u = update_for(s);
  u.finish = finish_reason::failed;
  u.failure = std::move(reason);
  core.end(s);
  return u;
}

std::vector<sequence_update> absorb_result(scheduler_core& core, const plan_in_flight& plan, const step_result& result,
                                           std::uint64_t now_ns) {
  std::vector<sequence_update> updates;
  updates.reserve(plan.rows.size());
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    sequence_state* s = core.sequences.at(plan.rows[i].slot, plan.rows[i].life);
    if (s == nullptr) continue;
    if (auto u = absorb_row(core, *s, plan.rows[i], result.outputs[i], now_ns)) updates.push_back(std::move(*u));
  }
  return updates;
}

std::vector<sequence_update> absorb_loss(scheduler_core& core, std::uint64_t now_ns, loss_cause cause) {
  std::set<sequence_id> caught;
  for (const plan_in_flight& plan : core.in_flight) {
    for (const planned_row& row : plan.rows) {
      if (const sequence_state* s = core.sequences.at(row.slot, row.life)) caught.insert(s->request.id);
    }
  }
  while (!core.sequences.running().empty()) core.release(*core.sequences.running().back());
  core.cache.forget();
  core.to_close.clear(); // a new device has no slot open
  core.changes.clear();
  core.in_flight.clear();
  ++core.epoch;
  core.last_step = 0;
  return blame(core, caught, now_ns, cause);
}

} // namespace troupe
