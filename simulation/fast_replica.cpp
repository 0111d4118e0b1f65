#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "kvcache/block_pool.hpp"
#include "simulation/replica.hpp"

namespace troupe::simulation {

namespace {

constexpr std::size_t kPlansInFlight = 2;
constexpr std::int64_t kShortestRun = 4; // steps worth skipping together

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

  void advance(double until_ns) override {
    while (in_flight_size_ > 0 && front().end_ns <= until_ns) {
      if (skip_run(until_ns)) continue;
      absorb();
      pump();
    }
  }

  void add(const traffic& t, std::int32_t cached_tokens) override {
    const double reached_ns = t.arrival_ns + config_.overhead_ns + table_.serving.request_ns;
    advance(reached_ns);
    now_ns_ = std::max(now_ns_, reached_ns);
    const auto& limits = table_.limits;
    const std::int64_t room = limits.max_model_len - t.prompt_tokens;
    const std::int64_t outputs = std::min<std::int64_t>(t.output_tokens, room);
    const std::int64_t pool = static_cast<std::int64_t>(limits.num_blocks) * limits.block_size;
    if (outputs < 1 || t.prompt_tokens + outputs - 1 > pool || static_cast<std::int32_t>(waiting_.size()) >= config_.max_waiting) {
      ++results_.rejected;
      return;
    }
    const std::uint32_t at = take_place();
    sequence& s = places_[at];
    s = {};
    s.arrival_ns = t.arrival_ns;
    s.id = ++last_id_;
    s.prompt = t.prompt_tokens;
    s.outputs = static_cast<std::int32_t>(outputs);
    s.planned = std::min(cached_tokens, t.prompt_tokens - 1);
    results_.cached_tokens += s.planned;
    waiting_.push_back(at);
    ++open_;
    pump();
  }

  std::int32_t load() const override { return open_; }

 private:
  flight& front() { return in_flight_[in_flight_first_]; }
  flight& back() { return in_flight_[(in_flight_first_ + in_flight_size_ - 1) % kPlansInFlight]; }

  std::uint32_t take_place() {
    if (free_places_.empty()) {
      places_.emplace_back();
      return static_cast<std::uint32_t>(places_.size() - 1);
    }
    const std::uint32_t at = free_places_.back();
    free_places_.pop_back();
    return at;
  }

  // -- absorbing results ----------------------------------------------------------------------------------------------------------

  void absorb() {
    flight& done = front();
    now_ns_ = done.end_ns;
    for (const std::uint32_t at : done.first) {
      if (places_[at].first_ns == 0) places_[at].first_ns = now_ns_;
    }
    for (const std::uint32_t at : done.last) {
      const sequence& s = places_[at];
      results_.finish(s.arrival_ns, s.first_ns, now_ns_, s.prompt, s.outputs, config_.wanted);
      free_blocks_ += s.blocks;
      ++free_slots_;
      --running_;
      --open_;
      free_places_.push_back(at);
    }
    in_flight_first_ = (in_flight_first_ + 1) % kPlansInFlight;
    --in_flight_size_;
  }

  // -- planning -------------------------------------------------------------------------------------------------------------------

  void pump() {
    while (in_flight_size_ < kPlansInFlight && plan()) {
    }
  }

  struct draft {
    step_shape shape;
    std::int32_t budget = 0;
    bool preempted = false;
    flight* out = nullptr;
  };

  bool plan() {
    flight& slot = in_flight_[(in_flight_first_ + in_flight_size_) % kPlansInFlight];
    slot.first.clear();
    slot.last.clear();
    draft d;
    d.budget = table_.limits.max_batched_tokens;
    d.out = &slot;
    plan_decodes(d);
    for (std::size_t i = 0; i < prefilling_.size() && d.budget > 0;) i += plan_chunk(d, prefilling_[i]) ? 0 : 1;
    if (!d.preempted) admit(d);
    if (d.shape.decode_rows + d.shape.prefill_tokens == 0) return false;
    if (d.shape.prefill_tokens > 0) d.shape.prefill_context /= d.shape.prefill_tokens;
    commit(d);
    join_decodes();
    return true;
  }

  void commit(draft& d) {
    const double cost = table_.step_ns(d.shape);
    const double start = std::max(device_free_ns_, now_ns_);
    d.out->end_ns = start + cost;
    if (d.shape.decode_rows > 0) results_.itl.add(d.out->end_ns - device_free_ns_, d.shape.decode_rows);
    device_free_ns_ = d.out->end_ns;
    results_.busy_ns += cost;
    ++results_.steps;
    ++in_flight_size_;
  }

