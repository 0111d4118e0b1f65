#include "apps/executor_factory.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "actors/place_names.hpp"
#include "apps/device_choice.hpp"
#include "apps/groups/links.hpp"
#include "apps/model_source.hpp"
#include "device/cpu/host_limits.hpp"
#include "models/cpu_executor.hpp"
#include "models/drafting_executor.hpp"
#include "models/group_executor.hpp"

namespace troupe::apps {

namespace {

cpu_executor_options executor_options(const engine_options& o, std::int32_t tokenizer_vocab, const kept_memories& keep) {
  cpu_executor_options e;
  e.threads = o.threads;
  e.block_size = o.block_size;
  e.max_num_seqs = o.max_num_seqs;
  e.max_batched_tokens = o.max_num_batched_tokens;
  e.max_model_len = o.max_model_len;
  e.num_blocks = o.num_kv_blocks;
  e.kv_bytes = parse_bytes(o.kv_cache_memory, "--kv-cache-memory");
  if (o.kv_cache_dtype != "auto") e.kv_type = parse_type(o.kv_cache_dtype);
  e.tokenizer_vocab_size = tokenizer_vocab;
  e.keep = keep.weights;
  e.keep_kv = keep.kv;
  return e;
}

// Of a rank's collectives. Ranks of a stage do the same work; those of a pipeline wait for whole steps of each other, and all for the
// leader's draft model.
std::chrono::milliseconds call_deadline(const engine_options& o) {
  const std::chrono::milliseconds step = std::chrono::seconds(o.step_deadline_s);
  return o.pipeline_parallel_size > 1 || !o.draft_model.empty() ? step
                                                                : std::min<std::chrono::milliseconds>(step, std::chrono::seconds(10));
}

// The options of one rank: its own GPU, its share of the cores, and as many KV blocks as the group's rank before it had.
engine_options options_of_rank(engine_options o, const actors::rank_start& place, std::optional<std::int32_t> first_gpu) {
  if (place.num_blocks) o.num_kv_blocks = place.num_blocks;
  if (o.in_cluster()) return o;
  if (o.threads == 0 && o.devices() > 1) o.threads = std::max(1, cpu::usable_cores() / o.devices());
  if (first_gpu && o.devices() > 1) o.device = "cuda:" + std::to_string(*first_gpu + place.replica * o.group_size() + place.rank);
  return o;
}

group_layout layout(const engine_options& o, std::chrono::milliseconds deadline) {
  group_layout l;
  l.tp_size = o.tensor_parallel_size;
  l.stages = o.pipeline_parallel_size;
  l.processes = o.isolate_devices;
  l.cluster = o.in_cluster();
  if (l.cluster) l.interface = o.interface;
  l.across_nodes = o.across_nodes;
  l.form_deadline = std::chrono::seconds(o.start_deadline_s);
  l.call_deadline = deadline;
  return l;
}

// Makes the executors of one process.
class executor_maker {
 public:
  executor_maker(engine_options options, std::shared_ptr<const checkpoint> source, std::shared_ptr<const checkpoint> draft,
                 std::int32_t tokenizer_vocab, std::optional<keeper::access> keep, start_times* start)
      : options_(std::move(options)),
        source_(std::move(source)),
        draft_(std::move(draft)),
        tokenizer_vocab_(tokenizer_vocab),
        keep_(std::move(keep)),
        start_(start),
        links_(layout(options_, call_deadline(options_))),
        gpu_links_(layout(options_, std::chrono::seconds(options_.start_deadline_s))) {}

  std::unique_ptr<step_executor> make(const actors::rank_start& place, const actors::publish_rendezvous& publish) {
    start_times of_call;
    start_times& start = start_ != nullptr ? *start_ : of_call;
    auto made = make(place, publish, start);
    start.reached("ready");
    if (start_ != nullptr || choose_device(options_, source_->config()).gpu)
      spdlog::info("{}{}started: {}", actors::replica_prefix(place.replica, options_.data_parallel_size),
                   actors::rank_prefix(place.rank, static_cast<std::size_t>(place.size)), start.text());
    return made;
  }

