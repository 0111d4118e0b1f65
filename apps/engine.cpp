#include "apps/engine.hpp"

#include <spdlog/spdlog.h>

#include <chrono>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "apps/cluster/head.hpp"
#include "apps/device_choice.hpp"
#include "apps/executor_factory.hpp"
#include "apps/keeper_process.hpp"
#include "apps/model_source.hpp"
#include "models/shard.hpp"
#include "transport/collective/tcp_group.hpp"

namespace troupe::apps {

namespace {

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

// Several GPUs have a process each: a sticky error of one can only be cleared by ending its process.
bool a_process_each(const engine_options& o, const model_config& config) {
  if (o.devices() == 1 || o.device == "cpu") return o.isolate_devices;
  const std::optional<std::int32_t> first = choose_device(o, config).gpu;
  if (first) check_gpu_ranks(o, *first);
  return o.isolate_devices || first;
}

speculation_config speculation(const engine_options& o) {
  const draft_source source = o.speculative_method == "ngram"   ? draft_source::ngram
                              : o.speculative_method == "draft" ? draft_source::model
                                                                : draft_source::none;
  return {source, o.num_speculative_tokens, true};
}

// What the actors are told of the flags, but for the devices' own processes.
actors::serving_options serving_of(const engine_options& o, const text_side& text) {
  actors::serving_options serving;
  serving.served_names = served_names(o);
  serving.created = std::time(nullptr);
  serving.eos_tokens = text.eos_tokens;
  serving.max_queue = o.max_queue;
  serving.prefix_caching = o.prefix_caching;
  serving.speculation = speculation(o);
  if (o.max_predicted_ttft_ms) serving.max_predicted_ttft = std::chrono::milliseconds(*o.max_predicted_ttft_ms);
  serving.replicas = o.data_parallel_size;
  serving.group_size = o.group_size();
  serving.stages = o.pipeline_parallel_size;
  serving.leader = o.group_size() - o.tensor_parallel_size; // the first rank of the last stage
  if (serving.stages > 1) serving.plans_in_flight = serving.stages + 1;
  serving.max_restarts = o.max_device_restarts;
  serving.step_deadline = std::chrono::seconds(o.step_deadline_s);
  serving.start_deadline = std::chrono::seconds(o.start_deadline_s);
  return serving;
}

// How a rank's process is started, here or by the nodes of `head`.
void set_worker_command(actors::serving_options& serving, const engine_options& o, const checkpoint& source, cluster_head* head) {
  serving.worker_command = {"/proc/self/exe", "worker"}; // this very program, also after its file was replaced
  if (head != nullptr) {
    serving.slot_arguments = head->slot_arguments(o, source);
    return;
  }
  const auto args = to_arguments(o);
  serving.worker_command.insert(serving.worker_command.end(), args.begin(), args.end());
  serving.standby = o.standby.value_or(false);
}

// The keeper that the workers are told of; null where nothing is kept beyond them.
std::shared_ptr<keeper_process> start_keeper(actors::serving_options& serving, const engine_options& o, bool on_gpus,
                                             const std::shared_ptr<telemetry::metrics>& metrics) {
  if (!o.keep_weights.value_or(on_gpus) && !o.keep_kv.value_or(on_gpus)) return nullptr;
  auto keeper = std::make_shared<keeper_process>(metrics);
  serving.worker_command.push_back("--keeper");
  serving.worker_preamble = keeper->line() + "\n";
  return keeper;
}

// A context that the KV pool cuts short is worth a word: the flag helps, and clients will see the smaller limit.
void warn_of_small_pool(const engine_options& o, const checkpoint& source, const served_model& served) {
  const std::int32_t wanted = o.max_model_len.value_or(source.config().max_position);
  if (served.max_model_len < wanted) {
    spdlog::warn("the KV cache holds {} tokens, so the context is {} instead of {}; --kv-cache-memory gives it more", served.max_model_len,
                 served.max_model_len, wanted);
  }
}

} // namespace

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

  actors::serving_options serving = serving_of(options, text);
  actors::serving_parts parts;
  if (head != nullptr) parts.cluster = head->describe(options, *source);
  if (options.isolate_devices) {
    const bool on_gpus = head != nullptr ? options.device != "cpu" : choose_device(options, source->config()).gpu.has_value();
    set_worker_command(serving, options, *source, head);
    parts.companion = start_keeper(serving, options, on_gpus, metrics);
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