  std::size_t phase(std::int64_t n) const {
    const auto size = static_cast<std::int64_t>(needs_block_.size());
    return static_cast<std::size_t>((n % size + size) % size);
  }

  std::int64_t position(const sequence& s, std::int64_t tick) const { return s.known() + tick - s.first_tick; }

  void plan_decodes(draft& d) {
    while (!decoding_.empty() && needs_block_[phase(tick_)] > free_blocks_ && preempt_last()) d.preempted = true;
    if (decoding_.empty()) return;
    const auto rows = static_cast<double>(decoding_.size());
    free_blocks_ -= needs_block_[phase(tick_)];
    d.shape.decode_rows = rows;
    d.shape.decode_context = context_ / rows;
    d.budget -= static_cast<std::int32_t>(decoding_.size());
    context_ += rows;
    ++tick_;
    while (!decoding_.empty() && decoding_.front().first == tick_) {
      const std::uint32_t at = decoding_.front().second;
      leave_decodes(at);
      std::pop_heap(decoding_.begin(), decoding_.end(), std::greater<>());
      decoding_.pop_back();
      d.out->last.push_back(at);
    }
  }

  // Takes a sequence out of what all decode rows share, and settles its blocks.
  void leave_decodes(std::uint32_t at) {
    sequence& s = places_[at];
    const std::int64_t next = position(s, tick_);
    context_ -= static_cast<double>(next);
    --needs_block_[phase(s.first_tick - s.known())];
    s.blocks = blocks_for(next, table_.limits.block_size);
  }

  // True when its last chunk was planned, and so it left the list.
  bool plan_chunk(draft& d, std::uint32_t at) {
    sequence& s = places_[at];
    const std::int32_t count = std::min(d.budget, s.known() - s.planned);
    d.shape.prefill_tokens += count;
    d.shape.prefill_context += static_cast<double>(s.planned) * count;
    d.budget -= count;
    s.planned += count;
    if (s.planned < s.known()) return false;
    prefilling_.erase(std::find(prefilling_.begin(), prefilling_.end(), at));
    d.out->first.push_back(at);
    if (s.produced + 1 == s.outputs) {
      d.out->last.push_back(at);
    } else {
      starting_.push_back(at);
    }
    return true;
  }

  void admit(draft& d) {
    while (!waiting_.empty() && d.budget > 0 && free_slots_ > 0) {
      const std::uint32_t at = waiting_.front();
      sequence& s = places_[at];
      const std::int32_t need = blocks_for(s.known(), table_.limits.block_size);
      if (free_blocks_ < need + (running_ == 0 ? 0 : reserve_)) return;
      waiting_.pop_front();
      free_blocks_ -= need;
      s.blocks = need;
      --free_slots_;
      ++running_;
      prefilling_.push_back(at);
      plan_chunk(d, at);
    }
  }

  // Those whose first sample is in the plan that has just been made decode from the next one on.
  void join_decodes() {
    for (const std::uint32_t at : starting_) {
      sequence& s = places_[at];
      s.first_tick = tick_;
      s.last_tick = tick_ + s.outputs - s.produced - 1;
      context_ += s.known();
      ++needs_block_[phase(s.first_tick - s.known())];
      decoding_.emplace_back(s.last_tick, at);
      std::push_heap(decoding_.begin(), decoding_.end(), std::greater<>());
    }
    starting_.clear();
  }

  // The last to come goes back to the queue; the tokens that are in flight for it are lost.
  bool preempt_last() {
    const auto newer = [&](std::uint32_t a, std::uint32_t b) { return places_[a].id < places_[b].id; };
    const auto decoding = std::max_element(decoding_.begin(), decoding_.end(), [&](auto& a, auto& b) { return newer(a.second, b.second); });
    const auto prefilling = std::max_element(prefilling_.begin(), prefilling_.end(), newer);
    std::uint32_t at = decoding->second;
    if (prefilling != prefilling_.end() && newer(at, *prefilling)) {
      at = *prefilling;
      prefilling_.erase(prefilling);
    } else {
      stop_decoding(at);
      decoding_.erase(decoding);
      std::make_heap(decoding_.begin(), decoding_.end(), std::greater<>());
    }
    queue_again(at);
    return true;
  }

