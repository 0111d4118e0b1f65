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
std::chrono::milliseconds tick_interval(const serving_options& options) {
  const auto shortest = options.group_size > 1 ? std::min(options.step_deadline, options.rank_deadline) : options.step_deadline;
  return std::clamp(shortest / 8, std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
}

std::uint64_t to_ns(std::chrono::milliseconds t) { return static_cast<std::uint64_t>(std::chrono::nanoseconds(t).count()); }

// How late a deadline may be noticed while no step ends.
constexpr std::chrono::milliseconds kDeadlineTick{100};

void watch(self_pointer self) {
  auto& s = self->state;
  const bool deadlines = s.core && s.core->next_deadline_ns().has_value();
  if ((s.sent.empty() && !deadlines) || std::exchange(s.ticking, true)) return;
  const auto interval = tick_interval(s.shared->options);
  self->delayed_send(self, deadlines ? std::min(interval, kDeadlineTick) : interval, caf::tick_atom::value);
}

void send_updates(self_pointer self, std::vector<sequence_update> updates, std::uint64_t now) {
  if (!updates.empty()) self->send(self->state.detokenizer, step_updates{now, std::move(updates)});
}

void report_stats(scheduler_actor_state& s) {
  const scheduler_stats now = s.core->stats();
  auto& metrics = *s.shared->parts.metrics;
  metrics.set_engine(s.replica, {now.running, now.waiting, now.blocks_total, now.blocks_used, now.blocks_cached, now.speculating});
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

void send_plan(self_pointer self, step_plan plan, std::uint64_t now) {
  auto& s = self->state;
  if (s.sent.empty()) s.last_news_ns = now;
  scheduler_actor_state::sent_plan record;
  record.step = plan.step;
  record.sent_ns = now;
  record.sequences = static_cast<std::int64_t>(plan.items.size());
  for (const work_item& item : plan.items) record.tokens += item.token_count;
  if (s.shared->parts.timeline) {
    record.traced.replica = s.replica;
    record.traced.epoch = plan.epoch;
    record.traced.step = plan.step;
    telemetry::count_items(plan, record.traced);
  }
  s.sent.push_back(record);
  for (std::size_t rank = 1; rank < s.ranks.size(); ++rank) self->send(s.ranks[rank].device, plan);
  self->send(s.ranks.front().device, std::move(plan));
}

// Over the whole trace.
void mark(const scheduler_actor_state& s, const std::string& what, std::uint64_t now) {
  const auto& timeline = s.shared->parts.timeline;
  if (!timeline) return;
  timeline->mark(s.shared->replica_prefix(s.replica) + what, now);
}

void forget_group(self_pointer self, loss_cause cause, const char* event) {
  auto& s = self->state;
  s.ranks.clear();
  s.halted = s.pausing = false;
  s.sent.clear();
  const std::uint64_t now = now_ns();
  send_updates(self, s.core->device_lost(now, cause, cause == loss_cause::killed), now);
  mark(s, event + (", epoch " + std::to_string(s.core->epoch())), now);
  s.shared->parts.metrics->set_group(s.replica, false, static_cast<std::int64_t>(s.core->epoch()));
  report_stats(s);
}

// Plans as far ahead as the scheduler allows.
void pump(self_pointer self) {
  auto& s = self->state;
  expire(self);
  if (s.pausing && s.sent.empty()) {
    forget_group(self, loss_cause::killed, "device let go"); // no plan is out, so nobody is blamed
    self->send(s.supervisor, group_paused{s.generation});
  }
  const auto most = static_cast<std::size_t>(std::max(1, s.shared->options.plans_in_flight));
  while (!s.ranks.empty() && !s.halted && !s.pausing && s.sent.size() <= most) {
    const std::uint64_t now = now_ns();
    auto plan = s.core->schedule(now);
    if (!plan) break;
    send_plan(self, std::move(*plan), now);
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

// Goes on with what another replica's scheduler had to give up.
void readmit(self_pointer self, moved_sequences& moved) {
  for (sequence_progress& sequence : moved.sequences) self->state.core->readmit(std::move(sequence));
  pump(self);
}

// The scheduler's own finding: a step failed, or did not come back.
void give_group_up(self_pointer self, std::string reason) {
  auto& s = self->state;
  if (s.ranks.empty()) return;
  forget_group(self, loss_cause::fault, "device lost");
  self->send(s.supervisor, group_suspect{s.generation, std::move(reason), false});
}

std::string rank_prefix(const scheduler_actor_state& s, std::int32_t rank) { return actors::rank_prefix(rank, s.ranks.size()); }

// A rank's time for a step begins with the plan or with its answer to the one before, whichever is later.
void measure_rank(scheduler_actor_state& s, std::int32_t rank, scheduler_actor_state::sent_plan& plan, const stage_times& times,
                  std::uint64_t now) {
  auto& state = s.ranks[static_cast<std::size_t>(rank)];
  const std::uint64_t took = now - std::max(plan.sent_ns, std::exchange(state.last_answer_ns, now));
  if (plan.answers++ == 0) plan.first_answer_ns = now, plan.first_took_ns = took;
  const serving_options& options = s.shared->options;
  plan.first_of_stage_ns.resize(static_cast<std::size_t>(options.stages));
  std::uint64_t& first = plan.first_of_stage_ns[static_cast<std::size_t>(rank * options.stages / options.group_size)];
  if (first == 0) first = now;
  const std::uint64_t lag = now - first; // stages work one after the other, the ranks of each at once
  const telemetry::rank_times of_rank{took, lag, times.collective_wait_ns, times.collective_move_ns};
  s.shared->parts.metrics->rank_step(s.replica, rank, of_rank);
  const auto& timeline = s.shared->parts.timeline;
  if (timeline && s.ranks.size() > 1) timeline->rank_step(plan.traced, rank, of_rank, now);
}

// False when the result does not fit the plan.
bool apply_result(self_pointer self, const scheduler_actor_state::sent_plan& plan, const step_result& result, std::uint64_t since,
                  std::uint64_t now) {
  auto& s = self->state;
  const auto before = s.core->stats().plans_in_flight;
  auto updates = s.core->apply(result, now);
  if (s.core->stats().plans_in_flight == before) return false;
  if (auto& timeline = s.shared->parts.timeline) {
    auto traced = plan.traced;
    traced.result_ns = now;
    timeline->step(traced, result.times);
  }
  s.shared->parts.metrics->step(now - std::max(plan.sent_ns, since), plan.sequences, plan.tokens);
  for (const sequence_update& update : updates) { // a result fails a sequence only for logits that are not finite
    if (update.finish == finish_reason::failed) s.shared->parts.metrics->numeric_fault();
  }
  s.shared->health.step_completed(s.replica);
  send_updates(self, std::move(updates), now);
  return true;
}

void absorb(self_pointer self, const step_done& done) {
  auto& s = self->state;
  if (s.ranks.empty() || s.halted || done.result.epoch != s.core->epoch()) return; // of a group that was given up
  const auto index = static_cast<std::size_t>(done.rank);
  const bool known = index < s.ranks.size() && s.ranks[index].answered < s.sent.size();
  if (!known || s.sent[s.ranks[index].answered].step != done.result.step) {
    return give_group_up(self, rank_prefix(s, done.rank) + "answered out of turn");
  }
  const std::uint64_t now = now_ns();
  const std::uint64_t since = s.ranks[index].last_answer_ns;
  auto& plan = s.sent[s.ranks[index].answered++];
  measure_rank(s, done.rank, plan, done.result.times, now);
  if (done.rank == s.shared->options.leader && !apply_result(self, plan, done.result, since, now)) {
    return give_group_up(self, rank_prefix(s, done.rank) + "its result does not fit the plan");
  }
  s.last_news_ns = now;
  if (plan.answers == s.ranks.size()) { // ranks answer in order, so it is the oldest
    s.sent.pop_front();
    for (auto& rank : s.ranks) --rank.answered;
  }
  pump(self);
}

void step_has_failed(self_pointer self, const step_failed& failed) {
  auto& s = self->state;
  // Its rank was killed before this was read: after a fault nothing of the KV counts, whoever ended the process.
  if (s.ranks.empty() && s.core && failed.epoch + 1 == s.core->epoch() && !failed.by_peer) s.core->forget_cache();
  if (s.ranks.empty() || failed.epoch != s.core->epoch()) return;
  if (failed.collective && !s.halted) { // the first of the group to tell; the others tell of the same
    s.shared->parts.metrics->collective_failed(s.replica, *failed.collective);
    mark(s, rank_prefix(s, failed.rank) + "a collective failed", now_ns());
  }
  std::string reason = rank_prefix(s, failed.rank) + failed.reason;
  if (!failed.by_peer) return give_group_up(self, std::move(reason));
  if (!std::exchange(s.halted, true)) self->send(s.supervisor, group_suspect{s.generation, std::move(reason), true});
}

scheduler_config config_for(const serving_state& shared, const executor_info& info) {
  scheduler_config config;
  config.device = info;
  config.max_waiting = shared.options.max_queue;
  config.plans_in_flight = std::max(1, shared.options.plans_in_flight);
  config.stages = shared.options.stages;
  config.speculation = shared.options.speculation;
  config.prefix_caching = shared.options.prefix_caching;
  if (const auto& bound = shared.options.max_predicted_ttft) {
    config.max_predicted_ttft_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(*bound).count());
  }
  std::random_device random;
  for (std::uint64_t& half : config.hash_key) half = (std::uint64_t{random()} << 32) | random();
  return config;
}

void attach(self_pointer self, generation_number generation, const executor_info& info, bool kv_kept, std::vector<device_actor>& devices) {
  auto& s = self->state;
  s.supervisor = caf::actor_cast<supervisor_actor>(self->current_sender());
  if (!s.core) s.core.emplace(config_for(*s.shared, info));
  if (!kv_kept) s.core->forget_cache();
  for (device_actor& device : devices) s.ranks.push_back({std::move(device), 0, 0});
  s.generation = generation;
  s.shared->parts.metrics->set_group(s.replica, true, static_cast<std::int64_t>(s.core->epoch()));
  if (generation > 1) mark(s, "device up again, epoch " + std::to_string(s.core->epoch()), now_ns());
  pump(self);
}

void detach(self_pointer self, const detach_group& d) {
  if (!self->state.ranks.empty() && self->state.generation == d.generation) forget_group(self, d.cause, "device lost");
}

void pause(self_pointer self, const pause_group& p) {
  auto& s = self->state;
  if (s.ranks.empty() || s.generation != p.generation) return;
  s.pausing = true;
  pump(self);
}

// The group is not back: another replica may go on with its sequences.
void migrate(self_pointer self, const gateway_actor& gateway) {
  auto& s = self->state;
  if (!s.core || !s.ranks.empty()) return; // it came back meanwhile
  auto taken = s.core->take_all();
  if (!taken.empty()) self->send(gateway, moved_sequences{s.replica, std::move(taken)});
  report_stats(s);
}

// The oldest plan that is not done: nobody answers, or not everybody. A rank may be as late as a pipeline of all ranks would be, each
// taking twice the first one's time; before its own last answer it had other work.
std::optional<std::string> lateness(const scheduler_actor_state& s, std::uint64_t now) {
  if (s.sent.empty() || s.halted) return std::nullopt;
  const serving_options& options = s.shared->options;
  if (now - s.last_news_ns > to_ns(options.step_deadline)) {
    return "no result within the step deadline of " + std::to_string(options.step_deadline.count()) + " ms";
  }
  const auto& plan = s.sent.front();
  if (plan.answers == 0) return std::nullopt;
  const auto late = std::find_if(s.ranks.begin(), s.ranks.end(), [](const auto& rank) { return rank.answered == 0; });
  const std::uint64_t waited = now - std::max(plan.first_answer_ns, late->last_answer_ns);
  if (waited <= std::max(to_ns(options.rank_deadline), 2 * s.ranks.size() * plan.first_took_ns)) return std::nullopt;
  return rank_prefix(s, static_cast<std::int32_t>(late - s.ranks.begin())) + "no answer " +
         std::to_string((now - plan.first_answer_ns) / 1'000'000) + " ms after another rank's";
}

void tick(self_pointer self) {
  auto& s = self->state;
  s.ticking = false;
  if (auto late = lateness(s, now_ns())) return give_group_up(self, std::move(*late));
  pump(self);
}

} // namespace

scheduler_actor::behavior_type run_scheduler(self_pointer self, shared_state shared, std::int32_t replica, detokenizer_actor detokenizer) {
  self->state.shared = std::move(shared);
  self->state.replica = replica;
  self->state.detokenizer = std::move(detokenizer);
  return {
      [self](add_sequences& request) { add(self, request); },
      [self](const remove_sequences& request) { remove(self, request); },
      [self](moved_sequences& moved) { readmit(self, moved); },
      [self](caf::join_atom, generation_number generation, const executor_info& info, bool kv_kept, std::vector<device_actor>& devices) {
        attach(self, generation, info, kv_kept, devices);
      },
      [self](const detach_group& d) { detach(self, d); },
      [self](const pause_group& p) { pause(self, p); },
      [self](caf::migrate_atom, const gateway_actor& gateway) { migrate(self, gateway); },
      [self](const step_done& done) { absorb(self, done); },
      [self](const step_failed& failed) { step_has_failed(self, failed); },
      [self](caf::tick_atom) { tick(self); },
  };
}

} // namespace troupe::actors
