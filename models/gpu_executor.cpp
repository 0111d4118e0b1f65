#include "models/gpu_executor.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <future>
#include <mutex>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "models/gpu_copied_sums.hpp"
#include "models/gpu_executor_parts.hpp"
#include "models/gpu_rank_sums.hpp"
#include "models/gpu_runner.hpp"
#include "models/ordered_worker.hpp"
#include "models/slot_table.hpp"

namespace troupe {
namespace {

std::uint64_t nanoseconds(float milliseconds) { return static_cast<std::uint64_t>(static_cast<double>(milliseconds) * 1e6); }

// A step whose results are awaited.
struct pending_step {
  epoch_number epoch = 0;
  step_number step = 0;
  step_executor::deliver_fn deliver;
  std::optional<step_failure> failure; // nothing was computed
  std::size_t slot = 0;                // of the downloads
  download_layout layout{0, 0, false};
  std::vector<awaited_item> items;
  std::uint64_t prepare_at_ns = 0;
  std::uint64_t prepare_ns = 0;
  std::promise<void> queued; // where a group watches it: all above is there
};

// When the step in a download slot had been computed.
struct computed_step {
  std::size_t slot = 0;
  std::uint64_t at_ns = 0;
};

// What a result says of a slot that the slot table could not know when the plan was taken.
struct late_news {
  slot_id slot = 0;
  std::uint64_t opening = 0;
  bool faulted = false;
  std::int32_t position = 0;
};

// Memory of one device, in the order in which it must go.
struct gpu_memory {
  std::unique_ptr<cuda::memory_source> source = cuda::own_memory();
  cuda::memory_ledger ledger;
  cuda::caching_allocator small{*source, ledger};
};

class gpu_executor final : public step_executor {
 public:
  gpu_executor(const model_config& config, const gpu_plan& plan, const gpu_executor_options& options, gpu_joining rank,
               std::unique_ptr<cuda::memory_source> weight_source, gpu_kv_memory kv, const make_gpu_weights_fn& make_weights)
      : device_(options.device),
        info_(plan.info),
        synchronous_(!options.asynchronous_copies),
        table_(info_),
        openings_(static_cast<std::size_t>(info_.max_num_seqs)),
        weight_source_(std::move(weight_source)),
        weights_(*weight_source_, memory_.ledger, plan.weight_bytes, "weights"),
        kv_memory_(std::move(kv)),
        kv_(*kv_memory_.source, memory_.ledger, plan.kv_bytes, "KV cache"),
        model_(
            config, plan.shape, make_weights(weights_.data(), streams_.compute), kv_.data(), kv_memory_.kept, memory_.small,
            streams_.compute, options.tuning_cache, options.log ? options.log : [](const std::string&) {}),
        rank_(joined(std::move(rank), options)),
        runner_(model_, plan, {options.graphs, options.asynchronous_copies, options.kernel_times, &rank_}, memory_.small, streams_),
        worker_([device = device_] { cuda::use_device(device); }) {
    model_.share_layers(rank_.devices.get(), streams_.communication);
    meet();
    if (rank_.grouped()) reached(options.start, "all there");
    if (rank_.devices && options.own_all_reduce && !options.batch_invariant) {
      sums_ = gpu_rank_sums::open(rank_, sum_shape_of(config, plan.shape), {memory_.small, memory_.ledger}, streams_.compute, options.log);
      model_.sum_few_rows_with(sums_.get());
    }
    if (sums_ && gpu_model::may_cut(plan.shape)) {
      part_sums_ =
          gpu_copied_sums::open(rank_, sum_shape_of(config, plan.shape), {memory_.small, memory_.ledger}, streams_.compute, options.log);
      model_.sum_parts_with(part_sums_.get());
    }
    if (part_sums_) {
      rank_.devices->before_end([few = sums_.get(), many = part_sums_.get()] {
        few->give_up();
        many->give_up();
      });
    }
    if (sums_) reached(options.start, "sums");
    runner_.capture();
    reached(options.start, "graphs");
    if (options.log) options.log("GPU memory held:\n" + memory_.ledger.text());
  }

  ~gpu_executor() override {
    worker_.wait_below(1);
    // Device memory that NCCL still works on can never be given back; a call that tries would not return.
    if (rank_.is_stuck()) std::_Exit(EXIT_FAILURE);
  }

  executor_info info() const override { return info_; }
  bool kv_kept() const override { return kv_memory_.kept; }

