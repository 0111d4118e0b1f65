#include <utility>

#include "tests/actors/fake_tokenizer.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::test {

namespace {

std::shared_ptr<const tokenizer> bytes() {
  static const auto shared = std::make_shared<const byte_tokenizer>();
  return shared;
}

std::shared_ptr<telemetry::metrics> counters() { // of all worlds together; nothing here reads them
  static const auto shared = std::make_shared<telemetry::metrics>("simulated", "0", [](std::string_view) {});
  return shared;
}

} // namespace

void world::submit(const client_plan& client) {
  const request_id id = client.request.id;
  auto sink = std::make_shared<checking_sink>(client.request, scene_.device);
  sinks_.emplace(id, sink);
  note("client sends request", id);
  if (failed_) return sink->on_error({error_kind::unavailable, "the device was lost too often", "", std::nullopt});
  if (auto bad = actors::check_request(client.request, model_)) return sink->on_error(*bad);
  std::size_t prompt_bytes = 0;
  for (const prompt& p : client.request.prompts) prompt_bytes += actors::prompt_bytes_of(p);
  if (auto refused = registry_.add(id, sink, actors::choices_of(client.request), prompt_bytes)) {
    note("registry refuses", id);
    return sink->on_error(*refused);
  }
  gateway_.send([this, request = client.request] { take(request); });
}

void world::take(generation_request request) {
  const request_id id = request.id;
  requests_.emplace(id, std::move(request));
  if (!ended_by_) {
    jobs_.push_back(id);
    return tokenize_next();
  }
  requests_.erase(id);
  end_with_error(id, *ended_by_);
}

void world::tokenize_next() {
  while (idle_tokenizers_ > 0 && !jobs_.empty()) {
    const request_id id = jobs_.front();
    jobs_.pop_front();
    if (!requests_.contains(id)) continue; // cancelled while it waited
    --idle_tokenizers_;
    queue_.after(random_.below(5 * kMs), [this, id] {
      gateway_.send([this, id] {
        ++idle_tokenizers_;
        admit(id);
        tokenize_next();
      });
    });
  }
}

void world::admit(request_id id) {
  auto found = requests_.find(id);
  if (found == requests_.end()) return; // cancelled meanwhile
  const generation_request request = std::move(found->second);
  requests_.erase(found);
  std::vector<actors::encoded_prompt> prompts;
  for (const prompt& p : request.prompts) {
    actors::encoded_prompt e;
    e.tokens = std::get<token_prompt>(p);
    prompts.push_back(std::move(e));
  }
  auto sequences = actors::expand(request, prompts, model_, {}, *request.seed);
  if (!sequences) {
    note("gateway refuses", id);
    return end_with_error(id, sequences.failure());
  }
  auto opened = actors::describe(request, std::move(prompts), sequences->front().stop);
  registry_.enter_engine(id, 0, queue_.now());
  note("gateway admits", id, sequences->size());
  detokenizer_.send([this, opened] { open(opened); });
  scheduler_.send([this, added = *sequences] { add_sequences(added); });
}

void world::cancel(request_id id) {
  left_.insert(id);
  note("client leaves", id);
  gateway_.send([this, id] {
    const error gone{error_kind::cancelled, "the request was cancelled", "", std::nullopt};
    if (requests_.erase(id) != 0) return end_with_error(id, gone);
    detokenizer_.send([this, id, gone] { fail_open(id, gone); });
  });
}

void world::end_everything(const error& reason) {
  ended_by_ = reason;
  jobs_.clear();
  for (const auto& [id, request] : std::exchange(requests_, {})) end_with_error(id, reason);
  detokenizer_.send([this, reason] {
    while (!open_.empty()) fail_open(open_.begin()->first, reason);
  });
}

void world::end_with_error(request_id id, const error& reason) {
  auto sink = registry_.take(id);
  if (sink == nullptr) return;
  note("error", id, static_cast<std::uint64_t>(reason.kind));
  sink->on_error(reason);
}

void world::open(actors::open_request request) {
  const request_id id = request.id;
  auto sink = registry_.find(id);
  if (sink == nullptr) return;
  open_.try_emplace(id, std::move(request), bytes(), std::move(sink), counters());
}

void world::absorb_updates(std::vector<sequence_update> updates, std::uint64_t sent_ns) {
  std::vector<sequence_id> ended;
  for (sequence_update& u : updates) {
    auto at = open_.find(u.id.request);
    if (at == open_.end()) continue; // cancelled meanwhile
    if (auto failure = at->second.failure(u)) {
      fail_open(u.id.request, *failure);
      continue;
    }
    if (at->second.absorb(u, sent_ns)) ended.push_back(u.id);
    if (!at->second.ended()) continue;
    note("finished", u.id.request);
    if (auto sink = registry_.take(at->first)) sink->on_finished(at->second.usage());
    open_.erase(at);
  }
  remove_later(std::move(ended));
}

void world::fail_open(request_id id, const error& reason) {
  auto at = open_.find(id);
  if (at == open_.end()) return;
  auto left = at->second.open_sequences();
  end_with_error(id, reason);
  open_.erase(at);
  remove_later(std::move(left));
}

void world::remove_later(std::vector<sequence_id> ids) {
  if (ids.empty()) return;
  scheduler_.send([this, ids = std::move(ids)] {
    for (const sequence_id& id : ids) core_.remove(id);
    pump();
  });
}

} // namespace troupe::test
