// How core and scheduler types travel in messages: one inspect function each. No floating point ever reaches a serializer (a remote
// infinity hangs CAF 0.17's network thread and NaN arrives as 1): floats travel as their bits.
#pragma once

#include <bit>
#include <caf/error.hpp>
#include <caf/meta/load_callback.hpp>
#include <caf/meta/type_name.hpp>
#include <caf/sec.hpp>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/request.hpp"
#include "core/step.hpp"
#include "scheduler/sequence.hpp"

namespace troupe {

namespace wire {

inline std::uint32_t to_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float to_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

template <class T>
std::pair<bool, T> to_pair(const std::optional<T>& x) {
  return {x.has_value(), x.value_or(T{})};
}

template <class T>
std::optional<T> to_optional(std::pair<bool, T>& x) {
  if (!x.first) return std::nullopt;
  return std::move(x.second);
}

// Runs `load` after the fields before it were read; no effect when they are being written.
template <class F>
auto after_load(F load) {
  return caf::meta::load_callback([load]() mutable {
    load();
    return caf::error{};
  });
}

} // namespace wire

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sequence_id& x) {
  return f(caf::meta::type_name("sequence_id"), x.request, x.index);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, error& x) {
  auto retry = wire::to_pair(x.retry_after_seconds);
  return f(caf::meta::type_name("error"), x.kind, x.message, x.param, retry,
           wire::after_load([&] { x.retry_after_seconds = wire::to_optional(retry); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, token_bias& x) {
  auto bias = wire::to_bits(x.bias);
  return f(caf::meta::type_name("token_bias"), x.token, bias, wire::after_load([&] { x.bias = wire::to_float(bias); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sampling_params& x) {
  auto temperature = wire::to_bits(x.temperature);
  auto top_p = wire::to_bits(x.top_p);
  auto min_p = wire::to_bits(x.min_p);
  auto repetition = wire::to_bits(x.repetition_penalty);
  auto presence = wire::to_bits(x.presence_penalty);
  auto frequency = wire::to_bits(x.frequency_penalty);
  auto top_logprobs = wire::to_pair(x.top_logprobs);
  return f(caf::meta::type_name("sampling_params"), temperature, top_p, min_p, x.top_k, repetition, presence, frequency, x.seed,
           x.logit_bias, x.min_tokens, x.suppressed, top_logprobs, wire::after_load([&] {
             x.temperature = wire::to_float(temperature);
             x.top_p = wire::to_float(top_p);
             x.min_p = wire::to_float(min_p);
             x.repetition_penalty = wire::to_float(repetition);
             x.presence_penalty = wire::to_float(presence);
             x.frequency_penalty = wire::to_float(frequency);
             x.top_logprobs = wire::to_optional(top_logprobs);
           }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stop_conditions& x) {
  return f(caf::meta::type_name("stop_conditions"), x.max_tokens, x.min_tokens, x.stop_token_ids, x.stop_strings, x.include_stop_string);
}

// -- requests -----------------------------------------------------------------------------------------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, chat_prompt& x) {
  return f(caf::meta::type_name("chat_prompt"), x.messages_json, x.tools_json, x.template_kwargs_json, x.add_generation_prompt);
}

// A prompt as (alternative, text, tokens, chat); the alternatives not held are empty.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, prompt& x) {
  auto kind = static_cast<std::uint8_t>(x.index());
  auto* held_text = std::get_if<std::string>(&x);
  auto* held_tokens = std::get_if<token_prompt>(&x);
  auto* held_chat = std::get_if<chat_prompt>(&x);
  std::string text = held_text != nullptr ? *held_text : std::string{};
  token_prompt tokens = held_tokens != nullptr ? *held_tokens : token_prompt{};
  chat_prompt chat = held_chat != nullptr ? *held_chat : chat_prompt{};
  return f(caf::meta::type_name("prompt"), kind, text, tokens, chat, wire::after_load([&] {
             if (kind == 0) x = std::move(text);
             if (kind == 1) x = std::move(tokens);
             if (kind == 2) x = std::move(chat);
           }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, generation_request& x) {
  auto max_tokens = wire::to_pair(x.max_tokens);
  auto seed = wire::to_pair(x.seed);
  auto queue_timeout = wire::to_pair(x.queue_timeout_ns);
  auto timeout = wire::to_pair(x.timeout_ns);
  auto prompt_logprobs = wire::to_pair(x.prompt_logprobs);
  return f(caf::meta::type_name("generation_request"), x.id, x.arrival_ns, x.model, x.prompts, x.add_special_tokens, x.n, max_tokens,
           x.sampling, seed, x.min_tokens, x.ignore_eos, x.stop_token_ids, x.stop_strings, x.include_stop_string, x.echo, prompt_logprobs,
           x.priority, queue_timeout, timeout, x.cache_salt, wire::after_load([&] {
             x.queue_timeout_ns = wire::to_optional(queue_timeout);
             x.timeout_ns = wire::to_optional(timeout);
             x.max_tokens = wire::to_optional(max_tokens);
             x.seed = wire::to_optional(seed);
             x.prompt_logprobs = wire::to_optional(prompt_logprobs);
           }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sequence_request& x) {
  auto prompt_logprobs = wire::to_pair(x.prompt_logprobs);
  auto same_prompt_as = wire::to_pair(x.same_prompt_as);
  auto queue_deadline = wire::to_pair(x.queue_deadline_ns);
  auto total_deadline = wire::to_pair(x.total_deadline_ns);
  return f(caf::meta::type_name("sequence_request"), x.id, x.prompt, x.sampling, x.stop, prompt_logprobs, x.priority, x.arrival_ns,
           same_prompt_as, x.cache_salt, queue_deadline, total_deadline, wire::after_load([&] {
             x.queue_deadline_ns = wire::to_optional(queue_deadline);
             x.total_deadline_ns = wire::to_optional(total_deadline);
             x.prompt_logprobs = wire::to_optional(prompt_logprobs);
             x.same_prompt_as = wire::to_optional(same_prompt_as);
           }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sequence_times& x) {
  return f(caf::meta::type_name("sequence_times"), x.arrival_ns, x.scheduled_ns, x.first_token_ns, x.finished_ns);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sequence_progress& x) {
  return f(caf::meta::type_name("sequence_progress"), x.request, x.outputs, x.scored, x.cached_tokens, x.times, x.faults_in_a_row,
           x.losses_in_a_row);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sequence_update& x) {
  auto finish = wire::to_pair(x.finish);
  auto failure = wire::to_pair(x.failure);
  return f(caf::meta::type_name("sequence_update"), x.id, x.tokens, x.scores, x.prompt_scores, finish, failure, x.cached_tokens,
           x.output_tokens, x.times, wire::after_load([&] {
             x.finish = wire::to_optional(finish);
             x.failure = wire::to_optional(failure);
           }));
}

// -- the step protocol: these cross process borders -----------------------------------------------------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, executor_info& x) {
  return f(caf::meta::type_name("executor_info"), x.block_size, x.num_blocks, x.max_num_seqs, x.max_batched_tokens, x.max_model_len,
           x.vocab_size, x.max_verify_tokens, x.max_proposals);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, slot_open& x) {
  return f(caf::meta::type_name("slot_open"), x.slot, x.prompt_tokens, x.sampling);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, block_grant& x) {
  return f(caf::meta::type_name("block_grant"), x.slot, x.first_block, x.blocks);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, block_copy& x) {
  return f(caf::meta::type_name("block_copy"), x.from, x.to);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, work_item& x) {
  auto prompt_logprobs = wire::to_pair(x.prompt_logprobs);
  return f(caf::meta::type_name("work_item"), x.slot, x.kind, x.first_position, x.token_count, x.sample, prompt_logprobs, x.propose,
           wire::after_load([&] { x.prompt_logprobs = wire::to_optional(prompt_logprobs); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_plan& x) {
  return f(caf::meta::type_name("step_plan"), x.epoch, x.step, x.closed, x.opened, x.grants, x.copies, x.items, x.tokens);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, scored_token& x) {
  auto logprob = wire::to_bits(x.logprob);
  return f(caf::meta::type_name("scored_token"), x.token, logprob, wire::after_load([&] { x.logprob = wire::to_float(logprob); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, token_scores& x) {
  return f(caf::meta::type_name("token_scores"), x.chosen, x.top);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, slot_output& x) {
  return f(caf::meta::type_name("slot_output"), x.slot, x.tokens, x.scores, x.prompt_scores, x.numeric_fault, x.proposals);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, group_time& x) {
  auto group = static_cast<std::uint8_t>(x.group);
  return f(caf::meta::type_name("group_time"), group, x.ns, wire::after_load([&] { x.group = static_cast<kernel_group>(group); }));
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stage_times& x) {
  return f(caf::meta::type_name("stage_times"), x.prepare_ns, x.compute_ns, x.deliver_ns, x.prepare_at_ns, x.compute_at_ns, x.deliver_at_ns,
           x.groups, x.collective_wait_ns, x.collective_move_ns);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_result& x) {
  return f(caf::meta::type_name("step_result"), x.epoch, x.step, x.outputs, x.times);
}

} // namespace troupe
