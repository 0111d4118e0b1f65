// All ranks of a group in one process, each on a thread of its own, behind one step_executor.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "core/step.hpp"
#include "models/cpu_executor.hpp"
#include "models/rank_context.hpp"

namespace troupe {

// The ranks of a group of tp_size x stages, in their order, with communicators between threads of this process. No call waits longer than
// `deadline` for a peer: it must be longer than a stage's longest step.
std::vector<rank_context> make_local_ranks(int tp_size, int stages, std::chrono::milliseconds deadline);

// Makes all ranks at once, each on its own thread, and gives each plan to all of them; what the leader answers is delivered, from its
// thread. A rank that fails ends the group: every further plan is a step_failure. Throws what a rank's making threw.
std::unique_ptr<step_executor> make_group_executor(const std::vector<rank_context>& ranks,
                                                   const std::function<std::unique_ptr<step_executor>(const rank_context&)>& make_rank);

// A group on this machine's CPU; a size of 1 is a plain CPU executor. `options` are each rank's own, but that threads = 0 shares this
// machine's cores out to them; `draft` is a draft model beside the leader, or null. Throws load_error, with the numbers, also where all
// together need more memory than there is.
std::unique_ptr<step_executor> make_cpu_group_executor(const std::shared_ptr<const model_weights>& whole, cpu_executor_options options,
                                                       int tp_size, int stages, std::chrono::milliseconds deadline,
                                                       const std::shared_ptr<const model_weights>& draft = nullptr);

} // namespace troupe
