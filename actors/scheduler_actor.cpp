#include "actors/scheduler_actor.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <random>
#include <string>
#include <utility>

namespace troupe::actors {

namespace {

using self_pointer = actor_pointer<scheduler_actor, scheduler_actor_state>;

// How often a running step is looked at; no timer runs while nothing is planned and nobody has a deadline.
std::chrono::milliseconds tick_interval(const serving_state& shared) {
  return std::clamp(shared.options.step_deadline / 8, std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
}

// How late a deadline may be noticed while no step ends.
constexpr std::chrono::milliseconds kDeadlineTick{100};

void watch(self_pointer self) {
  auto& s = self->state;
  const bool deadlines = s.core && s.core->next_deadline_ns().has_value();
  if ((s.sent.empty() && !deadlines) || std::exchange(s.ticking, true)) return;
  const auto interval = tick_interval(*s.shared);
  self->delayed_send(self, deadlines ? std::min(interval, kDeadlineTick) : interval, caf::tick_atom::value);
}

void send_updates(self_pointer self, std::vector<sequence_update> updates, std::uint64_t now) {
  if (!updates.empty()) self->send(self->state.detokenizer, step_updates{now, std::move(updates)});
}

void report_stats(scheduler_actor_state& s) {
  const scheduler_stats now = s.core->stats();
  auto& metrics = *s.shared->parts.metrics;
  metrics.set_engine({now.running, now.waiting, now.blocks_total, now.blocks_used, now.blocks_cached, now.speculating});
  if (now.preemptions > s.preemptions) metrics.preempted(static_cast<std::int64_t>(now.preemptions - s.preemptions));
  s.preemptions = now.preemptions;
  const draft_counts before = std::exchange(s.drafts, now.drafts);
  for (std::size_t place = 0; place < draft_counts::kPlaces; ++place) {
    const auto drafted = static_cast<std::int64_t>(now.drafts.drafted[place] - before.drafted[place]);
    const auto accepted = static_cast<std::int64_t>(now.drafts.accepted[place] - before.accepted[place]);
    if (drafted > 0) metrics.drafts(place, drafted, accepted);
  }
}

void expire(self_pointer self) {
  auto& s = self->state;
  const std::uint64_t now = now_ns();
  if (s.core) send_updates(self, s.core->expire(now), now);
}

// Plans as far ahead as the scheduler allows.
void pump(self_pointer self) {
  auto& s = self->state;
  expire(self);
  while (s.device) {
    const std::uint64_t now = now_ns();
    auto plan = s.core->schedule(now);
    if (!plan) break;
    if (s.sent.empty()) s.last_news_ns = now;
    scheduler_actor_state::sent_plan record{now, static_cast<std::int64_t>(plan->items.size()), 0, {}};
    for (const work_item& item : plan->items) record.tokens += item.token_count;
    if (s.shared->parts.timeline) {
      record.traced.epoch = plan->epoch;
      record.traced.step = plan->step;
      telemetry::count_items(*plan, record.traced);
    }
    s.sent.push_back(record);
    self->send(s.device, std::move(*plan));
  }
  report_stats(s);
  watch(self);
}

void add(self_pointer self, add_sequences& request) {
  auto& s = self->state;
  std::vector<sequence_id> added;
  for (sequence_request& sequence : request.sequences) {
    const sequence_id id = sequence.id;
    if (auto refused = s.core->add(std::move(sequence), now_ns())) {
      for (const sequence_id& before : added) s.core->remove(before);
      self->send(s.detokenizer, refuse_request{id.request, std::move(*refused)});
      break;
    }
    added.push_back(id);
  }
  pump(self);
}

void remove(self_pointer self, const remove_sequences& request) {
  auto& s = self->state;
  for (const sequence_id& id : request.ids) s.core->remove(id);
  pump(self);
}

void forget_device(self_pointer self, loss_cause cause) {
  auto& s = self->state;
  s.device = nullptr;
  s.sent.clear();
  const std::uint64_t now = now_ns();
  send_updates(self, s.core->device_lost(now, cause), now);
  if (auto& timeline = s.shared->parts.timeline) timeline->mark("device lost", now);
  report_stats(s);
}

// The scheduler's own finding: a step failed, or did not come back.
void give_device_up(self_pointer self, std::string reason) {
  auto& s = self->state;
  if (!s.device) return;
  forget_device(self, loss_cause::fault);
  self->send(s.supervisor, device_suspect{s.number, std::move(reason)});
}

void absorb(self_pointer self, const step_result& result) {
  auto& s = self->state;
  if (!s.device || result.epoch != s.core->epoch()) return; // of a device that was given up
  const std::uint64_t now = now_ns();
  const auto before = s.core->stats().plans_in_flight;
  auto updates = s.core->apply(result, now);
  if (s.sent.empty() || s.core->stats().plans_in_flight == before) return give_device_up(self, "the device answered out of turn");
  const auto plan = s.sent.front();
  s.sent.pop_front();
  if (auto& timeline = s.shared->parts.timeline) {
    auto traced = plan.traced;
    traced.result_ns = now;
    timeline->step(traced, result.times);
  }
  s.shared->parts.metrics->step(now - std::max(plan.sent_ns, s.last_news_ns), plan.sequences, plan.tokens);
  for (const sequence_update& update : updates) { // a result fails a sequence only for logits that are not finite
    if (update.finish == finish_reason::failed) s.shared->parts.metrics->numeric_fault();
  }
  s.last_news_ns = now;
  s.shared->health.step_completed();
  send_updates(self, std::move(updates), now);
  pump(self);
}

void step_has_failed(self_pointer self, const step_failed& failed) {
  auto& s = self->state;
  if (s.device && failed.epoch == s.core->epoch()) give_device_up(self, failed.reason);
}

scheduler_config config_for(const serving_state& shared, const executor_info& info) {
  scheduler_config config;
  config.device = info;
  config.max_waiting = shared.options.max_queue;
  config.plans_in_flight = std::max(1, shared.options.plans_in_flight);
  config.speculation = shared.options.speculation;
  config.prefix_caching = shared.options.prefix_caching;
  if (const auto& bound = shared.options.max_predicted_ttft) {
    config.max_predicted_ttft_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(*bound).count());
  }
  std::random_device random;
  for (std::uint64_t& half : config.hash_key) half = (std::uint64_t{random()} << 32) | random();
  return config;
}

void attach(self_pointer self, device_number number, const executor_info& info, device_actor device) {
  auto& s = self->state;
  s.supervisor = caf::actor_cast<supervisor_actor>(self->current_sender());
  if (!s.core) s.core.emplace(config_for(*s.shared, info));
  s.device = std::move(device);
  s.number = number;
  pump(self);
}

void detach(self_pointer self, const detach_device& d) {
  if (self->state.device && self->state.number == d.device) forget_device(self, d.cause);
}

void tick(self_pointer self) {
  auto& s = self->state;
  s.ticking = false;
  const auto deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(s.shared->options.step_deadline);
  if (!s.sent.empty() && now_ns() - s.last_news_ns > static_cast<std::uint64_t>(deadline.count())) {
    return give_device_up(self, "no result within the step deadline of " + std::to_string(s.shared->options.step_deadline.count()) + " ms");
  }
  pump(self);
}

} // namespace

scheduler_actor::behavior_type run_scheduler(self_pointer self, shared_state shared, detokenizer_actor detokenizer) {
  self->state.shared = std::move(shared);
  self->state.detokenizer = std::move(detokenizer);
  return {
      [self](add_sequences& request) { add(self, request); },
      [self](const remove_sequences& request) { remove(self, request); },
      [self](caf::join_atom, device_number number, const executor_info& info, device_actor& device) { attach(self, number, info, device); },
      [self](const detach_device& d) { detach(self, d); },
      [self](const step_result& result) { absorb(self, result); },
      [self](const step_failed& failed) { step_has_failed(self, failed); },
      [self](caf::tick_atom) { tick(self); },
  };
}

} // namespace troupe::actors
