// Which device runs the model, and its executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/engine_options.hpp"
#include "core/step.hpp"
#include "models/checkpoint.hpp"
#include "models/gpu_executor.hpp"

namespace troupe::apps {

// Who keeps what beyond this process, if anybody does.
struct kept_memories {
  std::optional<keeper::access> weights;
  std::optional<kv_keeping> kv;
};

struct device_choice {
  std::optional<std::int32_t> gpu; // CUDA's number; none: the CPU
  std::string reason;              // one line for the log: which device, and why
};

// Throws load_error, naming the flag, when --device asks for a GPU that cannot be used, or other flags for what the chosen
// device has not. Asks the driver: call it in the process that will own the device.
device_choice choose_device(const engine_options& options, const model_config& config);

// GPUs that this process sees, from 0 on.
int count_gpus();

// What the flags say of an executor on GPU `device`. Throws load_error where they contradict each other.
gpu_executor_options gpu_options(std::int32_t device, const engine_options& options, std::int32_t tokenizer_vocab);

// Throws load_error, with the numbers, where there are fewer GPUs from `first` on than ranks.
void check_gpu_ranks(const engine_options& options, std::int32_t first);

// Takes the context of GPU `device` for this process, and loads what joining a group takes where it is to be `grouped`. Throws
// std::runtime_error when that leaves too little of the device's memory to others.
void make_gpu_ready(std::int32_t device, bool grouped);

// The executor of a GPU, with a draft model beside it unless that is null. Dummy weights of large models are made on the device, each
// rank's for itself. Those of small ones, and of a draft model's company, are made on the host: one model, which ranks cut like a loaded
// one. `host`: the rank and its group's communicators between hosts; no call on the GPU waits longer than `deadline` for a peer.
// `start` is told what was reached.
std::unique_ptr<step_executor> make_executor_on_gpu(std::int32_t device, const engine_options& options, const checkpoint& source,
                                                    const checkpoint* draft, std::int32_t tokenizer_vocab, const rank_context& host = {},
                                                    std::chrono::milliseconds deadline = {}, const kept_memories& keep = {},
                                                    start_times* start = nullptr);

} // namespace troupe::apps