  void stop_decoding(std::uint32_t at) {
    leave_decodes(at);
    sequence& s = places_[at];
    const std::int64_t sampled = 1 + tick_ - s.first_tick;
    s.produced += static_cast<std::int32_t>(sampled - std::min<std::int64_t>(sampled, static_cast<std::int64_t>(in_flight_size_)));
    for (flight& f : in_flight_) std::erase(f.first, at);
  }

  void queue_again(std::uint32_t at) {
    sequence& s = places_[at];
    s.planned = 0;
    free_blocks_ += std::exchange(s.blocks, 0);
    ++free_slots_;
    --running_;
    ++results_.preemptions;
    const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](std::uint32_t w) { return places_[w].id > s.id; });
    waiting_.insert(place, at);
  }

  // -- runs of equal steps --------------------------------------------------------------------------------------------------------

  bool admissible() const {
    if (waiting_.empty() || free_slots_ == 0) return false;
    const sequence& s = places_[waiting_.front()];
    return free_blocks_ >= blocks_for(s.known(), table_.limits.block_size) + (running_ == 0 ? 0 : reserve_);
  }

  // With two plans out that change nothing when they are absorbed and nobody to start, the next plans are decodes of the same rows
  // until the first of them ends, something arrives, the cost line bends, or blocks may run short. Steps over all but two of them.
  bool skip_run(double until_ns) {
    if (in_flight_size_ < kPlansInFlight || decoding_.empty() || !prefilling_.empty() || admissible()) return false;
    for (const flight& f : in_flight_) {
      if (!f.first.empty() || !f.last.empty()) return false;
    }
    const auto rows = static_cast<double>(decoding_.size());
    const double context = context_ / rows;
    const cost_line line = table_.decode_line(rows, context);
    std::int64_t steps = decoding_.front().first - tick_ - 1;
    if (std::isfinite(line.until)) steps = std::min(steps, static_cast<std::int64_t>(line.until - context));
    steps = std::min(steps, free_blocks_ / static_cast<std::int64_t>(decoding_.size()) * table_.limits.block_size);
    // Of `steps` plans the last is made when the one two before it ends: that must not lie behind `until_ns`.
    const auto time_of = [&](std::int64_t n) {
      const auto k = static_cast<double>(n);
      return k * line.base + line.slope * (k * context + k * (k - 1) / 2);
    };
    if (steps < kShortestRun || line.base + line.slope * context <= 0) return false;
    steps = 2 + last_within(steps - 2, until_ns - device_free_ns_, time_of);
    if (steps < kShortestRun) return false;
    take_run(steps, rows, time_of);
    return true;
  }

  // The largest n <= most with time_of(n) <= time, or a negative number.
  template <class F>
  static std::int64_t last_within(std::int64_t most, double time, const F& time_of) {
    if (time_of(most) <= time) return most;
    std::int64_t low = -1, high = most; // time_of(high) > time
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (time_of(middle) <= time ? low : high) = middle;
    }
    return low;
  }

  template <class F>
  void take_run(std::int64_t steps, double rows, const F& time_of) {
    const double begin = device_free_ns_, total = time_of(steps);
    // Gaps grow along the run: so many pieces that one differs from the next by about a bucket.
    const double first = time_of(1), last = total - time_of(steps - 1);
    const auto pieces = static_cast<std::int64_t>(std::clamp(std::abs(last / first - 1) * 40, 1.0, 40.0));
    for (std::int64_t i = 0; i < pieces; ++i) {
      const std::int64_t from = steps * i / pieces, to = steps * (i + 1) / pieces;
      if (to > from)
        results_.itl.add((time_of(to) - time_of(from)) / static_cast<double>(to - from), rows * static_cast<double>(to - from));
    }
    results_.busy_ns += total;
    results_.steps += static_cast<double>(steps);
    for (std::int64_t i = 0; i < steps % table_.limits.block_size; ++i) free_blocks_ -= needs_block_[phase(tick_ + i)];
    free_blocks_ -= static_cast<std::int32_t>(steps / table_.limits.block_size * static_cast<std::int64_t>(decoding_.size()));
    tick_ += steps;
    context_ += rows * static_cast<double>(steps);
    device_free_ns_ = begin + total;
    now_ns_ = begin + time_of(steps - 2); // the last of the run was planned then
    front().end_ns = begin + time_of(steps - 1);
    back().end_ns = device_free_ns_;
  }

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

} // namespace

std::unique_ptr<replica> make_fast_replica(const replica_config& config) { return std::make_unique<fast_replica>(config); }

} // namespace troupe::simulation
