// What the gateway decides about a request: refused with a reason, or expanded into sequences. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "actors/protocol.hpp"
#include "core/service.hpp"

namespace troupe::actors {

// Before tokenizing, at once: model name, counts, ids inside the vocabulary, finite numbers. Errors name the field.
std::optional<error> check_request(const generation_request& request, const served_model& model);

// n * prompts, which check_request bounds to 32 bits.
std::int64_t choices_of(const generation_request& request);
// When the request must have left the gateway, where both of its timeouts run; kNever without one.
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
std::uint64_t gateway_deadline(const generation_request& request);
// What it is told when that has passed.
error gateway_timeout(const generation_request& request);
// Bytes that the prompts occupy while they wait.
std::size_t prompt_bytes_of(const prompt& item);

// After tokenizing: prompts x n sequences, choice index = prompt * n + i, with seed + i (so a prompt of a batch is answered as if it
// had been sent alone). Limits: an empty prompt, one that leaves no room for an output, and prompt + max_tokens beyond the
// context are invalid_request; without max_tokens a choice may fill the context. Stop tokens are `eos` (unless ignore_eos) and the
// client's; below min_tokens they are suppressed.
result<std::vector<sequence_request>> expand(const generation_request& request, const std::vector<encoded_prompt>& prompts,
                                             const served_model& model, const std::vector<token_id>& eos, std::uint64_t seed);

// What the detokenizer needs of the same request.
open_request describe(const generation_request& request, std::vector<encoded_prompt> prompts, const stop_conditions& stop);

} // namespace troupe::actors
