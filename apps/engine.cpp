#include "apps/engine.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <mutex>

#include "actors/place_names.hpp"
#include "apps/cluster/head.hpp"
#include "apps/device_choice.hpp"
#include "apps/groups/links.hpp"
#include "apps/keeper_process.hpp"
#include "apps/number_tokenizer.hpp"
#include "device/cpu/host_limits.hpp"
#include "models/cpu_executor.hpp"
#include "models/drafting_executor.hpp"
#include "models/group_executor.hpp"
#include "models/shard.hpp"
#include "transport/collective/tcp_group.hpp"

namespace troupe::apps {

namespace {

dtype parse_type(const std::string& name) {
  if (name == "f32") return dtype::f32;
  if (name == "f16") return dtype::f16;
  if (name == "q8_0") return dtype::q8_0;
  if (name == "q4_0") return dtype::q4_0;
  return dtype::bf16;
}

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

// Each running sequence takes a token of every step.
void check_batch(const engine_options& o) {
  if (o.max_num_batched_tokens >= o.max_num_seqs) return;
  throw load_error("--max-num-batched-tokens (" + std::to_string(o.max_num_batched_tokens) + ") must be at least --max-num-seqs (" +
                   std::to_string(o.max_num_seqs) + ")");
}

void check_group(const engine_options& o) {
  if (o.group_size() <= kMaxTcpRanks) return;
  throw std::invalid_argument("--tp " + std::to_string(o.tensor_parallel_size) + " and --pp " + std::to_string(o.pipeline_parallel_size) +
                              " make a group of " + std::to_string(o.group_size()) + " ranks; it can have " + std::to_string(kMaxTcpRanks));
}

// What can be said before anything is loaded.
void check(const engine_options& o) {
  check_group(o);
  parse_bytes(o.kv_cache_memory, "--kv-cache-memory");
  if (o.max_num_batched_tokens_given) check_batch(o);
  if ((o.speculative_method == "draft") == o.draft_model.empty()) {
    throw std::invalid_argument("--speculative-method draft and --speculative-draft-model go together");
  }
}

// Of a rank's collectives. Ranks of a stage do the same work; those of a pipeline wait for whole steps of each other, and all for the
// leader's draft model.
std::chrono::milliseconds call_deadline(const engine_options& o) {
  const std::chrono::milliseconds step = std::chrono::seconds(o.step_deadline_s);
  return o.pipeline_parallel_size > 1 || !o.draft_model.empty() ? step
                                                                : std::min<std::chrono::milliseconds>(step, std::chrono::seconds(10));
}

// Several GPUs have a process each: a sticky error of one can only be cleared by ending its process.
bool a_process_each(const engine_options& o, const model_config& config) {
  if (o.devices() == 1 || o.device == "cpu") return o.isolate_devices;
  const std::optional<std::int32_t> first = choose_device(o, config).gpu;
  if (first) check_gpu_ranks(o, *first);
  return o.isolate_devices || first;
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

speculation_config speculation(const engine_options& o) {
  const draft_source source = o.speculative_method == "ngram"   ? draft_source::ngram
                              : o.speculative_method == "draft" ? draft_source::model
                                                                : draft_source::none;
  return {source, o.num_speculative_tokens, true};
}

// Of dummy weights, which may come as a config alone.
bool lacks_text(const checkpoint& source) {
  if (source.format() == checkpoint_format::gguf) return false;
  const auto has = [&](const char* file) { return std::filesystem::exists(source.path() / file); };
  return source.tensors().empty() && !has("tokenizer.json") && !has("tokenizer.model");
}

// A context that the KV pool cuts short is worth a word: the flag helps, and clients will see the smaller limit.
void warn_of_small_pool(const engine_options& o, const checkpoint& source, const served_model& served) {
  const std::int32_t wanted = o.max_model_len.value_or(source.config().max_position);
  if (served.max_model_len < wanted) {
    spdlog::warn("the KV cache holds {} tokens, so the context is {} instead of {}; --kv-cache-memory gives it more", served.max_model_len,
                 served.max_model_len, wanted);
  }
}

std::shared_ptr<const checkpoint> open_model(const engine_options& options, const std::filesystem::path& path) {
  return options.load_format == "dummy" ? open_checkpoint_without_weights(path) : open_checkpoint(path);
}

std::shared_ptr<const model_weights> load_weights(const engine_options& options, const checkpoint& source) {
  return std::make_shared<const model_weights>(
      options.load_format == "dummy" ? plan_dummy_weights(source.config(), parse_type(options.dummy_type), 1) : source.load());
}

std::shared_ptr<const tokenizer> load_tokens(const checkpoint& source) {
  if (lacks_text(source)) return std::make_shared<const number_tokenizer>(source.config().vocab_size);
  const bool gguf = source.format() == checkpoint_format::gguf;
  return gguf ? tokenizer_from_gguf(source.metadata(), source.path().string()) : load_tokenizer(source.path());
}

// Drafts are token ids: they must mean the same to both models.
void check_same_vocabulary(const std::string& draft, const tokenizer& its, const tokenizer& targets) {
  const std::string what = "--speculative-draft-model " + draft + ": ";
  if (its.vocab_size() != targets.vocab_size()) {
    throw load_error(what + "its vocabulary has " + std::to_string(its.vocab_size()) + " tokens and the model's " +
                     std::to_string(targets.vocab_size()));
  }
  for (token_id id = 0; id < its.vocab_size(); ++id) {
    if (its.token_bytes(id) != targets.token_bytes(id)) {
      throw load_error(what + "token " + std::to_string(id) + " is \"" + its.token_bytes(id) + "\" and the model's is \"" +
                       targets.token_bytes(id) + "\"");
    }
  }
}

} // namespace

device_types types_on_device(const engine_options& options, const checkpoint& source) {
  dtype stored = parse_type(options.dummy_type);
  if (options.load_format != "dummy") {
    const auto is_query = [](const stored_tensor& t) { // of the first layer, in either format
      return t.name == "model.layers.0.self_attn.q_proj.weight" || t.name == "blk.0.attn_q.weight";
    };
    const auto query = std::find_if(source.tensors().begin(), source.tensors().end(), is_query);
    stored = query != source.tensors().end() && query->type ? *query->type : dtype::bf16;
  }
  device_types types;
  if (choose_device(options, source.config()).gpu) { // one type for all that it holds
    const std::string& asked = options.dtype != "auto" ? options.dtype : options.kv_cache_dtype;
    const bool dummy = options.load_format == "dummy"; // made on the device, as bf16 unless asked otherwise
    types.kv = asked != "auto" ? parse_type(asked) : stored == dtype::f16 && !dummy ? dtype::f16 : dtype::bf16;
    types.weights = types.kv;
    return types;
  }
  if (options.load_format == "dummy") types.weights = stored;
  types.kv = stored == dtype::f32 || stored == dtype::bf16 ? stored : dtype::f16;
  if (options.kv_cache_dtype != "auto") types.kv = parse_type(options.kv_cache_dtype);
  return types;
}

std::shared_ptr<const checkpoint> open_source(const engine_options& options) { return open_model(options, options.model); }

std::shared_ptr<const checkpoint> open_draft_model(const engine_options& options, const tokenizer& tokens) {
  if (options.draft_model.empty()) return nullptr;
  auto draft = open_model(options, options.draft_model);
  check_same_vocabulary(options.draft_model.string(), *load_tokens(*draft), tokens);
  if (draft->config().vocab_size < tokens.vocab_size()) {
    throw load_error(options.draft_model.string() + ": scores " + std::to_string(draft->config().vocab_size) + " ids, the tokenizer has " +
                     std::to_string(tokens.vocab_size()));
  }
  return draft;
}

text_side load_text_side(const checkpoint& source) {
  const bool gguf = source.format() == checkpoint_format::gguf;
  const std::string name = source.path().string();
  text_side side;
  side.tokens = load_tokens(source);
  if (lacks_text(source)) {
    spdlog::warn("{}: no tokenizer; texts of dummy weights are numbers", name);
    side.eos_tokens = source.config().eos_tokens;
    return side;
  }
  if (auto found = gguf ? find_chat_template(source.metadata()) : find_chat_template(source.path())) {
    side.templates = std::make_shared<const chat_template>(found->text, name + ": chat template");
    side.bos_token = found->bos_token;
    side.eos_token = found->eos_token;
  }
  side.eos_tokens = source.config().eos_tokens;
  for (token_id id : side.tokens->eos()) {
    if (std::find(side.eos_tokens.begin(), side.eos_tokens.end(), id) == side.eos_tokens.end()) side.eos_tokens.push_back(id);
  }
  return side;
}

namespace {

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

std::vector<std::string> served_names(const engine_options& options) {
  if (!options.served_names.empty()) return options.served_names;
  // Not through symbolic links: in a download cache they lead to files named by their hash.
  std::filesystem::path path = std::filesystem::absolute(options.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return {path.extension() == ".gguf" ? path.stem().string() : path.filename().string()};
}

telemetry::group_shape shape_of(const engine_options& o) { return {o.data_parallel_size, o.group_size()}; }

std::shared_ptr<telemetry::metrics> make_metrics(const engine_options& o) {
  return std::make_shared<telemetry::metrics>(served_names(o).front(), TROUPE_VERSION, telemetry::metrics::log_function{}, shape_of(o));
}

std::unique_ptr<actors::serving> start_engine(engine_options options, std::shared_ptr<telemetry::metrics> metrics,
                                              std::shared_ptr<telemetry::timeline> timeline, actors::executor_factory make_executor,
                                              cluster_head* head) {
  check(options);
  auto source = open_source(options);
  check_shards(source->config(), options.tensor_parallel_size, options.pipeline_parallel_size);
  if (const std::string added = added_heads(source->config(), options.tensor_parallel_size); !added.empty()) {
    spdlog::info("--tp {}: heads of zeros are added, {}", options.tensor_parallel_size, added);
  }
  options.isolate_devices = head != nullptr || a_process_each(options, source->config());
  text_side text = load_text_side(*source);
  if (!text.templates) spdlog::warn("{}: no chat template; /v1/chat/completions will answer 400", options.model.string());

  actors::serving_options serving;
  serving.served_names = served_names(options);
  serving.created = std::time(nullptr);
  serving.eos_tokens = text.eos_tokens;
  serving.max_queue = options.max_queue;
  serving.prefix_caching = options.prefix_caching;
  serving.speculation = speculation(options);
  if (options.max_predicted_ttft_ms) serving.max_predicted_ttft = std::chrono::milliseconds(*options.max_predicted_ttft_ms);
  serving.replicas = options.data_parallel_size;
  serving.group_size = options.group_size();
  serving.stages = options.pipeline_parallel_size;
  serving.leader = options.group_size() - options.tensor_parallel_size; // the first rank of the last stage
  if (serving.stages > 1) serving.plans_in_flight = serving.stages + 1;
  serving.max_restarts = options.max_device_restarts;
  serving.step_deadline = std::chrono::seconds(options.step_deadline_s);
  serving.start_deadline = std::chrono::seconds(options.start_deadline_s);
  const bool on_gpus = head != nullptr ? options.device != "cpu" : options.isolate_devices && choose_device(options, source->config()).gpu;
  serving.standby = head == nullptr && options.standby.value_or(false);
  if (options.isolate_devices) {
    serving.worker_command = {"/proc/self/exe", "worker"}; // this very program, also after its file was replaced
    if (head == nullptr) {
      const auto args = to_arguments(options);
      serving.worker_command.insert(serving.worker_command.end(), args.begin(), args.end());
    } else {
      serving.slot_arguments = head->slot_arguments(options, *source);
    }
  }

  actors::serving_parts parts;
  if (head != nullptr) parts.cluster = head->describe(options, *source);
  if (options.isolate_devices && (options.keep_weights.value_or(on_gpus) || options.keep_kv.value_or(on_gpus))) {
    const auto keeper = std::make_shared<keeper_process>(metrics);
    serving.worker_command.push_back("--keeper");
    serving.worker_preamble = keeper->line() + "\n";
    parts.companion = keeper;
  }
  parts.make_executor = make_executor
                            ? std::move(make_executor)
                            : make_executor_factory(options, source, open_draft_model(options, *text.tokens), text.tokens->vocab_size());
  parts.tokens = std::move(text.tokens);
  parts.templates = std::move(text.templates);
  parts.bos_token = std::move(text.bos_token);
  parts.eos_token = std::move(text.eos_token);
  parts.metrics = std::move(metrics);
  parts.timeline = std::move(timeline);
  parts.log = [](actors::log_level level, const std::string& line) {
    level == actors::log_level::warning ? spdlog::warn("{}", line) : spdlog::info("{}", line);
  };
  auto engine = actors::serving::start(std::move(serving), std::move(parts));
  warn_of_small_pool(options, *source, engine->model());
  return engine;
}

} // namespace troupe::apps
