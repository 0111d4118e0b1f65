// A target model and a draft model behind one step_executor: the draft model follows the target's plans in a KV pool of its own, with the
// same block tables, and proposes what may come next.
#pragma once

#include <memory>

#include "core/step.hpp"
#include "models/cpu_executor.hpp"

namespace troupe {

inline constexpr std::int32_t most_proposals = 64; // of one item

// Plans go to `target` unchanged. What comes back tells the draft model which tokens were drawn; where an item asks for proposals, it then
// draws them one after another, under the sequence's own sampling parameters (but for penalties) and seed, so that both models draw with
// the same numbers. Its rows stand in the blocks of the same ids: shared prefixes, copies and what is computed again after a preemption or
// in a new epoch hold for it as they are. Proposals are guesses, so that a block that it lacks costs acceptance and never a wrong token.
//
// The draft model is used on the thread that the target delivers on, and waited for. Throws std::invalid_argument when the two have not
// the same slots, blocks and vocabulary.
std::unique_ptr<step_executor> make_drafting_executor(std::unique_ptr<step_executor> target, std::unique_ptr<step_executor> draft);

// Both on the CPU; `options` are the target's, and its kv_bytes hold the KV of both. Of a group the leader has the draft model, whole; the
// other ranks follow plans that ask for proposals. Throws load_error, with the numbers.
std::unique_ptr<step_executor> make_drafting_cpu_executor(std::shared_ptr<const model_weights> target,
                                                          std::shared_ptr<const model_weights> draft, cpu_executor_options options,
                                                          const rank_context& rank = {});

} // namespace troupe
