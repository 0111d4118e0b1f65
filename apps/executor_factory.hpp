// From flags and a checkpoint to the executors of ranks, on CPUs and GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "actors/serving.hpp"
#include "apps/engine_options.hpp"
#include "device/keeper/client.hpp"
#include "models/checkpoint.hpp"
#include "models/start_times.hpp"

namespace troupe::apps {

// The executor of a rank; one that is called without a place is the whole group. Weights are loaded at the first call and shared by later
// ones, and by later processes where `keep` names a keeper. `draft` may be null. A process that makes one executor has it add to `start`,
// which outlives the factory. Throws load_error when called, not before.
actors::executor_factory make_executor_factory(engine_options options, std::shared_ptr<const checkpoint> source,
                                               std::shared_ptr<const checkpoint> draft, std::int32_t tokenizer_vocab,
                                               std::optional<keeper::access> keep = {}, start_times* start = nullptr);

// What a process can do for a rank before it is told its place, since it costs time: takes the GPU's context. On a CPU there is nothing to
// do. Throws std::runtime_error where that would leave too little memory to others.
void make_ready(const engine_options& options, const checkpoint& source, const actors::rank_start& place);

// Each running sequence takes a token of every step. Throws load_error, naming the flags, where a step cannot hold so many.
void check_batch(const engine_options& options);

} // namespace troupe::apps
