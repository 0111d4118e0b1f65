// One connection: its requests one after the other, and what ends it. Part of make_session()'s implementation.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "transport/http/exchange.hpp"
#include "transport/http/session.hpp"

namespace troupe::http {

// Everything runs on the connection's strand, except the three functions of `session`.
class http_session final : public session, public std::enable_shared_from_this<http_session> {
 public:
  http_session(session_context& context, int native_socket, bool is_v6, bool refuse, std::function<void()> on_closed)
      : context_(context),
        socket_(boost::asio::make_strand(context.io), is_v6 ? boost::asio::ip::tcp::v6() : boost::asio::ip::tcp::v4(), native_socket),
        timer_(socket_.get_executor()),
        reader_(context.limits),
        refuse_(refuse),
        on_closed_(std::move(on_closed)) {}
  ~http_session() override { leave(); }

  void start() override;
  void shut_down() override;
  void abort() override;

 private:
  using tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;
  using clock = std::chrono::steady_clock;
  static constexpr clock::time_point kNever = clock::time_point::max();
  static constexpr std::size_t kRead = 16U << 10; // bytes asked of the socket at once

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
  boost::asio::steady_timer timer_;
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

} // namespace troupe::http
