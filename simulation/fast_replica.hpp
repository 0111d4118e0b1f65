// The arithmetic of make_fast_replica() (simulation/replica.hpp). Part of its implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "simulation/replica.hpp"

namespace troupe::simulation {

// The scheduler's rules: decodes, then chunks of running prefills, then new sequences in order, whole refills only, with a reserve of
// blocks; planning one step ahead of the results. Decoding sequences advance together, so a *tick* (a plan with decode rows) stands
// for one more token of each, and a sequence is touched only when it starts and when it ends.
class fast_replica final : public replica {
 public:
  explicit fast_replica(const replica_config& config)
      : config_(config),
        table_(*config.table),
        free_blocks_(table_.limits.num_blocks),
        reserve_((table_.limits.num_blocks + 99) / 100),
        free_slots_(table_.limits.max_num_seqs),
        needs_block_(static_cast<std::size_t>(table_.limits.block_size), 0) {}

  void advance(double until_ns) override;
  void add(const traffic& t, std::int32_t cached_tokens) override;
  std::int32_t load() const override { return open_; }

 private:
  static constexpr std::size_t kPlansInFlight = 2;

  struct sequence {
    double arrival_ns = 0; // of the request; order of the queue is by id
    std::uint64_t id = 0;
    std::int32_t prompt = 0;
    std::int32_t outputs = 0;    // wanted
    std::int32_t produced = 0;   // before this life
    std::int32_t planned = 0;    // positions, while it prefills
    std::int32_t blocks = 0;     // granted
    std::int64_t first_tick = 0; // tick of its prefill sample; a decode row in each later one
    std::int64_t last_tick = 0;  // the tick that brings its last output
    double first_ns = 0;
    std::int32_t known() const { return prompt + produced; }
  };

  // A plan that is out: when it ends, and for whom it brings the first or the last token.
  struct flight {
    double end_ns = 0;
    std::vector<std::uint32_t> first;
    std::vector<std::uint32_t> last;
  };

  struct draft {
    step_shape shape;
    std::int32_t budget = 0;
    bool preempted = false;
    flight* out = nullptr;
  };

  flight& front() { return in_flight_[in_flight_first_]; }
  flight& back() { return in_flight_[(in_flight_first_ + in_flight_size_ - 1) % kPlansInFlight]; }
  std::uint32_t take_place();
  void absorb();
  void pump();
  void commit(draft& d);
  std::size_t phase(std::int64_t n) const {
    const auto size = static_cast<std::int64_t>(needs_block_.size());
    return static_cast<std::size_t>((n % size + size) % size);
  }
  std::int64_t position(const sequence& s, std::int64_t tick) const { return s.known() + tick - s.first_tick; }

  // Planning: simulation/fast_replica_plans.cpp.
  bool plan();
  void plan_decodes(draft& d);
  void leave_decodes(std::uint32_t at);
  bool plan_chunk(draft& d, std::uint32_t at);
  void admit(draft& d);
  void join_decodes();
  bool preempt_last();
  void stop_decoding(std::uint32_t at);
  void queue_again(std::uint32_t at);

  // Runs of equal steps: simulation/fast_replica_runs.cpp.
  bool admissible() const;
  bool skip_run(double until_ns);
  template <class F>
  static std::int64_t last_within(std::int64_t most, double time, const F& time_of);
  template <class F>
  void take_run(std::int64_t steps, double rows, const F& time_of);

  const replica_config config_;
  const device_table& table_;
  std::int64_t free_blocks_;
  const std::int32_t reserve_;
  std::int32_t free_slots_;
  std::vector<std::int32_t> needs_block_; // by phase: decoding sequences that need a block at ticks t with t mod block_size == phase
  std::int64_t tick_ = 0;
  double context_ = 0;                                           // sum over decoding sequences of their next row's position
  std::vector<std::pair<std::int64_t, std::uint32_t>> decoding_; // heap: (last tick, place)
  std::vector<std::uint32_t> prefilling_, starting_;
  std::deque<std::uint32_t> waiting_;
  flight in_flight_[kPlansInFlight];
  std::size_t in_flight_first_ = 0, in_flight_size_ = 0;
  double now_ns_ = 0;
  double device_free_ns_ = 0;
  std::vector<sequence> places_;
  std::vector<std::uint32_t> free_places_;
  std::uint64_t last_id_ = 0;
  std::int32_t open_ = 0, running_ = 0;
};

} // namespace troupe::simulation
