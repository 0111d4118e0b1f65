// Decides what a CPU executor takes, before it takes anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/step.hpp"
#include "device/cpu/host_limits.hpp"
#include "models/cpu_executor.hpp"
#include "models/cpu_model.hpp"

namespace troupe {

struct executor_plan {
  executor_info info;
  cpu_model_shape shape;
  std::size_t kv_bytes = 0;
  std::size_t activation_bytes = 0;
  std::size_t weight_bytes = 0; // of the executor's own copies: packed matrices and the embedding
};

// Throw load_error for a config that no executor can run, and for a context beyond the model's. `wanted`: none for the model's own.
void check_model(const model_config& config);
std::int32_t context_length(const model_config& config, std::optional<std::int32_t> wanted);

// Bytes that an executor of `weights` may take: what is available and, as it is taken already, what a keeper holds of them and of its KV
// cache. None: not known.
std::optional<std::uint64_t> available_memory(const model_weights& weights, const cpu_executor_options& options,
                                              std::optional<std::uint64_t> available = cpu::available_memory());

// Throws load_error, with the numbers, when options and model cannot work together, or need more than the `available` bytes (none: not
// known). The KV cache is counted whole: its pages are first touched when sequences need them, and running out then is the process's end.
// `weights` are those of `rank` alone.
executor_plan plan_executor(const model_weights& weights, const cpu_executor_options& options,
                            std::optional<std::uint64_t> available = cpu::available_memory(), const rank_context& rank = {});

// What `rank` takes of a whole model; memory is not looked at.
executor_plan plan_rank(const model_weights& whole, cpu_executor_options options, const rank_context& rank);

inline std::size_t total_bytes(const executor_plan& plan) { return plan.weight_bytes + plan.activation_bytes + plan.kv_bytes; }

// Of the KV cache: what the options say, or what suits the weights of the whole model.
dtype kv_type_of(const model_weights& whole, const cpu_executor_options& options);

} // namespace troupe
