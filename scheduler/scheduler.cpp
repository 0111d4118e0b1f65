#include "scheduler/scheduler.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "kvcache/block_pool.hpp"
#include "scheduler/sequence_state.hpp"

namespace troupe {

namespace {

constexpr std::int32_t kFaultsToQuarantine = 2;
constexpr std::int32_t kLossesToQuarantine = 8;
constexpr std::size_t kParameterBytes = 64U << 10; // sampling parameters that one plan opens: plans stay small messages

// Order of the queue and of who is preempted last.
struct rank {
  std::int32_t priority = 0;
  std::uint64_t arrival_ns = 0;
  sequence_id id;

  friend auto operator<=>(const rank&, const rank&) = default;
};

std::size_t bytes_of(const sampling_params& p) {
  return sizeof p + p.logit_bias.size() * sizeof(token_bias) + p.suppressed.size() * sizeof(token_id);
}

rank rank_of(const sequence_state& s) { return {s.request.priority, s.request.arrival_ns, s.request.id}; }

// One item of a plan that is out, as apply() needs it.
struct planned_row {
  sequence_id id;
  std::uint64_t life = 0;
  slot_id slot = 0;
  std::int32_t first_position = 0;
  std::int32_t token_count = 0;
  bool sample = false;
};

struct plan_in_flight {
  step_number step = 0;
  std::vector<planned_row> rows;
};

} // namespace

struct scheduler::impl {
  explicit impl(scheduler_config c) : config(std::move(c)), pool(config.device.num_blocks) {
    for (slot_id slot = config.device.max_num_seqs; slot-- > 0;) free_slots.push_back(slot);
  }

  scheduler_config config;
  block_pool pool;
  std::vector<slot_id> free_slots;
  std::vector<slot_id> to_close; // closed with the next plan
  std::map<sequence_id, sequence_state> sequences;
  std::set<rank> waiting;
  std::set<rank> running;
  std::deque<plan_in_flight> in_flight;
  epoch_number epoch = 1;
  step_number last_step = 0;
  std::uint64_t preemptions = 0;

  sequence_state& at(const rank& r) { return sequences.find(r.id)->second; }

  std::int32_t blocks_of(std::int64_t tokens) const { return blocks_for(tokens, config.device.block_size); }

  // --- planning -----------------------------------------------------------------------------------------------------

  struct draft {
    step_plan plan;
    plan_in_flight record;
    std::int32_t budget = 0; // tokens left
    bool preempted = false;
  };

  void plan_item(draft& d, sequence_state& s, work_item item) {
    d.record.rows.push_back({s.request.id, s.life, *s.slot, item.first_position, item.token_count, item.sample});
    d.budget -= item.token_count;
    s.planned += item.token_count;
    if (item.sample) {
      ++s.samples_in_flight;
      s.primed = true;
    }
    d.plan.items.push_back(std::move(item));
  }

  // Gives slot and blocks up. Both may be handed out again at once, even in the plan that closes the slot: a device works through plans
  // in order, and through a plan's closed slots first.
  void release(sequence_state& s) {
    if (!s.slot) return;
    pool.give_back(s.blocks);
    to_close.push_back(*s.slot);
    free_slots.push_back(*s.slot);
    running.erase(rank_of(s));
    s.leave_device();
  }

  void preempt(draft& d, sequence_state& s) {
    release(s);
    waiting.insert(rank_of(s));
    d.preempted = true;
    ++preemptions;
  }

  // Makes room for position `s.planned`, at the cost of the last in rank, which this draft has not planned yet. False when `s` itself
  // had to go.
  bool ensure_block(draft& d, sequence_state& s) {
    if (s.planned < static_cast<std::int32_t>(s.blocks.size()) * config.device.block_size) return true;
    auto block = pool.take(1);
    while (!block) {
      sequence_state& victim = at(*running.rbegin());
      const bool self = &victim == &s;
      preempt(d, victim);
      if (self) return false;
      block = pool.take(1);
    }
    d.plan.grants.push_back({*s.slot, static_cast<std::int32_t>(s.blocks.size()), *block});
    s.blocks.push_back(block->front());
    return true;
  }

