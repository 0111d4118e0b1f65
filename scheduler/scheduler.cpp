#include "scheduler/scheduler.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "scheduler/absorb.hpp"
#include "scheduler/planner.hpp"
#include "scheduler/predicted_wait.hpp"
#include "scheduler/scheduler_core.hpp"

namespace troupe {
namespace {

bool matches(const plan_in_flight& plan, const step_result& result) {
  return plan.step == result.step && std::equal(plan.rows.begin(), plan.rows.end(), result.outputs.begin(), result.outputs.end(),
                                                [](const planned_row& row, const slot_output& out) { return row.slot == out.slot; });
}

// What can never run: the outputs that fit, or why none do.
result<std::int32_t> output_limit(const sequence_request& request, const executor_info& device) {
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
  return static_cast<std::int32_t>(outputs);
}

// Drafts can be planned for a sequence only when all of its tokens are known. A run found by n-grams goes on behind the tokens that are
// in flight, if these are what it foresees; proposals come with the results.
bool awaits_results(const scheduler_core& core) {
  if (core.in_flight.empty() || core.config.stages > 1) return false;
  if (std::any_of(core.in_flight.begin(), core.in_flight.end(), [](const plan_in_flight& p) { return p.verifies || p.proposes; }))
    return true;
  if (!core.drafting.on() || core.drafting.source() != draft_source::ngram) return false;
  const auto& running = core.sequences.running();
  return std::any_of(running.begin(), running.end(), [&](const sequence_state* s) { return core.drafts_for(*s) > s->samples_in_flight; });
}

measured_step measure(const plan_in_flight& plan, const step_result& result, std::uint64_t ns) {
  measured_step step{plan.tokens, plan.prefill_tokens, 0, 0, plan.verifies || plan.proposes, ns};
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    step.draws += plan.rows[i].sample ? 1 : 0;
    step.outputs += static_cast<std::int64_t>(result.outputs[i].tokens.size());
  }
  return step;
}

} // namespace

scheduler::scheduler(scheduler_config config) {
  const executor_info& device = config.device;
  if (device.block_size < 1 || device.num_blocks < 1 || device.max_num_seqs < 1 || config.plans_in_flight < 1) {
    throw std::invalid_argument("scheduler: block_size, num_blocks, max_num_seqs and plans_in_flight must be at least 1");
  }
  if (config.stages < 1 || config.plans_in_flight < config.stages) {
    throw std::invalid_argument("scheduler: " + std::to_string(config.stages) + " stages need as many plans in flight, not " +
                                std::to_string(config.plans_in_flight));
  }
  if (device.max_batched_tokens < device.max_num_seqs) { // else a prefill could wait for ever behind decodes
    throw std::invalid_argument("max_num_batched_tokens (" + std::to_string(device.max_batched_tokens) +
                                ") must be at least max_num_seqs (" + std::to_string(device.max_num_seqs) + ")");
  }
  core_ = std::make_unique<scheduler_core>(std::move(config));
}

scheduler::~scheduler() = default;
scheduler::scheduler(scheduler&&) noexcept = default;

std::optional<error> scheduler::add(sequence_request request, std::uint64_t now_ns) {
  const result<std::int32_t> outputs = output_limit(request, core_->config.device);
  if (!outputs) return outputs.failure();
  if (static_cast<std::int32_t>(core_->sequences.waiting().size()) >= core_->config.max_waiting) {
    return error{error_kind::overloaded, "the queue is full", "", 1};
  }
  if (auto late = refuse_if_late(*core_, request, now_ns)) return late;
  request.stop.max_tokens = *outputs;
  if (request.same_prompt_as) {
    const sequence_state* first = core_->sequences.find({request.id.request, *request.same_prompt_as});
    if (first == nullptr || first->request.prompt != request.prompt) request.same_prompt_as.reset();
  }
  sequence_state s;
  s.times.arrival_ns = request.arrival_ns;
  s.request = std::move(request);
  core_->deadlines.add(core_->sequences.add(std::move(s)));
  return std::nullopt;
}

