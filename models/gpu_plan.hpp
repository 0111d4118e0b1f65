// Decides what a GPU executor takes, before it takes anything.
#pragma once

#include <cstddef>
#include <string>

#include "core/step.hpp"
#include "device/cuda/memory.hpp"
#include "models/gpu_executor.hpp"
#include "models/gpu_model.hpp"
#include "models/gpu_rank_sums.hpp"

namespace troupe {

struct gpu_plan {
  executor_info info;
  gpu_model_shape shape;
  std::size_t weight_bytes = 0;
  std::size_t activation_bytes = 0; // and slots, uploads, downloads
  std::size_t kv_bytes = 0;
  std::size_t reserve_bytes = 0; // for graphs and what libraries take

  std::size_t total() const { return weight_bytes + activation_bytes + kv_bytes + reserve_bytes; }
};

// `config`: the share of `rank`. `stored`: the type of the checkpoint's matrices. Throws load_error,
// with the numbers, when options and model cannot work together or need more than the device has.
gpu_plan plan_gpu(const model_config& config, dtype stored, const gpu_executor_options& options, cuda::memory_state device,
                  const rank_context& rank = {});
// Of the rows that are summed over ranks.
rank_sum_shape sum_shape_of(const model_config& config, const gpu_model_shape& shape);

struct planned_model {
  const model_config& config;
  dtype stored;
  gpu_executor_options options;
  rank_context rank; // whose share `config` is
};
// KV blocks for two models whose sequences hold blocks of the same numbers, by the first one's options. Throws load_error, with the
// numbers, where they and both models do not fit.
std::int32_t shared_blocks(planned_model first, planned_model second, cuda::memory_state device);

// Device bytes of the slots' state, of `slots` slots and the one for padding.
std::size_t slot_state_bytes(const gpu_plan& plan);
// Bytes of one upload and of one download.
std::size_t upload_bytes(const gpu_plan& plan);
std::size_t download_bytes(const gpu_plan& plan);

// Entries of one kind that an upload carries at most; what a plan changes beyond that goes up before it.
inline constexpr std::size_t changes_per_upload = 16384;
inline constexpr std::size_t steps_in_flight = 4;

} // namespace troupe
