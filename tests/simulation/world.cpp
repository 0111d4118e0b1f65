#include "tests/simulation/world.hpp"

#include <chrono>
#include <exception>

namespace troupe::test {

namespace {

scheduler_config config_of(const scenario& scene) {
  scheduler_config config;
  config.device = scene.device;
  config.max_waiting = scene.max_queue;
  config.plans_in_flight = scene.plans_in_flight;
  config.stages = scene.stages;
  config.speculation = scene.speculation;
  return config;
}

constexpr std::uint64_t kMostEvents = 400'000; // hundreds of times what a run has

} // namespace

void coverage::add(const coverage& o) {
  for (auto member : {&coverage::events, &coverage::steps, &coverage::finished, &coverage::refused, &coverage::cancelled,
                      &coverage::preemptions, &coverage::faults, &coverage::kills, &coverage::missed, &coverage::stale,
                      &coverage::duplicates, &coverage::numeric, &coverage::quarantined, &coverage::escalations, &coverage::stop_strings,
                      &coverage::accepted, &coverage::rejected, &coverage::changes, &coverage::kept, &coverage::unkept, &coverage::torn,
                      &coverage::overlapped}) {
    this->*member += o.*member;
  }
}

world::world(std::uint64_t seed, bool keep_log)
    : seed_(seed),
      scene_(make_scenario(seed)),
      random_(seed),
      log_(keep_log),
      queue_(random_),
      registry_({scene_.max_queue, 1 << 20}),
      gateway_(queue_, random_, scene_.mail_ns),
      detokenizer_(queue_, random_, scene_.mail_ns),
      core_(config_of(scene_)),
      scheduler_(queue_, random_, scene_.mail_ns),
      supervisor_(queue_, random_, scene_.mail_ns),
      policy_(scene_.max_restarts, std::chrono::seconds(60)) {
  model_.max_model_len = scene_.device.max_model_len;
  model_.vocab_size = scene_.device.vocab_size;
}

// Once nothing comes and nothing breaks any more, the first in rank of the running moves at least one token with every step (in a pipeline,
// with as many as are in flight): decodes precede prefills and max_batched_tokens >= max_num_seqs leaves a prefill at least one token.
// Alone and one after another the open requests would need the sum of their tokens, and plans_in_flight more each; the factor of two is for
// what preemption computes twice.
void world::set_step_limit() {
  std::uint64_t work = 0;
  for (const client_plan& c : scene_.clients) {
    auto found = sinks_.find(c.request.id);
    if (found == sinks_.end() || found->second->ended()) continue;
    for (const prompt& p : c.request.prompts) {
      const auto length = static_cast<std::int32_t>(std::get<token_prompt>(p).size());
      const auto outputs = c.request.max_tokens.value_or(scene_.device.max_model_len - length);
      work += static_cast<std::uint64_t>(c.request.n) * static_cast<std::uint64_t>(length + outputs + scene_.plans_in_flight);
    }
  }
  const auto per_token = static_cast<std::uint64_t>(scene_.stages == 1 ? 1 : scene_.plans_in_flight);
  step_limit_ = seen_.steps + 2 * work * per_token + 4;
}

void world::check() {
  const scheduler_stats s = core_.stats();
  promise(s.blocks_total == scene_.device.num_blocks, "the pool keeps its size");
  promise(s.blocks_free >= 0 && s.blocks_cached >= 0 && s.blocks_free + s.blocks_cached <= s.blocks_total,
          "blocks are neither made nor lost");
  promise(s.running > 0 || s.blocks_free + s.blocks_cached == s.blocks_total, "blocks are used by running sequences alone");
  promise(s.running <= scene_.device.max_num_seqs, "no more sequences run than there are slots");
  promise(s.waiting <= scene_.max_queue + scene_.device.max_num_seqs, "the queue is bounded; only those who ran may come back over it");
  promise(s.plans_in_flight <= scene_.plans_in_flight, "plans in flight are bounded");
  promise(static_cast<std::int32_t>(jobs_.size()) <= scene_.max_queue, "the tokenizer's queue is bounded by the registry");
  promise(!step_limit_ || seen_.steps <= *step_limit_, "once faults have stopped, everything ends within the stated number of steps");
}

void world::check_failure(const checking_sink& sink) {
  const error& e = *sink.failure();
  switch (e.kind) {
    case error_kind::invalid_request:
    case error_kind::overloaded:
      ++seen_.refused;
      return;
    case error_kind::unavailable:
      return promise(seen_.escalations > 0, "nobody is turned away before the supervisor gave up");
    case error_kind::internal: // blame: a row that was not finite, or devices lost again and again
      return promise(seen_.numeric > 0 || seen_.faults + seen_.kills >= 2, "nobody fails without a fault");
    default:
      promise(e.kind == error_kind::cancelled, "there is no other way to end");
  }
}

void world::check_at_rest() {
  for (const client_plan& c : scene_.clients) {
    const checking_sink& sink = *sinks_.at(c.request.id);
    promise(sink.ended(), "every request ends");
    if (sink.stopped_by_string()) ++seen_.stop_strings;
    if (!sink.failure()) {
      ++seen_.finished;
      continue;
    }
    check_failure(sink);
    if (sink.failure()->kind != error_kind::cancelled) continue;
    ++seen_.cancelled;
    promise(left_.contains(c.request.id), "only who leaves is cancelled");
  }
  promise(registry_.active_requests() == 0 && registry_.load(0) == 0 && open_.empty() && requests_.empty(), "nobody is remembered");
  const auto late = std::make_shared<checking_sink>(scene_.clients.front().request, scene_.device);
  promise(!registry_.add(scene_.clients.size() + 1, late, scene_.max_queue, 0), "an empty registry has room for a whole queue");
  const scheduler_stats s = core_.stats();
  promise(s.running == 0 && s.waiting == 0 && s.plans_in_flight == 0, "the scheduler is empty at rest");
  promise(s.blocks_free + s.blocks_cached == s.blocks_total, "all blocks are free or cached at rest");
  seen_.preemptions = s.preemptions;
}

run_report world::run() {
  run_report report;
  report.seed = seed_;
  try {
    start_device();
    for (const client_plan& c : scene_.clients) {
      queue_.after(c.arrives_ns, [this, &c] { submit(c); });
      if (c.leaves_ns) queue_.after(*c.leaves_ns, [this, id = c.request.id] { cancel(id); });
    }
    queue_.after(scene_.quiet_ns, [this] { set_step_limit(); });
    while (queue_.step()) {
      promise(++seen_.events < kMostEvents, "a run comes to an end");
      check();
    }
    check_at_rest();
  } catch (const std::exception& e) { // a promise, or a part's own check
    report.broken = e.what();
    note("BROKEN");
  }
  report.hash = log_.hash();
  report.log = log_.lines();
  report.seen = seen_;
  return report;
}

run_report run_seed(std::uint64_t seed, bool keep_log) { return world(seed, keep_log).run(); }

} // namespace troupe::test