  // Decodes come before prefills: a long prompt never holds up those who already speak.
  void plan_decodes(draft& d) {
    const std::vector<rank> order(running.begin(), running.end());
    for (const rank& r : order) {
      if (d.budget == 0) return;
      if (!running.contains(r)) continue; // preempted by one before it
      sequence_state& s = at(r);
      if (!s.can_decode() || !ensure_block(d, s)) continue;
      plan_item(d, s, {*s.slot, work_kind::decode, s.planned, 1, true, std::nullopt});
    }
  }

  void plan_chunk(draft& d, sequence_state& s) {
    work_item item{*s.slot, work_kind::prefill, s.planned, std::min(d.budget, s.known() - s.planned), false, std::nullopt};
    const std::int32_t end = item.first_position + item.token_count;
    item.sample = end == s.known() && s.wants_output();
    for (std::int32_t p = item.first_position; p < end; ++p) d.plan.tokens.push_back(s.token_at(p));
    if (s.wants_scores() && item.first_position + 1 < s.prompt_size()) {
      item.prompt_logprobs = s.request.prompt_logprobs;
      if (end < s.prompt_size()) d.plan.tokens.push_back(s.token_at(end)); // target of the chunk's last row
    }
    plan_item(d, s, item);
  }

  void plan_prefills(draft& d) {
    for (const rank& r : running) {
      if (d.budget == 0) return;
      sequence_state& s = at(r);
      if (s.can_prefill()) plan_chunk(d, s);
    }
  }

  bool any_running(bool (*is)(const sequence_state&)) {
    return std::any_of(running.begin(), running.end(), [&](const rank& r) { return is(at(r)); });
  }

  // In rank order, whole refills only; the first that does not fit keeps its place, so that nobody overtakes it for ever. A suspect runs
  // beside proven sequences alone, and nobody is admitted beside it before it is one of them: the next fault has one culprit.
  void admit(draft& d, std::uint64_t now_ns) {
    const std::int32_t reserve = (config.device.num_blocks + 99) / 100; // room for the running to grow
    bool suspects = any_running([](const sequence_state& s) { return s.suspect(); });
    bool unproven = any_running([](const sequence_state& s) { return !s.proven; });
    std::size_t parameter_bytes = 0;
    for (auto next = waiting.begin(); next != waiting.end() && d.budget > 0 && !free_slots.empty();) {
      const rank r = *next++;
      sequence_state& s = at(r);
      if (suspects || (s.suspect() && unproven)) return;
      parameter_bytes += bytes_of(s.request.sampling);
      if (parameter_bytes > kParameterBytes && !d.plan.items.empty()) return;
      const std::int32_t need = blocks_of(s.known());
      if (pool.free() < need + (running.empty() ? 0 : reserve)) return;
      waiting.erase(r);
      open(d, s, *pool.take(need), now_ns);
      suspects = s.suspect();
      unproven = true;
      plan_chunk(d, s);
    }
  }

  void open(draft& d, sequence_state& s, std::vector<block_id> blocks, std::uint64_t now_ns) {
    s.slot = free_slots.back();
    free_slots.pop_back();
    s.blocks = std::move(blocks);
    running.insert(rank_of(s));
    if (s.times.scheduled_ns == 0) s.times.scheduled_ns = now_ns;
    d.plan.opened.push_back({*s.slot, s.prompt_size(), s.request.sampling});
    d.plan.grants.push_back({*s.slot, 0, s.blocks});
  }

  std::optional<step_plan> schedule(std::uint64_t now_ns) {
    if (static_cast<std::int32_t>(in_flight.size()) >= config.plans_in_flight) return std::nullopt;
    draft d;
    d.budget = config.device.max_batched_tokens;
    plan_decodes(d);
    plan_prefills(d);
    if (!d.preempted) admit(d, now_ns); // else the victim would come straight back
    if (d.plan.items.empty()) return std::nullopt;
    d.plan.closed = std::exchange(to_close, {});
    d.plan.epoch = epoch;
    d.plan.step = d.record.step = ++last_step;
    in_flight.push_back(std::move(d.record));
    return std::move(d.plan);
  }

  // --- absorbing ----------------------------------------------------------------------------------------------------

  sequence_update update_for(const sequence_state& s) const {
    sequence_update u;
    u.id = s.request.id;
    u.output_tokens = s.output_size();
    u.times = s.times;
    return u;
  }

  void end(sequence_state& s) {
    release(s);
    waiting.erase(rank_of(s));
    sequences.erase(s.request.id);
  }

