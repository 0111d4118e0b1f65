#include "simulation/fleet.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>

#include "scheduler/replica_router.hpp"
#include "simulation/replica.hpp"

namespace troupe::simulation {

namespace {

constexpr std::size_t kBatch = 1 << 18; // requests that are routed together
constexpr std::size_t kSmallFleet = 16; // lanes up to which all of them are compared

// Which shared prefixes a replica holds; the one used longest ago goes first. At most half of its KV pool.
class prefix_store {
 public:
  explicit prefix_store(std::size_t most) : most_(most) {}

  bool use(std::uint32_t prefix) { // true: it was there
    const bool held = used_.contains(prefix);
    used_[prefix] = ++clock_;
    if (used_.size() > most_) {
      used_.erase(std::min_element(used_.begin(), used_.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
    }
    return held && most_ > 0;
  }

 private:
  std::size_t most_;
  std::uint64_t clock_ = 0;
  std::unordered_map<std::uint32_t, std::uint64_t> used_;
};

class fleet {
 public:
  fleet(const fleet_config& config, std::int32_t prefix_tokens) : config_(config), prefix_tokens_(prefix_tokens), random_(config.seed) {
    if (config.lanes() < 1) throw std::invalid_argument("a replica needs more GPUs than the fleet has");
    const replica_config each{&config_.table, config.max_waiting, config.overhead_ns, config.wanted};
    const auto& limits = config.table.limits;
    const std::int64_t half = std::int64_t{limits.num_blocks} * limits.block_size / 2;
    for (std::int64_t i = 0; i < config.lanes(); ++i) {
      lanes_.push_back(config.exact ? make_exact_replica(each) : make_fast_replica(each));
      prefixes_.emplace_back(prefix_tokens > 0 ? static_cast<std::size_t>(half / prefix_tokens) : 0);
    }
  }

  void take(const std::vector<traffic>& batch) {
    if (config_.route == routing::round_robin) return take_in_turn(batch);
    for (const traffic& t : batch) add(choose(t), t);
  }

  // To the end of all work.
  void finish() {
    for_each_lane([&](std::size_t i) { lanes_[i]->advance(std::numeric_limits<double>::infinity()); });
  }

  outcomes total() const {
    outcomes all;
    for (const auto& lane : lanes_) all.add(lane->results());
    return all;
  }

 private:
  void add(std::size_t lane, const traffic& t) {
    const bool held = t.prefix != 0 && prefixes_[lane].use(t.prefix);
    lanes_[lane]->add(t, held ? prefix_tokens_ : 0);
  }

  // Nobody looks at anybody's load, so that every lane can be worked through by itself.
  void take_in_turn(const std::vector<traffic>& batch) {
    const std::size_t count = lanes_.size(), first = next_;
    for_each_lane([&](std::size_t lane) {
      for (std::size_t i = (lane + count - first) % count; i < batch.size(); i += count) add(lane, batch[i]);
    });
    next_ = (next_ + batch.size()) % count;
  }

  template <class F>
  void for_each_lane(const F& work) {
    std::atomic<std::size_t> next{0};
    const auto run = [&] {
      for (std::size_t i = next++; i < lanes_.size(); i = next++) work(i);
    };
    std::vector<std::jthread> others;
    for (std::int32_t i = 1; i < std::min<std::int64_t>(config_.threads, config_.lanes()); ++i) others.emplace_back(run);
    run();
  }

  std::int32_t load_of(std::size_t lane, double now_ns) {
    lanes_[lane]->advance(now_ns);
    return lanes_[lane]->load();
  }

  std::size_t least_loaded(double now_ns) {
    const bool all = lanes_.size() <= kSmallFleet;
    const std::size_t tries = all ? lanes_.size() : 2;
    std::size_t best = 0;
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    for (std::size_t i = 0; i < tries; ++i) {
      const std::size_t lane = all ? (next_ + i) % lanes_.size() : random_.below(lanes_.size());
      const std::int32_t load = load_of(lane, now_ns);
      if (load < least) least = load, best = lane;
    }
    next_ = (best + 1) % lanes_.size();
    return best;
  }

  std::size_t choose(const traffic& t) {
    const std::size_t least = least_loaded(t.arrival_ns);
    if (config_.route != routing::prefix_aware || t.prefix == 0) return least;
    const std::size_t home = random_source(t.prefix).below(lanes_.size());
    return worth_waiting(load_of(home, t.arrival_ns), lanes_[least]->load()) ? home : least;
  }

  const fleet_config config_;
  const std::int32_t prefix_tokens_;
  random_source random_;
  std::vector<std::unique_ptr<replica>> lanes_;
  std::vector<prefix_store> prefixes_;
  std::size_t next_ = 0;
};

fleet_report report_of(const fleet_config& config, const outcomes& total, std::uint64_t offered, double first_arrival_ns,
                       double last_arrival_ns) {
  fleet_report r;
  r.nodes = config.nodes;
  r.gpus = config.gpus();
  r.offered = offered;
  r.total = total;
  r.span_s = (std::max(last_arrival_ns, total.last_ns) - first_arrival_ns) / 1e9;
  // A lane of a pipeline has its stages to itself for one turn in `lanes_per_replica`.
  const double lane_seconds = r.span_s * static_cast<double>(config.lanes());
  r.busy = lane_seconds > 0 ? total.busy_ns / 1e9 / lane_seconds : 0;
  return r;
}

} // namespace

double fleet_report::cost_per_million_tokens(double price_per_gpu_hour) const {
  const double tokens = total.prompt_tokens + total.output_tokens;
  return tokens > 0 ? price_per_gpu_hour * static_cast<double>(gpus) * span_s / 3600 / tokens * 1e6 : 0;
}

fleet_report simulate_fleet(const fleet_config& config, const workload& what, double rate, double seconds) {
  fleet all(config, what.prefix_tokens);
  traffic_source source(what, rate, config.seed);
  std::vector<traffic> batch;
  std::uint64_t offered = 0;
  double first = 0, last = 0;
  for (bool more = true; more;) {
    batch.clear();
    while (more && batch.size() < kBatch) {
      const traffic t = source.next();
      more = t.arrival_ns <= seconds * 1e9;
      if (more) batch.push_back(t);
    }
    if (offered == 0 && !batch.empty()) first = batch.front().arrival_ns;
    if (!batch.empty()) last = batch.back().arrival_ns;
    offered += batch.size();
    all.take(batch);
  }
  all.finish();
  return report_of(config, all.total(), offered, first, last);
}

fleet_report simulate_fleet(const fleet_config& config, const std::vector<traffic>& trace, std::int32_t prefix_tokens) {
  fleet all(config, prefix_tokens);
  all.take(trace);
  all.finish();
  return report_of(config, all.total(), trace.size(), trace.empty() ? 0 : trace.front().arrival_ns,
                   trace.empty() ? 0 : trace.back().arrival_ns);
}

} // namespace troupe::simulation
