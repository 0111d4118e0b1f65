#include "transport/http/session.hpp"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <utility>

#include "transport/http/exchange.hpp"
#include "transport/http/http_head.hpp"

namespace troupe::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using clock = std::chrono::steady_clock;

constexpr clock::time_point kNever = clock::time_point::max();
constexpr std::chrono::seconds kLingerTime{2};
constexpr std::size_t kLingerBytes = 32U << 20;
constexpr std::size_t kRead = 16U << 10; // bytes asked of the socket at once
constexpr int kSendBuffer = 256 << 10;   // bounds what the kernel holds for a client that does not read
constexpr int kClientGone = 499;         // for the hooks only: no such status is ever sent

// Everything below runs on the connection's strand, except the three functions of `session`.
class http_session final : public session, public std::enable_shared_from_this<http_session> {
 public:
  http_session(session_context& context, int native_socket, bool is_v6, bool refuse, std::function<void()> on_closed)
      : context_(context),
        socket_(asio::make_strand(context.io), is_v6 ? tcp::v6() : tcp::v4(), native_socket),
        timer_(socket_.get_executor()),
        reader_(context.limits),
        refuse_(refuse),
        on_closed_(std::move(on_closed)) {}
  ~http_session() override { leave(); }

  void start() override;
  void shut_down() override;
  void abort() override;

 private:
  enum class phase { idle, header, body, answering, lingering, closed };

  // A completion handler that keeps the session alive and lets nothing escape into the io thread.
  template <class... Args>
  auto handler(void (http_session::*then)(Args...)) {
    return [self = shared_from_this(), then](Args... args) {
      try {
        (self.get()->*then)(args...);
      } catch (const std::exception&) {
        self->lose_client();
      }
    };
  }

  void begin();
  void begin_request();
  void read_more();
  void on_read(error_code ec, std::size_t bytes);
  void on_input_end(error_code ec);
  void advance();
  bool on_header();
  void on_request();
  void open_exchange();
  void refuse_request(reply refusal);
  void refuse_broken_request();

  void pump();
  void write(std::string bytes);
  void write_next();
  void on_written(error_code ec, std::size_t bytes);

  void end_exchange();
  void report(int status);
  void lose_client();
  void drop_slow_reader();
  void linger();
  void end_now();
  void close();
  void leave() noexcept;

  void set_read_deadline(std::chrono::seconds limit);
  void watch_deadlines();
  void on_timer(error_code ec);
  void on_read_timeout();

  session_context& context_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::array<char, kRead> received_; // where the read under way puts its bytes
  std::string input_;                // received and not yet parsed
  request_reader reader_;
  const bool refuse_;
  std::function<void()> on_closed_;

  phase phase_ = phase::idle;
  bool reading_ = false;
  bool writing_ = false;
  bool input_ended_ = false;
  bool stopping_ = false;
  std::size_t lingered_ = 0;
  std::uint64_t arrival_ns_ = 0;
  clock::time_point read_deadline_ = kNever;
  clock::time_point write_deadline_ = kNever;
  std::string output_;
  std::size_t written_ = 0;
  exchange exchange_;
};

void http_session::start() { asio::post(socket_.get_executor(), handler(&http_session::begin)); }
void http_session::shut_down() { asio::post(socket_.get_executor(), handler(&http_session::end_now)); }
void http_session::abort() { asio::post(socket_.get_executor(), handler(&http_session::lose_client)); }

void http_session::begin() {
  if (phase_ == phase::closed) return;
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
  begin_request();
}

// --- reading ---

void http_session::begin_request() {
  reader_.reset();
  exchange_ = exchange();
  output_ = {}; // a large answer's memory is not kept for an idle connection
  phase_ = phase::idle;
  set_read_deadline(context_.limits.header_timeout);
  advance();
}

void http_session::read_more() {
  if (reading_ || input_ended_ || phase_ == phase::closed) return;
  // While an answer is under way, what comes in waits its turn; reading on is how the client's end is noticed.
  if (phase_ == phase::answering && input_.size() >= context_.limits.header_bytes) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(received_), handler(&http_session::on_read));
}

void http_session::on_read(error_code ec, std::size_t bytes) {
  reading_ = false;
  if (phase_ == phase::closed) return;
  if (ec) return on_input_end(ec);
  if (phase_ == phase::lingering) {
    lingered_ += bytes;
    return lingered_ > kLingerBytes ? close() : read_more();
  }
  input_.append(received_.data(), bytes);
  if (phase_ == phase::answering) {
    read_more();
  } else {
    advance();
  }
}

void http_session::on_input_end(error_code ec) {
  input_ended_ = true;
  if (phase_ != phase::answering) return close();
  // An answer that is complete still goes out to a client that has only ended its own side.
  if (ec != asio::error::eof || !exchange_.channel->has_ended()) lose_client();
}