  void submit(const step_plan& plan, deliver_fn deliver) override {
    auto pending = std::make_shared<pending_step>();
    pending->prepare_at_ns = now_ns();
    pending->epoch = plan.epoch;
    pending->step = plan.step;
    pending->deliver = std::move(deliver);
    await_verifications();
    if (watches_queueing()) {
      worker_.push([this, pending] {
        await_queued(*pending);
        finish(*pending);
      });
    }
    try {
      cuda::use_device(device_);
      take_news();
      std::optional<std::string> breach = beyond_device(plan);
      if (breach) table_.fail(*breach);
      if (!breach) breach = table_.take(plan);
      if (breach) {
        pending->failure = ended_by_ ? *ended_by_ : step_failure{std::move(*breach)};
      } else {
        start_step(plan, *pending);
      }
    } catch (const std::exception& e) {
      pending->failure = ended_by_ = failure_of(plan.step, e);
      table_.fail(ended_by_->reason);
    }
    pending->prepare_ns = now_ns() - pending->prepare_at_ns;
    if (watches_queueing()) return pending->queued.set_value();
    if (synchronous_) return finish(*pending);
    worker_.push([this, pending] { finish(*pending); });
  }

 private:
  // All that a rank does by itself goes first: meanwhile NCCL joins it with the others.
  gpu_rank joined(gpu_joining rank, const gpu_executor_options& options) {
    reached(options.start, "memory");
    if (options.tune) model_.tune(streams_.compute, rank.host().tp_rank == 0);
    reached(options.start, "algorithms");
    return rank.take();
  }

  // In a group the leader's answer to a verification lets the scheduler go on while this rank may not have read its own.
  void await_verifications() {
    if (std::exchange(verifying_, false) && rank_.grouped()) worker_.wait_below(1);
  }

  // A call into CUDA that loads a kernel, or finds the queue full, does not come back while a kernel before it waits for a peer: so in a
  // group a step's deadline begins before the step is queued.
  bool watches_queueing() const { return rank_.grouped() && !synchronous_; }

  void await_queued(pending_step& pending) {
    const auto queued = pending.queued.get_future();
    if (queued.wait_for(rank_.watch()->deadline()) != std::future_status::ready) {
      rank_.abort("step " + std::to_string(pending.step) + " was not queued in time: the device waits for a peer");
    }
    queued.wait();
  }

  // How long the weights took differs from rank to rank; from here on ranks wait for each other's sums.
  void meet() const {
    const auto all_here = [](communicator& group) {
      float here = 1;
      group.all_reduce({&here, 1, dtype::f32});
    };
    if (rank_.host.tensor) with_tensor(rank_.host, all_here);
    if (rank_.host.pipeline) with_pipeline(rank_.host, all_here);
  }

  void start_step(const step_plan& plan, pending_step& pending) {
    for (const slot_open& opened : plan.opened) ++openings_[static_cast<std::size_t>(opened.slot)];
    lay_out(plan, table_, step_);
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      const work_item& item = plan.items[i];
      pending.items.push_back({step_.items[i], table_[item.slot].sampling.top_logprobs, item.first_position, step_.items[i].draws > 1,
                               openings_[static_cast<std::size_t>(item.slot)]});
    }
    verifying_ = verifying_ || step_.verifies;
    worker_.wait_below(steps_in_flight - (watches_queueing() ? 0 : 1)); // the download's last use was read, and nobody looks back at it
    pending.slot = next_slot_;
    next_slot_ = (next_slot_ + 1) % steps_in_flight;
    pending.layout = runner_.run(step_, pending.slot);
  }

  step_failure failure_of(step_number step, const std::exception& e) const {
    step_failure failure{"step " + std::to_string(step) + ": " + e.what()};
    if (!rank_.grouped()) return failure;
    failure.reason = name_of(rank_.host) + ": " + failure.reason;
    if (const auto* const collective = dynamic_cast<const collective_error*>(&e)) {
      failure.collective = collective->fault();
      failure.by_peer = failure.collective != collective_fault::mismatch && failure.collective != collective_fault::failed;
    }
    return failure;
  }

  // On the deliver thread, or within submit().
  void finish(pending_step& pending) {
    step_outcome outcome;
    try {
      outcome = outcome_of(pending);
    } catch (const std::exception& e) {
      outcome = failure_of(pending.step, e);
    }
    const auto* const failed = std::get_if<step_failure>(&outcome);
    if (failed != nullptr) rank_.abort(failed->reason); // the others wait in sums
    pending.deliver(std::move(outcome));
  }

