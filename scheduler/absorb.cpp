#include "scheduler/absorb.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace troupe {
namespace {

constexpr std::int32_t kFaultsToQuarantine = 2;
constexpr std::int32_t kLossesToQuarantine = 8;
constexpr std::int32_t kIndexedAtOnce = 2048; // tokens of a sequence that enter its n-grams with one result

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

// A drawn token's effect: an output, and maybe the end.
void absorb_token(sequence_state& s, token_id token, const token_scores* scores, sequence_update& u) {
  const bool stops = is_stop_token(s, token);
  s.outputs.push_back(token);
  if (stops) {
    u.finish = finish_reason::stop;
  } else {
    u.tokens.push_back(token);
    if (scores != nullptr) u.scores.push_back(*scores);
    if (s.output_size() >= s.request.stop.max_tokens) u.finish = finish_reason::length;
  }
}

// What a row drew, one token or a run of accepted drafts and the draw behind them; the first token that ends the sequence is the last.
void absorb_draws(scheduler_core& core, sequence_state& s, const planned_row& row, const slot_output& out, sequence_update& u,
                  std::uint64_t now_ns) {
  --s.samples_in_flight;
  s.faults_in_a_row = s.losses_in_a_row = 0;
  s.proven = true;
  if (s.times.first_token_ns == 0) s.times.first_token_ns = now_ns;
  for (std::size_t i = 0; i < out.tokens.size() && !u.finish; ++i) {
    absorb_token(s, out.tokens[i], i < out.scores.size() ? &out.scores[i] : nullptr, u);
  }
  if (!u.finish) s.proposals = out.proposals;
  if (row.drafts == 0) return;
  const auto accepted = static_cast<std::int32_t>(out.tokens.size()) - 1;
  s.accepted[row.draft_kind].observe(row.drafts, accepted);
  for (std::int32_t place = 0; place < row.drafts; ++place) {
    const std::size_t i = std::min(static_cast<std::size_t>(place), draft_counts::kPlaces - 1);
    ++core.drafts.drafted[i];
    if (place < accepted) ++core.drafts.accepted[i];
  }
}

std::optional<sequence_update> absorb_row(scheduler_core& core, sequence_state& s, const planned_row& row, const slot_output& out,
                                          std::uint64_t now_ns) {
  const auto drawn = static_cast<std::int32_t>(out.tokens.size());
  if (out.numeric_fault || (row.sample && drawn == 0)) {
    return fail_sequence(core, s, {error_kind::internal, "the model's logits are not finite", "", std::nullopt}, now_ns);
  }
  if (drawn > (row.sample ? 1 + row.drafts : 0)) {
    return fail_sequence(core, s, {error_kind::internal, "the device drew more tokens than it was asked for", "", std::nullopt}, now_ns);
  }
  sequence_update u = update_for(s);
  absorb_scores(s, row, out, u);
  if (row.sample) absorb_draws(core, s, row, out, u, now_ns);
  s.confirmed = row.first_position + row.token_count;
  if (row.drafts > 0) { // the rows behind the last draw are as if never computed
    s.planned = s.confirmed = std::min(row.first_position + drawn, s.known());
  }
  if (row.drafts > 0 || row.proposes) core.give_back_drafts(s);
  core.index_blocks(s);
  if (core.drafting.source() == draft_source::ngram)
    s.ngrams.extend(s.tokens(), kIndexedAtOnce, s.prompt_size() + s.request.stop.max_tokens);
  if (!row.sample && s.request.stop.max_tokens == 0 && s.confirmed >= s.prompt_size()) {
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

std::vector<sequence_update> absorb_loss(scheduler_core& core, std::uint64_t now_ns, loss_cause cause, bool kv_may_stay) {
  std::set<sequence_id> caught;
  for (const plan_in_flight& plan : core.in_flight) {
    for (const planned_row& row : plan.rows) {
      if (const sequence_state* s = core.sequences.at(row.slot, row.life)) caught.insert(s->request.id);
    }
  }
  while (!core.sequences.running().empty()) core.release(*core.sequences.running().back());
  if (cause == loss_cause::fault || !kv_may_stay) core.cache.forget();
  core.to_close.clear(); // a new device has no slot open
  core.changes.clear();
  core.in_flight.clear();
  ++core.epoch;
  core.last_step = 0;
  return blame(core, caught, now_ns, cause);
}

} // namespace troupe