void http_session::advance() {
  while (phase_ != phase::answering && phase_ != phase::closed && phase_ != phase::lingering) {
    const auto step = reader_.feed(input_);
    input_.erase(0, step.consumed);
    if (phase_ == phase::idle && reader_.started()) {
      phase_ = phase::header;
      arrival_ns_ = static_cast<std::uint64_t>(std::chrono::nanoseconds(clock::now().time_since_epoch()).count());
      set_read_deadline(context_.limits.header_timeout);
    }
    switch (step.state) {
      case request_reader::progress::need_more:
        if (input_ended_) return close();
        return read_more();
      case request_reader::progress::failed:
        return refuse_broken_request();
      case request_reader::progress::header_ready:
        if (!on_header()) return;
        break;
      case request_reader::progress::complete:
        return on_request();
    }
  }
}

void http_session::open_exchange() {
  exchange_.text_id = make_text_id(context_.id_prefix, ++context_.last_id);
  exchange_.request_id = exchange_.text_id;
  exchange_.channel = std::make_shared<reply_channel>(context_.limits.unsent_bytes);
  exchange_.channel->attach([weak = weak_from_this(), executor = socket_.get_executor()] {
    if (auto self = weak.lock()) {
      auto run = self->handler(&http_session::pump);
      self.reset(); // the posted handler alone keeps the session alive: its last reference must not die here, under the channel's lock
      asio::post(executor, std::move(run));
    }
  });
}

// False when the request is already being answered.
bool http_session::on_header() {
  phase_ = phase::body;
  set_read_deadline(context_.limits.body_timeout);
  open_exchange();
  const request_head head = read_head(reader_, exchange_);
  auto refusal =
      refuse_ ? error_reply({error_kind::unavailable, "too many connections", "", 1}) : context_.routes.refuse(head, exchange_.where);
  if (refusal) {
    // The connection can go on only when the body need not be waited for.
    const auto step = reader_.feed(input_);
    input_.erase(0, step.consumed);
    refusal->close = refuse_ || step.state != request_reader::progress::complete;
    refuse_request(std::move(*refusal));
    return false;
  }
  if (!head.expect.empty() && !exchange_.http_1_0 && input_.empty()) write(std::string(continue_head));
  return true;
}

void http_session::on_request() {
  phase_ = phase::answering;
  read_deadline_ = kNever;
  exchange_.counted = takes_work(exchange_.where.target);
  if (exchange_.counted && input_ended_) return lose_client(); // pipelined by a client that has left
  if (exchange_.counted) ++context_.active;
  const auto channel = exchange_.channel;
  const auto id = context_.routes.start({exchange_.where, reader_.body(), arrival_ns_, exchange_.text_id, channel});
  exchange_.cancel_id = id;
  reader_.reset(); // the body is not needed any more
  read_more();
}

void http_session::refuse_request(reply refusal) {
  phase_ = phase::answering;
  read_deadline_ = kNever;
  exchange_.channel->answer(std::move(refusal));
}

void http_session::refuse_broken_request() {
  if (exchange_.channel == nullptr) open_exchange();
  reply refusal = error_reply(invalid_request("", std::string(reader_.failure_text())), reader_.failure_status());
  refusal.close = true;
  refuse_request(std::move(refusal));
}

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

// --- ends ---

void http_session::end_exchange() {
  report(exchange_.status);
  // What the head promised is kept, also when a drain has begun since: the client's next request is answered, with "close".
  const bool keep = exchange_.keep_alive && !stopping_;
  exchange_.channel->detach();
  if (!keep) return linger();
  begin_request();
}

// Tells the hooks, once for each request.
void http_session::report(int status) {
  context_.routes.request_done(exchange_.where.name, status);
  if (std::exchange(exchange_.counted, false)) --context_.active;
}

void http_session::lose_client() {
  if (phase_ == phase::closed) return;
  if (phase_ == phase::answering) {
    exchange_.channel->detach();
    if (exchange_.cancel_id && !exchange_.answer_written) context_.routes.cancel(*exchange_.cancel_id);
    report(exchange_.answer_begun ? exchange_.status : kClientGone);
  }
  close();
}

void http_session::drop_slow_reader() {
  context_.routes.slow_reader_dropped();
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored); // the kernel need not keep the rest either
  lose_client();
}

// Closing with unread input would make the kernel reset the connection, and the client might lose the answer: read on for a while.
void http_session::linger() {
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  if (ec || stopping_ || input_ended_) return close();
  phase_ = phase::lingering;
  input_.clear();
  set_read_deadline(kLingerTime);
  read_more();
}

void http_session::end_now() {
  stopping_ = true;
  if (phase_ != phase::answering) return close();
  if (exchange_.channel->has_ended()) return; // it is on its way out
  exchange_.channel->fail({error_kind::unavailable, "the server is shutting down", "", std::nullopt});
  if (exchange_.cancel_id) context_.routes.cancel(*exchange_.cancel_id);
}

void http_session::close() {
  if (phase_ == phase::closed) return;
  phase_ = phase::closed;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  leave();
}

void http_session::leave() noexcept {
  if (exchange_.channel) exchange_.channel->detach();
  if (std::exchange(exchange_.counted, false)) --context_.active;
  if (auto tell = std::exchange(on_closed_, nullptr)) tell();
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

} // namespace

std::shared_ptr<session> make_session(session_context& context, int native_socket, bool is_v6, bool refuse,
                                      std::function<void()> on_closed) {
  return std::make_shared<http_session>(context, native_socket, is_v6, refuse, std::move(on_closed));
}

} // namespace troupe::http