  sequence_update fail(sequence_state& s, error reason, std::uint64_t now_ns) {
    s.times.finished_ns = now_ns;
    sequence_update u = update_for(s);
    u.finish = finish_reason::failed;
    u.failure = std::move(reason);
    end(s);
    return u;
  }

  static bool is_stop_token(const sequence_state& s, token_id token) {
    const auto& ids = s.request.stop.stop_token_ids;
    return s.output_size() >= s.request.stop.min_tokens && std::find(ids.begin(), ids.end(), token) != ids.end();
  }

  // Prompt positions first_position+1 .. were scored; a refill scores some a second time.
  static void absorb_scores(sequence_state& s, const planned_row& row, const slot_output& out, sequence_update& u) {
    for (std::size_t i = 0; i < out.prompt_scores.size(); ++i) {
      const std::int32_t position = row.first_position + 1 + static_cast<std::int32_t>(i);
      if (position != s.scored + 1 || position >= s.prompt_size()) continue;
      u.prompt_scores.push_back(out.prompt_scores[i]);
      s.scored = position;
    }
  }

  // The sampled token's effect: an output, and maybe the end.
  static void absorb_token(sequence_state& s, const slot_output& out, sequence_update& u, std::uint64_t now_ns) {
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

  std::optional<sequence_update> absorb(sequence_state& s, const planned_row& row, const slot_output& out, std::uint64_t now_ns) {
    if (out.numeric_fault || (row.sample && out.tokens.empty())) {
      return fail(s, {error_kind::internal, "the model's logits are not finite", "", std::nullopt}, now_ns);
    }
    sequence_update u = update_for(s);
    absorb_scores(s, row, out, u);
    if (row.sample) {
      --s.samples_in_flight;
      absorb_token(s, out, u, now_ns);
    } else if (s.request.stop.max_tokens == 0 && row.first_position + row.token_count >= s.prompt_size()) {
      u.finish = finish_reason::length;
    }
    if (u.finish) s.times.finished_ns = now_ns;
    u.output_tokens = s.output_size();
    u.times = s.times;
    if (u.finish) {
      end(s);
    } else if (u.tokens.empty() && u.prompt_scores.empty()) {
      return std::nullopt;
    }
    return u;
  }

  static bool matches(const plan_in_flight& plan, const step_result& result) {
    return plan.step == result.step && std::equal(plan.rows.begin(), plan.rows.end(), result.outputs.begin(), result.outputs.end(),
                                                  [](const planned_row& row, const slot_output& out) { return row.slot == out.slot; });
  }

  std::vector<sequence_update> apply(const step_result& result, std::uint64_t now_ns) {
    std::vector<sequence_update> updates;
    if (result.epoch != epoch || in_flight.empty() || !matches(in_flight.front(), result)) return updates;
    const plan_in_flight plan = std::move(in_flight.front());
    in_flight.pop_front();
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
      auto found = sequences.find(plan.rows[i].id);
      if (found == sequences.end() || found->second.life != plan.rows[i].life) continue; // ended or preempted meanwhile
      if (auto u = absorb(found->second, plan.rows[i], result.outputs[i], now_ns)) updates.push_back(std::move(*u));
    }
    return updates;
  }

  std::vector<sequence_update> device_lost(std::uint64_t now_ns, loss_cause cause) {
    std::set<sequence_id> caught;
    for (const plan_in_flight& plan : in_flight) {
      for (const planned_row& row : plan.rows) {
        auto found = sequences.find(row.id);
        if (found != sequences.end() && found->second.life == row.life) caught.insert(row.id);
      }
    }
    const std::vector<rank> were_running(running.begin(), running.end());
    for (const rank& r : were_running) {
      release(at(r));
      waiting.insert(r);
    }
    to_close.clear(); // a new device has no slot open
    in_flight.clear();
    ++epoch;
    last_step = 0;
    return blame(caught, now_ns, cause);
  }

