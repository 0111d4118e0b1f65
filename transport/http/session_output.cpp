// What a connection sends, and its deadlines.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

#include "transport/http/exchange.hpp"
#include "transport/http/http_head.hpp"
#include "transport/http/http_session.hpp"

namespace troupe::http {

namespace {

namespace asio = boost::asio;

} // namespace

// --- writing ---

// Takes what the channel holds, once the bytes before it are written. A client that reads nothing may never let that happen.
void http_session::pump() {
  if (phase_ != phase::answering) return;
  if (writing_) {
    if (exchange_.channel->has_overflowed()) drop_slow_reader();
    return;
  }
  if (exchange_.answer_written) return end_exchange();
  auto out = exchange_.channel->take();
  if (out.overflowed) return drop_slow_reader();
  std::string bytes;
  const bool last = stopping_ || context_.routes.is_draining();
  if (out.whole) {
    bytes = whole_bytes(exchange_, *out.whole, last);
  } else if (out.streaming) {
    bytes = stream_bytes(exchange_, out, last);
  }
  if (!bytes.empty()) {
    write(std::move(bytes));
  } else if (exchange_.answer_written) {
    end_exchange();
  }
}

void http_session::write(std::string bytes) {
  output_ = std::move(bytes);
  written_ = 0;
  writing_ = true;
  write_next();
}

void http_session::write_next() {
  write_deadline_ = clock::now() + context_.limits.write_timeout;
  watch_deadlines();
  socket_.async_write_some(asio::buffer(output_.data() + written_, output_.size() - written_), handler(&http_session::on_written));
}

void http_session::on_written(error_code ec, std::size_t bytes) {
  if (phase_ == phase::closed) return;
  if (ec) return lose_client();
  written_ += bytes;
  if (written_ < output_.size()) return write_next();
  writing_ = false;
  write_deadline_ = kNever;
  if (phase_ != phase::answering) return; // 100 Continue
  exchange_.channel->sent(std::exchange(exchange_.events_in_flight, 0));
  pump();
}

// --- deadlines: one timer for both sides; a deadline that moves back costs no call ---

void http_session::set_read_deadline(std::chrono::seconds limit) {
  read_deadline_ = clock::now() + limit;
  watch_deadlines();
}

void http_session::watch_deadlines() {
  const auto next = std::min(read_deadline_, write_deadline_);
  if (next == kNever || phase_ == phase::closed) return;
  if (timer_.expiry() > clock::now() && timer_.expiry() <= next) return; // it fires early enough, and looks again then
  timer_.expires_at(next);
  timer_.async_wait(handler(&http_session::on_timer));
}

void http_session::on_timer(error_code ec) {
  if (ec || phase_ == phase::closed) return;
  const auto now = clock::now();
  if (write_deadline_ <= now) return drop_slow_reader();
  if (read_deadline_ <= now) return on_read_timeout();
  watch_deadlines();
}

void http_session::on_read_timeout() {
  read_deadline_ = kNever;
  if (phase_ != phase::header && phase_ != phase::body) return close();
  if (exchange_.channel == nullptr) open_exchange();
  reply refusal = error_reply(invalid_request("", "the request did not arrive in time"), 408);
  refusal.close = true;
  refuse_request(std::move(refusal));
}

} // namespace troupe::http
