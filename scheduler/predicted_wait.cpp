#include "scheduler/predicted_wait.hpp"

#include <algorithm>
#include <string>
#include <tuple>

namespace troupe {
namespace {

// Work in front of a new sequence.
struct queue_ahead {
  std::int64_t tokens = 0; // of prefills
  std::int64_t sequences = 0;
};

bool stands_before(const sequence_request& a, const sequence_request& b) {
  return std::tie(a.priority, a.arrival_ns, a.id) < std::tie(b.priority, b.arrival_ns, b.id);
}

std::int64_t rows_of(const sequence_request& request, std::int64_t known) { return request.same_prompt_as ? 1 : known; }

queue_ahead ahead_of(const scheduler_core& core, const sequence_request& request) {
  queue_ahead ahead;
  for (const sequence_state* s : core.sequences.running()) {
    if (s->can_prefill()) ahead.tokens += s->known() - s->planned;
  }
  for (const sequence_state* s : core.sequences.waiting()) { // in order of rank
    if (!stands_before(s->request, request)) break;
    ahead.tokens += rows_of(s->request, s->known());
    ++ahead.sequences;
  }
  return ahead;
}

std::uint32_t seconds_to_wait(std::uint64_t ns) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(ns / 1'000'000'000 + 1, 1, 3600));
}

} // namespace

std::optional<predicted_wait> predict_wait(const scheduler_core& core, const sequence_request& request) {
  const std::int64_t budget = core.config.device.max_batched_tokens;
  const queue_ahead ahead = ahead_of(core, request);
  const auto prefills = core.cost.predict_ns(ahead.tokens, budget);
  const auto own = core.cost.predict_ns(rows_of(request, static_cast<std::int64_t>(request.prompt.size())), budget);
  if (!prefills || !own) return std::nullopt;
  predicted_wait wait;
  wait.scheduled_ns = *prefills;
  // With all slots taken, one becomes free every (mean stay / slots).
  const std::int64_t lacking = ahead.sequences + 1 - core.sequences.free_slots();
  if (lacking > 0) {
    const double turnover = core.stay_ns.value() / core.config.device.max_num_seqs;
    wait.scheduled_ns = std::max(wait.scheduled_ns, static_cast<std::uint64_t>(turnover * static_cast<double>(lacking)));
  }
  wait.first_token_ns = wait.scheduled_ns + *own;
  return wait;
}

std::optional<error> refuse_if_late(const scheduler_core& core, const sequence_request& request, std::uint64_t now_ns) {
  const auto& bound = core.config.max_predicted_ttft_ns;
  if (!bound && !request.queue_deadline_ns) return std::nullopt;
  const auto wait = predict_wait(core, request);
  if (!wait) return std::nullopt;
  if (bound && wait->first_token_ns > *bound) {
    return error{error_kind::overloaded,
                 "the first token would come in about " + std::to_string(wait->first_token_ns / 1'000'000) + " ms; the server accepts " +
                     std::to_string(*bound / 1'000'000),
                 "", seconds_to_wait(wait->first_token_ns - *bound)};
  }
  if (request.queue_deadline_ns && now_ns + wait->scheduled_ns > *request.queue_deadline_ns) {
    return error{error_kind::overloaded,
                 "the request would wait for about " + std::to_string(wait->scheduled_ns / 1'000'000) + " ms, beyond its queue_timeout_ms",
                 "queue_timeout_ms", seconds_to_wait(now_ns + wait->scheduled_ns - *request.queue_deadline_ns)};
  }
  return std::nullopt;
}

} // namespace troupe