  std::vector<sequence_update> blame(const std::set<sequence_id>& caught, std::uint64_t now_ns, loss_cause cause) {
    std::vector<sequence_update> quarantined;
    for (const sequence_id& id : caught) {
      sequence_state& s = sequences.find(id)->second;
      ++s.losses_in_a_row;
      if (cause == loss_cause::fault) ++s.faults_in_a_row;
      if (s.faults_in_a_row >= kFaultsToQuarantine || s.losses_in_a_row >= kLossesToQuarantine) {
        quarantined.push_back(
            fail(s, {error_kind::internal, "the device failed repeatedly while it worked on this request", "", std::nullopt}, now_ns));
      }
    }
    return quarantined;
  }
};

scheduler::scheduler(scheduler_config config) {
  const executor_info& device = config.device;
  if (device.block_size < 1 || device.num_blocks < 1 || device.max_num_seqs < 1 || config.plans_in_flight < 1) {
    throw std::invalid_argument("scheduler: block_size, num_blocks, max_num_seqs and plans_in_flight must be at least 1");
  }
  if (device.max_batched_tokens < device.max_num_seqs) { // else a prefill could wait for ever behind decodes
    throw std::invalid_argument("max_num_batched_tokens (" + std::to_string(device.max_batched_tokens) +
                                ") must be at least max_num_seqs (" + std::to_string(device.max_num_seqs) + ")");
  }
  impl_ = std::make_unique<impl>(std::move(config));
}

scheduler::~scheduler() = default;
scheduler::scheduler(scheduler&&) noexcept = default;

std::optional<error> scheduler::add(sequence_request request, std::uint64_t) {
  const executor_info& device = impl_->config.device;
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) return invalid_request("prompt", "the prompt has no tokens");
  const bool prompt_only = request.stop.max_tokens == 0;
  const std::int64_t pool_tokens = static_cast<std::int64_t>(device.num_blocks) * device.block_size;
  // The last output's own KV is never needed: a sequence occupies prompt + outputs - 1 positions.
  if (prompt + (prompt_only ? 0 : 1) > device.max_model_len) {
    return invalid_request("prompt", "the prompt has " + std::to_string(prompt) + " tokens; at most " +
                                         std::to_string(device.max_model_len - (prompt_only ? 0 : 1)) + " fit the context of " +
                                         std::to_string(device.max_model_len));
  }
  const auto outputs = std::min<std::int64_t>(request.stop.max_tokens, device.max_model_len - prompt);
  if (prompt + std::max<std::int64_t>(outputs - 1, 0) > pool_tokens) {
    return invalid_request("max_tokens", "prompt and output need " + std::to_string(prompt + outputs) +
                                             " tokens of KV cache, and the whole pool holds " + std::to_string(pool_tokens));
  }
  if (static_cast<std::int32_t>(impl_->waiting.size()) >= impl_->config.max_waiting) {
    return error{error_kind::overloaded, "the queue is full", "", 1};
  }
  request.stop.max_tokens = static_cast<std::int32_t>(outputs);
  sequence_state s;
  s.times.arrival_ns = request.arrival_ns;
  s.request = std::move(request);
  const rank place = rank_of(s);
  if (!impl_->sequences.emplace(place.id, std::move(s)).second) throw std::logic_error("sequence added twice");
  impl_->waiting.insert(place);
  return std::nullopt;
}

std::optional<step_plan> scheduler::schedule(std::uint64_t now_ns) { return impl_->schedule(now_ns); }

std::vector<sequence_update> scheduler::apply(const step_result& result, std::uint64_t now_ns) { return impl_->apply(result, now_ns); }

bool scheduler::remove(sequence_id id) {
  auto found = impl_->sequences.find(id);
  if (found == impl_->sequences.end()) return false;
  impl_->end(found->second);
  return true;
}

std::vector<sequence_update> scheduler::device_lost(std::uint64_t now_ns, loss_cause cause) { return impl_->device_lost(now_ns, cause); }

std::vector<sequence_update> scheduler::fail_all(const error& reason, std::uint64_t now_ns) {
  std::vector<sequence_update> updates;
  while (!impl_->sequences.empty()) updates.push_back(impl_->fail(impl_->sequences.begin()->second, reason, now_ns));
  return updates;
}

scheduler_stats scheduler::stats() const {
  scheduler_stats s;
  s.running = static_cast<std::int32_t>(impl_->running.size());
  s.waiting = static_cast<std::int32_t>(impl_->waiting.size());
  s.plans_in_flight = static_cast<std::int32_t>(impl_->in_flight.size());
  s.blocks_total = impl_->pool.total();
  s.blocks_free = impl_->pool.free();
  s.preemptions = impl_->preemptions;
  return s;
}

epoch_number scheduler::epoch() const { return impl_->epoch; }

} // namespace troupe
