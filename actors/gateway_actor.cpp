#include "actors/gateway_actor.hpp"

#include <algorithm>
#include <caf/spawn_options.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <utility>

#include "actors/admission.hpp"
#include "actors/tokenizer_actor.hpp"

namespace troupe::actors {

namespace {

using self_pointer = actor_pointer<gateway_actor, gateway_state>;

constexpr std::chrono::seconds kTokenizeDeadline{60};
constexpr std::chrono::milliseconds kDeadlineTick{100}; // how late a request's deadline may be noticed

void work(self_pointer self);

const error tokenizer_is_late{error_kind::timed_out, "tokenizing took too long", "", std::nullopt};

void end_request(gateway_state& s, request_id id, const error& reason) {
  if (s.requests.erase(id) != 0) end_with_error(*s.shared, id, reason);
}

replica_router& router_of(gateway_state& s) {
  if (!s.router) {
    router_config config{static_cast<std::int32_t>(s.schedulers.size()), s.shared->block_size, 0, {}};
    if (s.shared->options.prefix_caching) config.num_blocks = s.shared->num_blocks;
    for (std::uint64_t& half : config.hash_key) half = s.seeds();
    s.router.emplace(config);
    s.losses_seen.assign(s.schedulers.size(), 0);
  }
  for (std::size_t r = 0; r < s.losses_seen.size(); ++r) {
    const std::uint64_t losses = s.shared->health.losses(static_cast<std::int32_t>(r));
    if (std::exchange(s.losses_seen[r], losses) != losses) s.router->forget(r);
  }
  return *s.router;
}

std::size_t choose_replica(gateway_state& s, const sequence_request& first) {
  if (s.schedulers.size() == 1) return 0;
  std::vector<replica_load> loads;
  for (std::int32_t r = 0; r < static_cast<std::int32_t>(s.schedulers.size()); ++r) {
    loads.push_back({s.shared->health.is_up(r), s.shared->registry.load(r)});
  }
  return router_of(s).choose(first.prompt, first.cache_salt, loads);
}

// Tokens are there: refuse the request, or hand it on.
void admit(self_pointer self, request_id id, encode_done& done) {
  auto& s = self->state;
  auto found = s.requests.find(id);
  if (found == s.requests.end()) return; // cancelled meanwhile
  if (!done.failure.empty()) return end_request(s, id, done.failure.front());
  const generation_request& request = found->second;
  auto sequences = expand(request, done.prompts, s.shared->model, s.eos, request.seed ? *request.seed : s.seeds());
  if (!sequences) return end_request(s, id, sequences.failure());
  auto open = describe(request, std::move(done.prompts), sequences->front().stop);
  s.requests.erase(found);
  const std::size_t replica = choose_replica(s, sequences->front());
  s.shared->registry.enter_engine(id, static_cast<std::int32_t>(replica), now_ns());
  self->send(s.detokenizer, std::move(open)); // first: no update may find the request unknown
  self->send(s.schedulers[replica], add_sequences{std::move(*sequences)});
}

// All choices of a request go to the same replica. One that ended meanwhile goes nowhere.
void place_again(self_pointer self, moved_sequences& moved) {
  auto& s = self->state;
  std::map<request_id, std::vector<sequence_progress>> by_request;
  for (sequence_progress& sequence : moved.sequences) by_request[sequence.request.id.request].push_back(std::move(sequence));
  for (auto& [id, sequences] : by_request) {
    const std::size_t replica = choose_replica(s, sequences.front().request);
    if (!s.shared->registry.move(id, static_cast<std::int32_t>(replica))) continue;
    if (static_cast<std::int32_t>(replica) != moved.from) s.shared->parts.metrics->moved(static_cast<std::int64_t>(sequences.size()));
    self->send(s.schedulers[replica], moved_sequences{moved.from, std::move(sequences)});
  }
}

void answer(gateway_state& s, std::uint64_t call, encode_done& done) {
  auto pending = s.shared->registry.take_call(call);
  if (!pending) return;
  if (!done.failure.empty()) return pending->fail(done.failure.front());
  auto& encoded = done.prompts.front();
  pending->tokenized(tokenize_reply{std::move(encoded.tokens), std::move(encoded.token_bytes), s.shared->model.max_model_len});
}

void answer(gateway_state& s, std::uint64_t call, decode_done& done) {
  auto pending = s.shared->registry.take_call(call);
  if (!pending) return;
  if (!done.failure.empty()) return pending->fail(done.failure.front());
  pending->detokenized(std::move(done.text));
}

tokenizer_actor take_worker(gateway_state& s) {
  auto worker = std::move(s.idle.back());
  s.idle.pop_back();
  return worker;
}

// Sends `job`; `done` gets the reply, or one that says that it is late. A late worker
// still works on its job, so it is the last to get another.
template <class Done, class Job, class F>
void ask_worker(self_pointer self, Job job, F done) {
  auto worker = take_worker(self->state);
  self->request(worker, kTokenizeDeadline, std::move(job))
      .then(
          [self, worker, done](Done& reply) {
            self->state.idle.push_back(worker);
            done(reply);
            work(self);
          },
          [self, worker, done](caf::error&) {
            self->state.idle.insert(self->state.idle.begin(), worker);
            Done late{{}, {tokenizer_is_late}};
            done(late);
            work(self);
          });
}

void start_job(self_pointer self, const request_job& job) {
  auto found = self->state.requests.find(job.id);
  if (found == self->state.requests.end()) return; // cancelled while it waited
  auto& request = found->second;
  const bool chat = std::holds_alternative<chat_prompt>(request.prompts.front());
  encode_job encode{std::move(request.prompts), request.add_special_tokens, request.echo};
  request.prompts.assign(1, chat ? prompt(chat_prompt{}) : prompt(std::string{})); // error messages tell one from the other
  ask_worker<encode_done>(self, std::move(encode), [self, id = job.id](encode_done& done) { admit(self, id, done); });
}

void start_job(self_pointer self, tokenize_call& job) {
  encode_job encode{{std::move(job.input)}, job.add_special_tokens, true};
  ask_worker<encode_done>(self, std::move(encode), [self, call = job.call](encode_done& done) { answer(self->state, call, done); });
}

void start_job(self_pointer self, detokenize_call& job) {
  ask_worker<decode_done>(self, decode_job{std::move(job.tokens)},
                          [self, call = job.call](decode_done& done) { answer(self->state, call, done); });
}

void work(self_pointer self) {
  auto& s = self->state;
  while (!s.idle.empty() && !s.jobs.empty()) {
    auto job = std::move(s.jobs.front());
    s.jobs.pop_front();
    std::visit([self](auto& j) { start_job(self, j); }, job);
  }
}

// One timer while anybody here has a deadline, however many do.
void watch_deadlines(self_pointer self) {
  auto& s = self->state;
  const bool any = std::any_of(s.requests.begin(), s.requests.end(), [](const auto& r) { return gateway_deadline(r.second) != kNever; });
  if (any && !std::exchange(s.ticking, true)) self->delayed_send(self, kDeadlineTick, caf::tick_atom::value);
}

void take(self_pointer self, generation_request& request) {
  auto& s = self->state;
  const request_id id = request.id;
  s.requests.emplace(id, std::move(request));
  if (s.ended) return end_request(s, id, *s.ended);
  s.jobs.emplace_back(request_job{id});
  work(self);
  watch_deadlines(self);
}

template <class Call>
void take_call(self_pointer self, Call& call) {
  auto& s = self->state;
  if (s.ended) {
    if (auto pending = s.shared->registry.take_call(call.call)) pending->fail(*s.ended);
    return;
  }
  s.jobs.emplace_back(std::move(call));
  work(self);
}

void cancel(self_pointer self, const cancel_request& c) {
  auto& s = self->state;
  if (s.requests.contains(c.id)) {
    end_request(s, c.id, {error_kind::cancelled, "the request was cancelled", "", std::nullopt});
  } else {
    self->send(s.detokenizer, c);
  }
}

void expire(self_pointer self) {
  auto& s = self->state;
  s.ticking = false;
  const std::uint64_t now = now_ns();
  std::vector<std::pair<request_id, error>> late;
  for (const auto& [id, request] : s.requests) {
    if (gateway_deadline(request) <= now) late.emplace_back(id, gateway_timeout(request));
  }
  for (const auto& [id, reason] : late) end_request(s, id, reason);
  watch_deadlines(self);
}

void stop_all(self_pointer self, const end_all& all) {
  auto& s = self->state;
  s.ended = all.reason;
  s.jobs.clear();
  while (!s.requests.empty()) end_request(s, s.requests.begin()->first, all.reason);
  for (const std::uint64_t call : s.shared->registry.calls()) {
    if (auto pending = s.shared->registry.take_call(call)) pending->fail(all.reason);
  }
  self->send(s.detokenizer, all);
}

} // namespace

gateway_actor::behavior_type run_gateway(self_pointer self, shared_state shared, std::vector<scheduler_actor> schedulers,
                                         detokenizer_actor detokenizer) {
  auto& s = self->state;
  s.eos = shared->options.eos_tokens.empty() ? shared->parts.tokens->eos() : shared->options.eos_tokens;
  for (std::int32_t i = 0; i < std::max(1, shared->options.tokenizer_workers); ++i) {
    // Linked: they go with the gateway. They catch what they throw, so they do not take it with them.
    s.idle.push_back(self->spawn<caf::linked + caf::detached>(run_tokenizer, shared));
  }
  s.shared = std::move(shared);
  s.schedulers = std::move(schedulers);
  s.detokenizer = std::move(detokenizer);
  return {
      [self](generation_request& request) { take(self, request); }, [self](tokenize_call& call) { take_call(self, call); },
      [self](detokenize_call& call) { take_call(self, call); },     [self](const cancel_request& c) { cancel(self, c); },
      [self](moved_sequences& moved) { place_again(self, moved); }, [self](caf::tick_atom) { expire(self); },
      [self](const end_all& all) { stop_all(self, all); },
  };
}

} // namespace troupe::actors