  step_outcome outcome_of(pending_step& pending) {
    if (pending.failure) return std::move(*pending.failure);
    const std::byte* const download = runner_.wait(pending.slot);
    const std::uint64_t arrived = now_ns();
    step_result result{pending.epoch, pending.step, read_outputs(pending.items, pending.layout, download), {}};
    note_news(pending.items, result.outputs);
    if (!rank_.host.last_stage()) { // scores stay where they were made
      for (slot_output& output : result.outputs) output.prompt_scores.clear(), output.scores.clear();
    }
    result.times = times_of(pending, arrived);
    return result;
  }

  // The GPU's clock says how long after the step before this one began, the host's that it began so long before its results were there
  // at the latest: this thread may have been woken late. Where the two clocks have drifted apart, the host's counts.
  stage_times times_of(const pending_step& pending, std::uint64_t arrived) {
    constexpr std::uint64_t most_drift_ns = 200'000;
    const float gap = computed_before_ ? runner_.gap_ms(computed_before_->slot, pending.slot) : 0.0F; // below 0: it waited for that step
    const std::uint64_t compute = nanoseconds(runner_.compute_ms(pending.slot) + std::min(0.0F, gap));
    const std::uint64_t copy = nanoseconds(runner_.copy_ms(pending.slot));
    std::uint64_t begun = arrived - copy - compute;
    if (computed_before_) {
      const std::uint64_t follows = computed_before_->at_ns + nanoseconds(std::max(0.0F, gap));
      if (follows <= begun && begun - follows <= most_drift_ns) begun = follows;
    }
    computed_before_ = computed_step{pending.slot, begun + compute};
    stage_times times{pending.prepare_ns,
                      compute,
                      now_ns() - arrived + copy,
                      pending.prepare_at_ns,
                      begun,
                      begun + compute,
                      runner_.kernel_times(pending.slot)};
    for (const group_time& g : times.groups) {
      if (g.group == kernel_group::collectives) times.collective_move_ns = g.ns; // peers' lateness is in it
    }
    return times;
  }

  void note_news(const std::vector<awaited_item>& items, const std::vector<slot_output>& outputs) {
    const std::lock_guard lock(news_guard_);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!outputs[i].numeric_fault && !items[i].verifies) continue;
      const auto drawn = static_cast<std::int32_t>(outputs[i].tokens.size());
      news_.push_back({items[i].item.slot, items[i].opening, outputs[i].numeric_fault, items[i].first_position + drawn});
    }
  }

  void take_news() {
    const std::lock_guard lock(news_guard_);
    for (const late_news& news : news_) {
      slot_state& slot = table_[news.slot];
      if (!slot.open || openings_[static_cast<std::size_t>(news.slot)] != news.opening) continue;
      slot.faulted = slot.faulted || news.faulted;
      if (!news.faulted) slot.position = news.position;
    }
    news_.clear();
  }

  std::int32_t device_;
  executor_info info_;
  bool synchronous_;
  slot_table table_;
  std::vector<std::uint64_t> openings_;  // by slot: how often it was opened
  gpu_step step_;                        // the one being laid out
  std::optional<step_failure> ended_by_; // why no plan is taken any more
  std::size_t next_slot_ = 0;
  bool verifying_ = false;                       // a plan under way has verifications
  std::optional<computed_step> computed_before_; // the finishing thread's
  std::mutex news_guard_;
  std::vector<late_news> news_;
  gpu_memory memory_;
  cuda::stream_pool streams_;
  std::unique_ptr<cuda::memory_source> weight_source_;
  cuda::device_block weights_;
  gpu_kv_memory kv_memory_;
  cuda::device_block kv_;
  gpu_model model_;
  gpu_rank rank_; // its communicator goes after the runner's graphs
  std::unique_ptr<gpu_rank_sums> sums_;
  std::unique_ptr<gpu_copied_sums> part_sums_; // goes before `sums_`, which lets the group go
  gpu_runner runner_;
  ordered_worker worker_; // ends first: its jobs read the runner
};

} // namespace

std::unique_ptr<step_executor> assemble_gpu_executor(const model_config& config, const gpu_plan& plan, const gpu_executor_options& options,
                                                     gpu_joining rank, std::unique_ptr<cuda::memory_source> weights, gpu_kv_memory kv,
                                                     const make_gpu_weights_fn& make_weights) {
  return std::make_unique<gpu_executor>(config, plan, options, std::move(rank), std::move(weights), std::move(kv), make_weights);
}

} // namespace troupe