 private:
  std::unique_ptr<step_executor> make(const actors::rank_start& place, const actors::publish_rendezvous& publish, start_times& start) {
    const device_choice first = choose_device(options_, source_->config());
    const engine_options mine = options_of_rank(options_, place, first.gpu);
    const device_choice device = first.gpu ? choose_device(mine, source_->config()) : first;
    if (device.gpu || place.rank == 0) spdlog::info("{}", device.reason);
    if (device.gpu && options_.group_size() > 1) return make_rank_on_gpu(*device.gpu, mine, place, publish, start);
    if (device.gpu) {
      return make_executor_on_gpu(*device.gpu, mine, *source_, draft_.get(), tokenizer_vocab_, {}, {}, kept(true, place), &start);
    }
    check_batch(mine);
    if (options_.group_size() == 1) return make_on_cpu(weights(), draft_ ? draft_weights() : nullptr, mine, place, {}, start);
    if (place.size == 1) { // all ranks behind one executor, as benches want them
      return make_cpu_group_executor(weights(), executor_options(options_, tokenizer_vocab_, {}), options_.tensor_parallel_size,
                                     options_.pipeline_parallel_size, call_deadline(options_), draft_ ? draft_weights() : nullptr);
    }
    const auto link = links_.open(place, publish);
    const auto whole = weights(); // before the ranks meet: how long it takes differs
    const auto draft = draft_ ? draft_weights() : nullptr;
    const rank_context rank = link->meet();
    start.reached("met");
    return make_on_cpu(whole, draft, mine, place, rank, start);
  }

  std::unique_ptr<step_executor> make_rank_on_gpu(std::int32_t device, const engine_options& o, const actors::rank_start& place,
                                                  const actors::publish_rendezvous& publish, start_times& start) {
    if (!options_.in_cluster()) check_gpu_ranks(options_, *choose_device(options_, source_->config()).gpu);
    if (place.size == 1) throw load_error("--tp with GPUs takes a process for each, and this command runs in one");
    const auto link = gpu_links_.open(place, publish);
    const rank_context rank = link->meet();
    start.reached("met");
    return make_executor_on_gpu(device, o, *source_, draft_.get(), tokenizer_vocab_, rank, call_deadline(options_), kept(true, place),
                                &start);
  }

  std::unique_ptr<step_executor> make_on_cpu(const std::shared_ptr<const model_weights>& target,
                                             const std::shared_ptr<const model_weights>& draft, const engine_options& o,
                                             const actors::rank_start& place, const rank_context& rank, start_times& start) const {
    cpu_executor_options options = executor_options(o, tokenizer_vocab_, kept(false, place)); // smaller pages: docs/keeper.md
    options.start = &start;
    return draft ? make_drafting_cpu_executor(target, draft, options, rank) : make_cpu_executor(target, options, rank);
  }

  // What of a rank is kept beyond its process; unless the flags say otherwise, or only if they say so.
  kept_memories kept(bool unless_told, const actors::rank_start& place) const {
    kept_memories kept;
    if (!keep_) return kept;
    if (options_.keep_weights.value_or(unless_told)) kept.weights = keep_;
    if (!options_.keep_kv.value_or(unless_told)) return kept;
    const std::string owner = "replica " + std::to_string(place.replica) + ", rank " + std::to_string(place.rank);
    kept.kv = {*keep_, owner, place.kv_usable};
    return kept;
  }

  // Loaded once, for all ranks and replicas of this process.
  std::shared_ptr<const model_weights> weights() {
    const std::lock_guard lock(guard_);
    if (!target_weights_) target_weights_ = load_weights(options_, *source_);
    return target_weights_;
  }
  std::shared_ptr<const model_weights> draft_weights() {
    const std::lock_guard lock(guard_);
    if (!draft_weights_) draft_weights_ = load_weights(options_, *draft_);
    return draft_weights_;
  }

  const engine_options options_;
  const std::shared_ptr<const checkpoint> source_, draft_;
  const std::int32_t tokenizer_vocab_;
  const std::optional<keeper::access> keep_;
  start_times* const start_; // null: each executor has its own
  group_links links_;
  group_links gpu_links_; // on the host they serve the start alone, where ranks wait for each other's loading
  std::mutex guard_;
  std::shared_ptr<const model_weights> target_weights_, draft_weights_;
};

} // namespace

void check_batch(const engine_options& o) {
  if (o.max_num_batched_tokens >= o.max_num_seqs) return;
  throw load_error("--max-num-batched-tokens (" + std::to_string(o.max_num_batched_tokens) + ") must be at least --max-num-seqs (" +
                   std::to_string(o.max_num_seqs) + ")");
}

actors::executor_factory make_executor_factory(engine_options options, std::shared_ptr<const checkpoint> source,
                                               std::shared_ptr<const checkpoint> draft, std::int32_t tokenizer_vocab,
                                               std::optional<keeper::access> keep, start_times* start) {
  auto maker =
      std::make_shared<executor_maker>(std::move(options), std::move(source), std::move(draft), tokenizer_vocab, std::move(keep), start);
  return [maker](const actors::rank_start& place, const actors::publish_rendezvous& publish) { return maker->make(place, publish); };
}

void make_ready(const engine_options& options, const checkpoint& source, const actors::rank_start& place) {
  const device_choice first = choose_device(options, source.config());
  if (first.gpu) make_gpu_ready(*choose_device(options_of_rank(options, place, first.gpu), source.config()).gpu, options.group_size() > 1);
}

} // namespace troupe::apps
