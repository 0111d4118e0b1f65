#include "models/gpu_executor.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <future>
#include <mutex>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "device/cpu/host_limits.hpp"
#include "device/cuda/kept_memory.hpp"
#include "models/config_fields.hpp"
#include "models/drafting_executor.hpp"
#include "models/gpu_copied_sums.hpp"
#include "models/gpu_rank_sums.hpp"
#include "models/gpu_runner.hpp"
#include "models/group_agreement.hpp"
#include "models/kept_weights.hpp"
#include "models/ordered_worker.hpp"
#include "models/shard.hpp"
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

// Where the KV cache lies.
struct kv_memory {
  std::unique_ptr<cuda::memory_source> source;
  bool kept = false; // it holds what the process before left
};

class gpu_executor final : public step_executor {
 public:
  using make_weights_fn = std::function<gpu_weights(std::byte* memory, const cuda::stream& on)>;

  // The weights lie in memory of `weight_source`.
  gpu_executor(const model_config& config, const gpu_plan& plan, const gpu_executor_options& options, gpu_joining rank,
               std::unique_ptr<cuda::memory_source> weight_source, kv_memory kv, const make_weights_fn& make_weights)
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
  kv_memory kv_memory_;
  cuda::device_block kv_;
  gpu_model model_;
  gpu_rank rank_; // its communicator goes after the runner's graphs
  std::unique_ptr<gpu_rank_sums> sums_;
  std::unique_ptr<gpu_copied_sums> part_sums_; // goes before `sums_`, which lets the group go
  gpu_runner runner_;
  ordered_worker worker_; // ends first: its jobs read the runner
};

using make_weights_on = std::function<gpu_weights(const gpu_model_shape& shape, std::byte* memory, const cuda::stream& on)>;

// What a keeper holds already of these weights and of their KV cache: the plan need not find room for it again.
std::size_t kept_already(const weight_source& source, const gpu_executor_options& options) {
  if (!options.keep && !options.keep_kv) return 0;
  const std::string device = cuda::device_uuid(options.device);
  return kept_bytes(options.keep, source, device) + kept_kv_bytes(options.keep_kv, source, device);
}

cuda::memory_state with(cuda::memory_state device, std::size_t kept) { return {device.unused + kept, device.whole}; }

keeper::region_request region_of(const model_config& config, const gpu_model_shape& shape, const weight_source& source,
                                 std::int32_t device) {
  return kept_region(source, cuda::device_uuid(device), gpu_weight_layout(config, shape.ends, shape.type),
                     cuda::kept_size(gpu_weight_bytes(config, shape.ends), device), keeper::memory_kind::cuda);
}

kv_memory claim_kv_memory(const model_config& config, const gpu_plan& plan, const weight_source& source,
                          const gpu_executor_options& options) {
  if (!options.keep_kv) return {cuda::own_memory(), false};
  const gpu_model_shape& s = plan.shape;
  const kv_pool pool{{s.type, s.block_size, config.num_kv_heads, config.head_dim},
                     config.num_layers,
                     s.num_blocks,
                     cuda::kept_size(plan.kv_bytes, options.device)};
  keeper::claim claim = claim_kv(options.keep_kv, source, cuda::device_uuid(options.device), pool, keeper::memory_kind::cuda);
  const bool found = claim.now() == keeper::claim::state::complete;
  tell_kv(options.keep_kv, pool.bytes, found, claim);
  if (claim.now() == keeper::claim::state::alone) return {cuda::own_memory(), false};
  return {std::make_unique<cuda::kept_memory>(std::move(claim), options.device, keeper::region_use::leased),
          found && options.keep_kv->usable};
}

// `config` and `source` are the rank's own.
std::unique_ptr<step_executor> make(const model_config& config, dtype stored, const weight_source& source, gpu_executor_options options,
                                    gpu_joining rank, const make_weights_on& make_weights) {
  const std::int32_t count = gpu_count();
  if (options.device < 0 || options.device >= count) {
    throw load_error("there is no GPU " + std::to_string(options.device) + ": this process can use " + std::to_string(count));
  }
  cuda::use_device(options.device);
  const cuda::memory_state device = with(rank.memory_before().value_or(cuda::device_memory()), kept_already(source, options));
  const auto planned = [&] { return plan_gpu(config, stored, options, device, rank.host()); };
  gpu_plan plan = planned();
  if (rank.host().size() > 1) {
    options.num_blocks = agree(plan.info, {}, rank.host()).num_blocks;
    plan = planned();
  }
  const gpu_model_shape& shape = plan.shape;
  const weight_start start(options.keep);
  keeper::claim claim;
  if (options.keep) claim = claim_weights(options.keep, source, region_of(config, shape, source, options.device));
  kv_memory kv = claim_kv_memory(config, plan, source, options);
  if (claim.now() == keeper::claim::state::alone) {
    return std::make_unique<gpu_executor>(config, plan, options, std::move(rank), cuda::own_memory(), std::move(kv),
                                          [&](std::byte* memory, const cuda::stream& on) {
                                            gpu_weights made = make_weights(shape, memory, on);
                                            start.tell(plan.weight_bytes, false, claim);
                                            reached(options.start, "weights");
                                            return made;
                                          });
  }
  auto kept = std::make_unique<cuda::kept_memory>(std::move(claim), options.device);
  cuda::kept_memory& block = *kept;
  return std::make_unique<gpu_executor>(
      config, plan, options, std::move(rank), std::move(kept), std::move(kv), [&](std::byte* memory, const cuda::stream& on) {
        const bool mapped = block.filled();
        gpu_weights made = mapped ? filled_weights(config, shape.ends, shape.type, memory) : make_weights(shape, memory, on);
        block.seal();
        start.tell(plan.weight_bytes, mapped, block.claim());
        reached(options.start, "weights");
        return made;
      });
}

} // namespace

