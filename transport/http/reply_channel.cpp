#include "transport/http/reply_channel.hpp"

#include <algorithm>
#include <utility>

#include "transport/http/openai_response.hpp"

namespace troupe::http {

reply error_reply(const error& failure, int status) {
  reply out;
  out.status = status;
  out.body = error_body(failure, status);
  if (failure.retry_after_seconds) out.header_lines = "Retry-After: " + std::to_string(*failure.retry_after_seconds) + "\r\n";
  return out;
}

reply error_reply(const error& failure) { return error_reply(failure, status_of(failure.kind)); }

bool reply_channel::is_open() const {
  const std::lock_guard guard(lock_);
  return !ended_ && !detached_ && !overflowed_;
}

void reply_channel::answer(reply whole) {
  const std::lock_guard guard(lock_);
  if (ended_ || detached_ || streaming_) return;
  whole_ = std::move(whole);
  ended_ = true;
  wake();
}

void reply_channel::stream(std::string_view events) {
  const std::lock_guard guard(lock_);
  if (!ended_) append(events);
}

void reply_channel::end_stream(std::string_view last_events) {
  const std::lock_guard guard(lock_);
  if (ended_) return;
  append(last_events);
  ended_ = true;
}

void reply_channel::fail(const error& failure) {
  const std::lock_guard guard(lock_);
  if (ended_ || detached_) return;
  if (streaming_) {
    events_ += error_event(failure); // past the limit too: it is the last one
  } else {
    whole_ = error_reply(failure);
  }
  ended_ = failed_ = true;
  wake();
}

void reply_channel::append(std::string_view events) {
  if (detached_ || overflowed_) return;
  streaming_ = true;
  if (unsent_ > unsent_limit_) {
    overflowed_ = true;
    events_ = {};
    woken_ = false; // the last wake may have been left until a write is done, which now may never be
  } else {
    events_ += events;
    unsent_ += events.size();
  }
  wake();
}

void reply_channel::wake() {
  if (!wake_ || woken_) return;
  wake_();
  woken_ = true; // not before: a wake that threw must be tried again
}

void reply_channel::attach(std::function<void()> wake) {
  const std::lock_guard guard(lock_);
  wake_ = std::move(wake);
}

void reply_channel::detach() {
  const std::lock_guard guard(lock_);
  wake_ = nullptr;
  detached_ = true;
  events_ = {};
}

reply_channel::output reply_channel::take() {
  const std::lock_guard guard(lock_);
  woken_ = false;
  output out;
  out.whole = std::exchange(whole_, std::nullopt);
  out.events = std::exchange(events_, {});
  out.streaming = streaming_;
  out.ended = ended_;
  out.failed = failed_;
  out.overflowed = overflowed_;
  return out;
}

void reply_channel::sent(std::size_t event_bytes) {
  const std::lock_guard guard(lock_);
  unsent_ -= std::min(unsent_, event_bytes);
}

bool reply_channel::has_ended() const {
  const std::lock_guard guard(lock_);
  return ended_;
}

bool reply_channel::has_overflowed() const {
  const std::lock_guard guard(lock_);
  return overflowed_;
}

} // namespace troupe::http
