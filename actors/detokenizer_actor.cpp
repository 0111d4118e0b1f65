#include "actors/detokenizer_actor.hpp"

#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <string_view>
#include <utility>

namespace troupe::actors {

namespace {

using self_pointer = actor_pointer<detokenizer_actor, detokenizer_state>;
using open_iterator = std::map<request_id, request_output>::iterator;

void append(std::vector<sequence_id>& to, const std::vector<sequence_id>& ids) { to.insert(to.end(), ids.begin(), ids.end()); }

// A request may move from one scheduler to another, so all are told; those that do not know it ignore it.
void tell_schedulers(self_pointer self, const std::vector<sequence_id>& ended) {
  if (ended.empty()) return;
  for (const scheduler_actor& scheduler : self->state.schedulers) self->send(scheduler, remove_sequences{ended});
}

void open(self_pointer self, open_request& request) {
  auto& s = self->state;
  const request_id id = request.id;
  auto sink = s.shared->registry.find(id);
  if (sink == nullptr) return;
  s.open.try_emplace(id, std::move(request), s.shared->parts.tokens, std::move(sink), s.shared->parts.metrics);
}

void trace_first_token(const detokenizer_state& s, open_iterator at) {
  const auto& timeline = s.shared->parts.timeline;
  if (timeline && at->second.moments().first_token_ns != 0) timeline->first_token(at->first, at->second.moments());
}

void trace_end(const detokenizer_state& s, open_iterator at, std::uint64_t now, std::string_view how) {
  const auto& timeline = s.shared->parts.timeline;
  if (timeline) timeline->ended(at->first, at->second.moments(), now, at->second.usage().completion_tokens, how);
}

// The last call of a request's sink, whichever it is, is made in one of these two.
void finish(detokenizer_state& s, open_iterator at, std::uint64_t now) {
  const auto usage = at->second.usage();
  auto& metrics = *s.shared->parts.metrics;
  metrics.tokens(0, 0, usage.cached_tokens);
  auto sink = s.shared->registry.take(at->first);
  if (sink != nullptr) {
    const auto how = at->second.outcome();
    metrics.request_finished(how, at->second.times(now));
    trace_end(s, at, now, how == telemetry::outcome::length ? "length" : "stop");
    sink->on_finished(usage);
  }
  s.open.erase(at);
}

std::vector<sequence_id> fail(detokenizer_state& s, open_iterator at, const error& reason) {
  auto left = at->second.open_sequences();
  const std::uint64_t now = now_ns();
  end_with_error(*s.shared, at->first, reason, at->second.times(now));
  trace_end(s, at, now, reason.kind == error_kind::cancelled ? "cancelled" : "failed");
  s.open.erase(at);
  return left;
}

void absorb(self_pointer self, step_updates& batch) {
  auto& s = self->state;
  std::vector<sequence_id> ended;
  for (sequence_update& update : batch.updates) {
    auto at = s.open.find(update.id.request);
    if (at == s.open.end()) { // cancelled meanwhile, perhaps on its way from one scheduler to another
      if (!update.finish) ended.push_back(update.id);
      continue;
    }
    if (auto failure = at->second.failure(update)) {
      append(ended, fail(s, at, *failure));
      continue;
    }
    const bool first = at->second.moments().first_token_ns == 0;
    if (at->second.absorb(update, batch.now_ns)) ended.push_back(update.id);
    if (first) trace_first_token(s, at);
    if (at->second.ended()) finish(s, at, batch.now_ns);
  }
  tell_schedulers(self, ended);
}

void fail_one(self_pointer self, request_id id, const error& reason) {
  auto& s = self->state;
  if (auto at = s.open.find(id); at != s.open.end()) tell_schedulers(self, fail(s, at, reason));
}

void fail_everything(self_pointer self, const error& reason) {
  auto& s = self->state;
  std::vector<sequence_id> left;
  while (!s.open.empty()) append(left, fail(s, s.open.begin(), reason));
  tell_schedulers(self, left);
}

} // namespace

detokenizer_actor::behavior_type run_detokenizer(self_pointer self, shared_state shared) {
  self->state.shared = std::move(shared);
  return {
      [self](caf::join_atom, scheduler_actor& scheduler) { self->state.schedulers.push_back(std::move(scheduler)); },
      [self](open_request& request) { open(self, request); },
      [self](const refuse_request& refused) { fail_one(self, refused.id, refused.reason); },
      [self](step_updates& batch) { absorb(self, batch); },
      [self](const cancel_request& c) {
        fail_one(self, c.id, {error_kind::cancelled, "the request was cancelled", "", std::nullopt});
      },
      [self](const end_all& all) { fail_everything(self, all.reason); },
  };
}

} // namespace troupe::actors
