// When a new sequence would have its first token, by what the steps and sequences before it took.
#pragma once

#include <cstdint>
#include <optional>

#include "core/error.hpp"
#include "scheduler/scheduler_core.hpp"

namespace troupe {

struct predicted_wait {
  std::uint64_t scheduled_ns = 0;   // from now until a device works on it
  std::uint64_t first_token_ns = 0; // from now until its first token
};

// None before the first step was measured. Prompts count whole, whatever the prefix cache may hold of them.
std::optional<predicted_wait> predict_wait(const scheduler_core& core, const sequence_request& request);

// The refusal, where the first token would come later than config.max_predicted_ttft_ns, or the request's queue deadline would pass.
std::optional<error> refuse_if_late(const scheduler_core& core, const sequence_request& request, std::uint64_t now_ns);

} // namespace troupe
