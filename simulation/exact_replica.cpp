#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "scheduler/scheduler.hpp"
#include "simulation/replica.hpp"

namespace troupe::simulation {

namespace {

constexpr std::int32_t kPlansInFlight = 2;

// Sequences here have lengths, not texts: what a prefix cache would find is the router's to say.
scheduler_config without_prefix_cache(scheduler_config config) {
  config.prefix_caching = false;
  return config;
}

class exact_replica final : public replica {
 public:
  explicit exact_replica(const replica_config& config)
      : config_(config), scheduler_(without_prefix_cache({config.table->limits, config.max_waiting, kPlansInFlight})) {}

  void advance(double until_ns) override {
    while (!in_flight_.empty() && in_flight_.front().end_ns <= until_ns) {
      const flight done = std::move(in_flight_.front());
      in_flight_.pop_front();
      now_ns_ = done.end_ns;
      for (const sequence_update& u : scheduler_.apply(done.result, stamp())) absorb(u);
      pump();
    }
  }

  // Nothing is found in a prefix cache here: cached tokens count as computed.
  void add(const traffic& t, std::int32_t) override {
    const double reached_ns = t.arrival_ns + config_.overhead_ns + config_.table->serving.request_ns;
    advance(reached_ns);
    now_ns_ = std::max(now_ns_, reached_ns);
    sequence_request r;
    r.id = {++last_id_, 0};
    r.prompt.assign(static_cast<std::size_t>(t.prompt_tokens), 0);
    r.stop.max_tokens = t.output_tokens;
    r.arrival_ns = stamp();
    if (scheduler_.add(std::move(r), stamp())) {
      ++results_.rejected;
    } else {
      open_.emplace(last_id_, open_request{t, 0, 0});
    }
    pump();
  }

  std::int32_t load() const override { return static_cast<std::int32_t>(open_.size()); }

 private:
  struct open_request {
    traffic what;
    double first_ns = 0;
    double last_ns = 0;
  };
  struct flight {
    double end_ns = 0;
    step_result result;
  };

  std::uint64_t stamp() const { return static_cast<std::uint64_t>(now_ns_) + 1; }

  void pump() {
    while (auto plan = scheduler_.schedule(stamp())) {
      step_shape shape;
      flight f;
      f.result.epoch = plan->epoch;
      f.result.step = plan->step;
      for (const work_item& item : plan->items) {
        const bool decode = item.kind == work_kind::decode;
        (decode ? shape.decode_rows : shape.prefill_tokens) += item.token_count;
        (decode ? shape.decode_context : shape.prefill_context) += static_cast<double>(item.first_position) * item.token_count;
        slot_output out;
        out.slot = item.slot;
        if (item.sample) out.tokens.push_back(0);
        f.result.outputs.push_back(std::move(out));
      }
      if (shape.decode_rows > 0) shape.decode_context /= shape.decode_rows;
      if (shape.prefill_tokens > 0) shape.prefill_context /= shape.prefill_tokens;
      const double cost = config_.table->step_ns(shape);
      device_free_ns_ = f.end_ns = std::max(device_free_ns_, now_ns_) + cost;
      results_.busy_ns += cost;
      ++results_.steps;
      in_flight_.push_back(std::move(f));
    }
    results_.preemptions = scheduler_.stats().preemptions;
  }

  void absorb(const sequence_update& u) {
    auto at = open_.find(u.id.request);
    open_request& r = at->second;
    if (!u.tokens.empty()) {
      if (r.first_ns == 0) {
        r.first_ns = now_ns_;
      } else {
        results_.itl.add(now_ns_ - r.last_ns);
      }
      r.last_ns = now_ns_;
    }
    if (!u.finish) return;
    results_.finish(r.what.arrival_ns, r.first_ns, now_ns_, r.what.prompt_tokens, u.output_tokens, config_.wanted);
    open_.erase(at);
  }

  replica_config config_;
  scheduler scheduler_;
  std::deque<flight> in_flight_;
  double now_ns_ = 0;
  double device_free_ns_ = 0;
  request_id last_id_ = 0;
  std::unordered_map<request_id, open_request> open_;
};

} // namespace

std::unique_ptr<replica> make_exact_replica(const replica_config& config) { return std::make_unique<exact_replica>(config); }

} // namespace troupe::simulation
