// Which device runs the model, and its executor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/engine_options.hpp"
#include "core/step.hpp"
#include "models/checkpoint.hpp"
#include "models/gpu_executor.hpp"

namespace troupe::apps {

struct device_choice {
  std::optional<std::int32_t> gpu; // CUDA's number; none: the CPU
  std::string reason;              // one line for the log: which device, and why
};

// Throws load_error, naming the flag, when --device asks for a GPU that cannot be used, or other flags for what the chosen
// device has not. Asks the driver: call it in the process that will own the device.
device_choice choose_device(const engine_options& options, const model_config& config);

// What the flags say of an executor on GPU `device`. Throws load_error where they contradict each other.
gpu_executor_options gpu_options(std::int32_t device, const engine_options& options, std::int32_t tokenizer_vocab);

// The executor of a GPU, with a draft model beside it unless that is null. Dummy weights are made on the device, but for a draft model's
// company, whose are made on the host.
std::unique_ptr<step_executor> make_executor_on_gpu(std::int32_t device, const engine_options& options, const checkpoint& source,
                                                    const checkpoint* draft, std::int32_t tokenizer_vocab,
                                                    const std::optional<keeper::access>& keep);

} // namespace troupe::apps
