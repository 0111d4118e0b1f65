// What a step's uploads have put on the device. Part of gpu_runner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/step_rows_gpu.hpp"
#include "models/gpu_runner.hpp"

namespace troupe {

struct gpu_runner::uploaded {
  std::size_t opened_done = 0, tables_done = 0, biases_done = 0, suppressed_done = 0, copies_done = 0;
  gpu::change_slots_args changes;
  std::span<const gpu::copied_block> copies; // on the host, and the same on the device:
  const gpu::copied_block* copies_at = nullptr;
  gpu::prepare_rows_args rows;
  const gpu::step_item* items = nullptr;
  const gpu::counted_token* counted = nullptr;
  gpu_batch batch;
  bool by_graph = false; // the step's graph lays its rows out itself
};

inline std::int32_t count_of(std::size_t size) { return static_cast<std::int32_t>(size); }

} // namespace troupe
