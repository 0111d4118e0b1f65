// From what a step left in its download to a step_result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/step.hpp"
#include "kernels/step_rows_gpu.hpp"
#include "models/gpu_transfers.hpp"

namespace troupe {

// Offsets into a download; item results come first.
struct download_layout {
  download_layout(std::int32_t items, std::int32_t head_count, bool reports)
      : heads(head_count),
        drawn(upload_ring::room_for(static_cast<std::size_t>(items) * sizeof(gpu::item_result))),
        best(drawn + upload_ring::room_for(static_cast<std::size_t>(heads) * sizeof(gpu::sampled_token))),
        end(best + (reports ? static_cast<std::size_t>(heads) * gpu::most_best_tokens * sizeof(scored_token) : 0)) {}

  std::int32_t heads;
  std::size_t drawn, best, end;
};

// What delivering a step needs to know of one of its items.
struct awaited_item {
  gpu::step_item item;
  std::optional<std::int32_t> top_logprobs; // of the slot
  std::int32_t first_position = 0;
  bool verifies = false;
  std::uint64_t opening = 0; // which sequence of the slot
};

// Outputs in item order.
std::vector<slot_output> read_outputs(const std::vector<awaited_item>& items, const download_layout& at, const std::byte* download);

} // namespace troupe
