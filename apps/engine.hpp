// From flags to a running serving side: checkpoint, weights, tokenizer, template, executor factory, actors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "actors/serving.hpp"
#include "apps/engine_options.hpp"
#include "device/keeper/client.hpp"
#include "models/checkpoint.hpp"
#include "models/start_times.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/timeline.hpp"
#include "tokenizer/chat_template.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe::apps {

// What a checkpoint says about text. Loading it is cheap; weights are loaded where the device lives.
struct text_side {
  std::shared_ptr<const tokenizer> tokens;
  std::shared_ptr<const chat_template> templates; // null when the checkpoint has none
  std::string bos_token;
  std::string eos_token;
  std::vector<token_id> eos_tokens; // the config's, the generation config's and the tokenizer's
};

// The model that the flags name; with --load-format dummy its config and tokenizer alone will do. Throws load_error.
std::shared_ptr<const checkpoint> open_source(const engine_options& options);

// Dummy weights without a tokenizer's files get one of numbers (apps/number_tokenizer.hpp). Throws load_error.
text_side load_text_side(const checkpoint& source);

// The draft model that the flags name, or null. Throws load_error when its tokens are not those of `tokens`.
std::shared_ptr<const checkpoint> open_draft_model(const engine_options& options, const tokenizer& tokens);

// The executor of a rank; one that is called without a place is the whole group. Weights are loaded at the first call and shared by later
// ones, and by later processes where `keep` names a keeper. `draft` may be null. A process that makes one executor has it add to `start`,
// which outlives the factory. Throws load_error when called, not before.
actors::executor_factory make_executor_factory(engine_options options, std::shared_ptr<const checkpoint> source,
                                               std::shared_ptr<const checkpoint> draft, std::int32_t tokenizer_vocab,
                                               std::optional<keeper::access> keep = {}, start_times* start = nullptr);

// What a process can do for a rank before it is told its place, since it costs time: takes the GPU's context. On a CPU there is nothing to
// do. Throws std::runtime_error where that would leave too little memory to others.
void make_ready(const engine_options& options, const checkpoint& source, const actors::rank_start& place);

// The names that "model" may hold: the flag's, or the file's or folder's own.
std::vector<std::string> served_names(const engine_options& options);

telemetry::group_shape shape_of(const engine_options& options);

// With series for all ranks and replicas.
std::shared_ptr<telemetry::metrics> make_metrics(const engine_options& options);

// How the device will hold weights and KV. `weights` none: each matrix as it is stored.
struct device_types {
  std::optional<dtype> weights;
  dtype kv = dtype::bf16;
};
device_types types_on_device(const engine_options& options, const checkpoint& source);

class cluster_head; // apps/cluster/head.hpp

// Everything together; returns once the device is ready. `timeline` may be null; `make_executor` takes the place of what the flags say of
// the device; with a `head`, which outlives the engine, ranks are placed on the machines of its cluster. Throws load_error and
// std::runtime_error.
std::unique_ptr<actors::serving> start_engine(engine_options options, std::shared_ptr<telemetry::metrics> metrics,
                                              std::shared_ptr<telemetry::timeline> timeline = nullptr,
                                              actors::executor_factory make_executor = {}, cluster_head* head = nullptr);

} // namespace troupe::apps
