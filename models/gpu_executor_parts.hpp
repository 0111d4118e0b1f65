// The parts of an executor on one GPU, between the file that gathers them and the one that runs them.
#pragma once

#include <functional>
#include <memory>

#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_executor.hpp"
#include "models/gpu_plan.hpp"
#include "models/gpu_weights.hpp"

namespace troupe {

// Where the KV cache lies.
struct gpu_kv_memory {
  std::unique_ptr<cuda::memory_source> source;
  bool kept = false; // it holds what the process before left
};

// Fills `memory`, of gpu_plan::weight_bytes, or finds it filled.
using make_gpu_weights_fn = std::function<gpu_weights(std::byte* memory, const cuda::stream& on)>;

// `config` and `plan` are the rank's own; its weights go into memory of `weights`.
std::unique_ptr<step_executor> assemble_gpu_executor(const model_config& config, const gpu_plan& plan, const gpu_executor_options& options,
                                                     gpu_joining rank, std::unique_ptr<cuda::memory_source> weights, gpu_kv_memory kv,
                                                     const make_gpu_weights_fn& make_weights);

} // namespace troupe