std::unique_ptr<step_executor> make_gpu_executor(const model_weights& whole, const gpu_executor_options& options, gpu_joining rank) {
  if (whole.layers.empty()) throw load_error("the weights hold no layer");
  const model_weights weights = gpu_share(whole, rank.host());
  const std::int32_t threads = options.loader_threads > 0 ? options.loader_threads : static_cast<std::int32_t>(cpu::usable_cores());
  const auto upload = [&](const gpu_model_shape& shape, std::byte* memory, const cuda::stream& on) {
    return upload_weights(weights, shape.ends, shape.type, memory, on, options.device, threads);
  };
  return make(weights.config, weights.layers.front().query.type, weights.source, options, std::move(rank), upload);
}

std::unique_ptr<step_executor> make_gpu_executor_with_dummy_weights(const model_config& whole, const gpu_executor_options& options,
                                                                    gpu_joining rank) {
  check_config(whole, "dummy weights");
  const model_config config = gpu_share(whole, rank.host());
  weight_source source;
  source.origin =
      "dummy weights of " + std::to_string(gpu_weight_bytes(config, ends_of(config, rank.host()))) + " bytes, made on the device";
  source.part = part_of(rank.host());
  return make(config, dtype::bf16, source, options, std::move(rank),
              [&](const gpu_model_shape& shape, std::byte* memory, const cuda::stream& on) {
                return make_dummy_gpu_weights(config, shape.ends, shape.type, memory, on, 1);
              });
}

std::unique_ptr<step_executor> make_drafting_gpu_executor(const model_weights& target, const model_weights& draft,
                                                          const gpu_executor_options& options, gpu_joining rank) {
  if (target.layers.empty() || draft.layers.empty()) throw load_error("the weights hold no layer");
  gpu_executor_options its = options, drafts = options;
  drafts.start = nullptr;
  its.max_proposals = most_proposals;
  if (!rank.host().leader()) return make_gpu_executor(target, its, std::move(rank));
  drafts.max_model_len = std::min(options.max_model_len.value_or(target.config.max_position), draft.config.max_position);
  cuda::use_device(options.device);
  const model_weights share = gpu_share(target, rank.host());
  const bool same = share.source.origin == draft.source.origin && share.source.part == draft.source.part;
  if (same) drafts.keep.reset(); // one region, which the plans would count twice
  if (drafts.keep_kv) drafts.keep_kv->owner += ", draft model";
  if (drafts.log) drafts.log = [log = options.log](const std::string& line) { log("draft model: " + line); };
  const std::size_t kept = kept_already(share.source, its) + kept_already(draft.source, drafts);
  its.num_blocks = shared_blocks({share.config, share.layers.front().query.type, its, rank.host()},
                                 {draft.config, draft.layers.front().query.type, drafts, {}},
                                 with(rank.memory_before().value_or(cuda::device_memory()), kept));
  auto executor = make_gpu_executor(target, its, std::move(rank));
  drafts.num_blocks = executor->info().num_blocks; // a peer may have had room for fewer
  return make_drafting_executor(std::move(executor), make_gpu_executor(draft, drafts));
}

std::int32_t gpu_count() { return cuda::device_count(); }
std::string gpu_name(std::int32_t device) { return cuda::device_name(device); }

std::optional<std::string> gpu_hindrance(std::int32_t device, const model_config& config) {
  const std::int32_t count = gpu_count();
  if (count == 0) return "there is no CUDA driver or GPU here";
  if (device < 0 || device >= count) return "there is no GPU " + std::to_string(device) + ", this process can use " + std::to_string(count);
  if (!cuda::is_hopper(device)) {
    return "GPU " + std::to_string(device) + ", " + gpu_name(device) +
           ", is not of compute capability 9.0, which the kernels are built for";
  }
  const std::string unsupported = gpu_model::unsupported(config);
  if (!unsupported.empty()) return "a GPU cannot run this model: " + unsupported;
  return std::nullopt;
}

} // namespace troupe