std::optional<step_plan> scheduler::schedule(std::uint64_t now_ns) {
  if (static_cast<std::int32_t>(core_->in_flight.size()) >= core_->config.plans_in_flight) return std::nullopt;
  if (awaits_results(*core_)) return std::nullopt;
  return planner(*core_, now_ns).run();
}

std::vector<sequence_update> scheduler::apply(const step_result& result, std::uint64_t now_ns) {
  if (result.epoch != core_->epoch || core_->in_flight.empty() || !matches(core_->in_flight.front(), result)) return {};
  const plan_in_flight plan = std::move(core_->in_flight.front());
  core_->in_flight.pop_front();
  const std::uint64_t took_ns = now_ns - std::max(plan.planned_ns, std::exchange(core_->last_result_ns, now_ns));
  core_->cost.observe(plan.tokens, took_ns);
  core_->drafting.observe(measure(plan, result, took_ns));
  return absorb_result(*core_, plan, result, now_ns);
}

bool scheduler::remove(sequence_id id) {
  sequence_state* s = core_->sequences.find(id);
  if (s == nullptr) return false;
  core_->end(*s);
  return true;
}

std::vector<sequence_update> scheduler::expire(std::uint64_t now_ns) {
  std::vector<sequence_update> updates;
  for (sequence_state* s : core_->deadlines.take_expired(now_ns)) {
    const bool in_all = s->request.total_deadline_ns && *s->request.total_deadline_ns <= now_ns;
    if (!in_all && s->times.scheduled_ns != 0) continue; // it left the queue in time
    const error late = in_all ? error{error_kind::timed_out, "the request was not complete within its timeout", "timeout_ms", std::nullopt}
                              : error{error_kind::timed_out, "the request waited too long", "queue_timeout_ms", std::nullopt};
    updates.push_back(fail_sequence(*core_, *s, late, now_ns));
  }
  return updates;
}

std::optional<std::uint64_t> scheduler::next_deadline_ns() const { return core_->deadlines.next_ns(); }

std::vector<sequence_update> scheduler::device_lost(std::uint64_t now_ns, loss_cause cause, bool kv_may_stay) {
  return absorb_loss(*core_, now_ns, cause, kv_may_stay);
}

void scheduler::forget_cache() { core_->cache.forget(); }

std::vector<sequence_progress> scheduler::take_all() {
  const auto& table = core_->sequences;
  if (!table.running().empty()) throw std::logic_error("sequences are running");
  std::vector<sequence_progress> taken;
  while (!table.waiting().empty()) {
    sequence_state& s = **table.waiting().begin();
    core_->deadlines.remove(s);
    taken.push_back(std::move(static_cast<sequence_progress&>(s))); // its id and rank, being integers, stay readable
    core_->sequences.erase(s);
  }
  return taken;
}

void scheduler::readmit(sequence_progress moved) {
  sequence_state s;
  static_cast<sequence_progress&>(s) = std::move(moved);
  core_->deadlines.add(core_->sequences.add(std::move(s)));
}

scheduler_stats scheduler::stats() const {
  scheduler_stats s;
  s.running = static_cast<std::int32_t>(core_->sequences.running().size());
  s.waiting = static_cast<std::int32_t>(core_->sequences.waiting().size());
  s.plans_in_flight = static_cast<std::int32_t>(core_->in_flight.size());
  s.blocks_total = core_->cache.total();
  s.blocks_free = core_->cache.free();
  s.blocks_used = core_->cache.used();
  s.blocks_cached = core_->cache.cached();
  s.preemptions = core_->preemptions;
  s.drafts = core_->drafts;
  s.speculating = core_->drafting.on();
  return s;
}

epoch_number scheduler::epoch() const { return core_->epoch; }

} // namespace troupe
