// What a GPU keeps of each sequence from step to step, and what a step's draws pass through. Device memory, made once.
#pragma once

#include <cstdint>

#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "kernels/step_rows_gpu.hpp"
#include "models/gpu_plan.hpp"

namespace troupe {

class gpu_slots {
 public:
  gpu_slots(const gpu_plan& plan, cuda::caching_allocator& memory, const cuda::stream& on);

  // The slot that is nobody's.
  slot_id spare() const { return spare_; }
  gpu::slot_arrays arrays() const;
  std::uint32_t* history() const; // [slots][vocab]
  // Of the running step, [max_head_rows].
  gpu::sampling_row* sampling() const;
  gpu::sampled_token* sampled() const;
  scored_token* best() const;
  token_id* head_inputs() const;
  gpu::counted_token* counted() const;

 private:
  using buffer = cuda::caching_allocator::buffer;
  slot_id spare_;
  std::int64_t table_stride_;
  buffer last_token_, faulted_, slot_sampling_, biases_, suppressed_, tables_, history_;
  buffer sampling_, sampled_, best_, head_inputs_, counted_;
};

} // namespace troupe
