#include "actors/request_registry.hpp"

#include <string>
#include <utility>

namespace troupe::actors {

void request_registry::pending_call::fail(const error& reason) const {
  if (tokenized) tokenized(reason);
  if (detokenized) detokenized(reason);
}

std::optional<error> request_registry::refusal(std::int64_t choices, std::size_t prompt_bytes) const {
  if (closed_) return error{error_kind::unavailable, "the server is stopping", "", std::nullopt};
  if (choices > bounds_.choices) { // waiting would not help
    return invalid_request(
        "n", "n times the prompts is " + std::to_string(choices) + "; the whole queue holds " + std::to_string(bounds_.choices));
  }
  if (choices > bounds_.choices - queued_choices_ || prompt_bytes > bounds_.prompt_bytes - queued_bytes_) {
    return error{error_kind::overloaded, "the queue is full", "", 1};
  }
  return std::nullopt;
}

std::optional<error> request_registry::add(request_id id, std::shared_ptr<token_sink> sink, std::int64_t choices,
                                           std::size_t prompt_bytes) {
  const std::lock_guard lock(mutex_);
  if (id == 0 || requests_.contains(id)) return error{error_kind::internal, "the request's id is in use", "", std::nullopt};
  if (auto refused = refusal(choices, prompt_bytes)) return refused;
  queued_choices_ += choices;
  queued_bytes_ += prompt_bytes;
  requests_.emplace(id, entry{std::move(sink), choices, prompt_bytes, false, 0});
  return std::nullopt;
}

void request_registry::leave_queue(const entry& e) {
  if (e.in_engine) return;
  queued_choices_ -= e.choices;
  queued_bytes_ -= e.prompt_bytes;
}

void request_registry::enter_engine(request_id id, std::int32_t replica, std::uint64_t now_ns) {
  const std::lock_guard lock(mutex_);
  auto found = requests_.find(id);
  if (found == requests_.end() || found->second.in_engine) return;
  leave_queue(found->second);
  found->second.in_engine = true;
  found->second.replica = static_cast<std::size_t>(replica);
  loads_[found->second.replica] += found->second.choices;
  if (++in_engine_ == 1) busy_since_ns_ = now_ns;
}

bool request_registry::move(request_id id, std::int32_t replica) {
  const std::lock_guard lock(mutex_);
  auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  loads_[found->second.replica] -= found->second.choices;
  found->second.replica = static_cast<std::size_t>(replica);
  loads_[found->second.replica] += found->second.choices;
  return true;
}

std::shared_ptr<token_sink> request_registry::find(request_id id) const {
  const std::lock_guard lock(mutex_);
  auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.sink;
}

std::shared_ptr<token_sink> request_registry::take(request_id id) {
  const std::lock_guard lock(mutex_);
  auto found = requests_.find(id);
  if (found == requests_.end()) return nullptr;
  leave_queue(found->second);
  if (found->second.in_engine) {
    --in_engine_;
    loads_[found->second.replica] -= found->second.choices;
  }
  auto sink = std::move(found->second.sink);
  requests_.erase(found);
  return sink;
}

std::vector<request_id> request_registry::ids(bool in_engine) const {
  const std::lock_guard lock(mutex_);
  std::vector<request_id> found;
  for (const auto& [id, e] : requests_) {
    if (e.in_engine == in_engine) found.push_back(id);
  }
  return found;
}

std::optional<error> request_registry::add_call(pending_call call, std::uint64_t& number) {
  const std::lock_guard lock(mutex_);
  if (auto refused = refusal(1, call.bytes)) return refused;
  ++queued_choices_;
  queued_bytes_ += call.bytes;
  number = ++last_call_;
  calls_.emplace(number, std::move(call));
  return std::nullopt;
}

std::optional<request_registry::pending_call> request_registry::take_call(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  auto found = calls_.find(number);
  if (found == calls_.end()) return std::nullopt;
  --queued_choices_;
  queued_bytes_ -= found->second.bytes;
  std::optional<pending_call> call(std::move(found->second));
  calls_.erase(found);
  return call;
}

std::vector<std::uint64_t> request_registry::calls() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> numbers;
  for (const auto& item : calls_) numbers.push_back(item.first);
  return numbers;
}

void request_registry::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

std::size_t request_registry::active_requests() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

std::optional<std::uint64_t> request_registry::busy_since() const {
  const std::lock_guard lock(mutex_);
  return in_engine_ == 0 ? std::nullopt : std::optional(busy_since_ns_);
}

std::int64_t request_registry::load(std::int32_t replica) const {
  const std::lock_guard lock(mutex_);
  return loads_[static_cast<std::size_t>(replica)];
}

} // namespace troupe::actors
